// A server for the Wirehead tests: FerretDB, which speaks MongoDB's protocol, on SQLite.
// It prints its URI, and ends on SIGTERM. With -tls it makes itself a certificate, cert.pem in the data folder.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"math/big"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	data := flag.String("data", ".", "existing folder for the database files")
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on; port 0: a free one")
	pages := flag.Int("pages", 0, "size at which the disk is full, in pages of 4 KiB for each database; 0: none")
	encrypted := flag.Bool("tls", false, "encrypt connections")
	flag.Parse()
	url := "file:" + *data + "/"
	if *pages > 0 {
		url += fmt.Sprintf("?_pragma=max_page_count(%d)", *pages)
	}
	listener := ferretdb.ListenerConfig{TCP: *listen}
	if *encrypted {
		cert, key, err := makeCertificate(*data)
		if err != nil {
			log.Fatal(err)
		}
		listener = ferretdb.ListenerConfig{TLS: *listen, TLSCertFile: cert, TLSKeyFile: key}
	}
	server, err := ferretdb.New(&ferretdb.Config{
		Listener:  listener,
		Logger:    slog.New(lazyHandler{Handler: slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})}),
		Handler:   "sqlite",
		SQLiteURL: url,
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() { fmt.Println(server.MongoDBURI()) }()
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// lazyHandler formats the attributes of a logger only when it has something to log, as FerretDB's own handlers do: with
// each statement FerretDB makes a logger whose attributes are the statement's arguments, that is, all that is stored.
type lazyHandler struct {
	slog.Handler
	attrs []slog.Attr
}

func (h lazyHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return lazyHandler{h.Handler, append(slices.Clip(h.attrs), attrs...)}
}

func (h lazyHandler) WithGroup(name string) slog.Handler {
	return lazyHandler{Handler: h.Handler.WithAttrs(h.attrs).WithGroup(name)}
}

func (h lazyHandler) Handle(ctx context.Context, record slog.Record) error {
	return h.Handler.WithAttrs(h.attrs).Handle(ctx, record)
}

// makeCertificate writes a certificate for 127.0.0.1 that signs itself, and its key.
func makeCertificate(folder string) (certFile, keyFile string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	certificate := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, certificate, certificate, &key.PublicKey, key)
	if err != nil {
		return "", "", err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	for name, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: signed},
		keyFile:  {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			return "", "", err
		}
	}
	return certFile, keyFile, nil
}

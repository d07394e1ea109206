// A server for the Wirehead tests: FerretDB, which speaks MongoDB's protocol, on SQLite.
// It prints its URI, and ends on SIGTERM.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	data := flag.String("data", ".", "existing folder for the database files")
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on; port 0: a free one")
	pages := flag.Int("pages", 0, "size at which the disk is full, in pages of 4 KiB for each database; 0: none")
	flag.Parse()
	url := "file:" + *data + "/"
	if *pages > 0 {
		url += fmt.Sprintf("?_pragma=max_page_count(%d)", *pages)
	}
	server, err := ferretdb.New(&ferretdb.Config{
		Listener:  ferretdb.ListenerConfig{TCP: *listen},
		Logger:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
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

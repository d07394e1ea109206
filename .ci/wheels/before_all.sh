#!/usr/bin/env bash
# What a build needs in a manylinux image, whose own Eigen is too old and whose protobuf-c has no static library.
set -euo pipefail
EIGEN=3.4.0
PROTOBUF_C=v1.5.0
dnf -y install protobuf-c-compiler
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --depth 1 --branch "$EIGEN" https://gitlab.com/libeigen/eigen.git "$work/eigen"
cmake -S "$work/eigen" -B "$work/build" -DBUILD_TESTING=OFF -DEIGEN_BUILD_DOC=OFF >/dev/null
cmake --install "$work/build" >/dev/null
git clone --quiet --depth 1 --branch "$PROTOBUF_C" https://github.com/protobuf-c/protobuf-c.git "$work/protobuf-c"
gcc -O2 -fPIC -I"$work/protobuf-c" -c "$work/protobuf-c/protobuf-c/protobuf-c.c" -o "$work/protobuf-c.o"
ar rcs /usr/local/lib/libprotobuf-c.a "$work/protobuf-c.o"
install -D -m 644 "$work/protobuf-c/protobuf-c/protobuf-c.h" /usr/local/include/protobuf-c/protobuf-c.h

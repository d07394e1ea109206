#!/usr/bin/env bash
# What a build needs in a manylinux image, whose own Eigen and Protocol Buffers are too old. Libraries but zlib are static, linked in and hidden:
# they never meet those of another package.
set -euo pipefail
EIGEN=3.4.0
PROTOBUF=v21.12
SNAPPY=1.1.9
dnf -y install zlib-devel
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --depth 1 --branch "$EIGEN" https://gitlab.com/libeigen/eigen.git "$work/eigen"
cmake -S "$work/eigen" -B "$work/build" -DBUILD_TESTING=OFF -DEIGEN_BUILD_DOC=OFF >/dev/null
cmake --install "$work/build" >/dev/null
git clone --quiet --depth 1 --branch "$PROTOBUF" https://github.com/protocolbuffers/protobuf.git "$work/protobuf"
git clone --quiet --depth 1 --branch "$SNAPPY" https://github.com/google/snappy.git "$work/snappy"
for library in protobuf snappy; do
  cmake -S "$work/$library" -B "$work/$library-build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_CXX_VISIBILITY_PRESET=hidden -Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_WITH_ZLIB=OFF \
    -DSNAPPY_BUILD_TESTS=OFF -DSNAPPY_BUILD_BENCHMARKS=OFF >/dev/null
  cmake --build "$work/$library-build" --parallel "$(nproc)" --target install >/dev/null
done

#!/bin/sh
# Cross-compile for AArch64 and run the unit tests under qemu-aarch64. Installs Debian's cross compiler, emulator and arm64
# libraries when they are missing.
set -eu
cd "$(dirname "$0")/.."
libs="libc6-dev:arm64 libjansson-dev:arm64 libpcre2-dev:arm64 libutf8proc-dev:arm64 libzip-dev:arm64 libmicrohttpd-dev:arm64 libcmocka-dev:arm64"
if ! command -v aarch64-linux-gnu-gcc >/dev/null || ! command -v qemu-aarch64 >/dev/null || [ ! -e /usr/lib/aarch64-linux-gnu/pkgconfig/cmocka.pc ]; then
    echo "Installing from Debian's packages: gcc-aarch64-linux-gnu (cross compiler), qemu-user (emulator), $libs" >&2
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo dpkg --add-architecture arm64
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends gcc-aarch64-linux-gnu qemu-user $libs >/dev/null
fi
cmake --preset aarch64 >/dev/null
ninja -C build/aarch64 --quiet
ctest --test-dir build/aarch64 -L unit -j "$(nproc)" --output-on-failure

#!/bin/sh
# Cross-compile for AArch64 and run tests under qemu-aarch64. usage: check_aarch64.sh [install]
# install: only see to Debian's cross compiler, emulator and arm64 libraries; 1 when they cannot be had.
set -eu
cd "$(dirname "$0")/.."
libs="libc6-dev:arm64 libjansson-dev:arm64 libpcre2-dev:arm64 libutf8proc-dev:arm64 libzip-dev:arm64 libmicrohttpd-dev:arm64 libcmocka-dev:arm64"

have() {
    command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null || return 1
    for lib in jansson libpcre2-8 libutf8proc libzip libmicrohttpd cmocka; do
        [ -e "/usr/lib/aarch64-linux-gnu/pkgconfig/$lib.pc" ] || return 1
    done
}

get() {
    command -v apt-get >/dev/null || return 1
    sudo=
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    echo "Installing from Debian's packages: gcc-aarch64-linux-gnu (cross compiler), qemu-user (emulator), and of its arm64 ones $libs" >&2
    {
        $sudo dpkg --add-architecture arm64 &&
            $sudo apt-get update -qq &&
            DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends gcc-aarch64-linux-gnu qemu-user $libs
    } >/dev/null 2>&1
}

have || { get && have; } || { echo "no cross compiler, emulator or libraries for AArch64 here" >&2; exit 1; }
[ "${1:-}" != install ] || exit 0
cmake --preset aarch64 >/dev/null
ninja -C build/aarch64 --quiet
NB_THIN=${NB_THIN:-13} ctest --test-dir build/aarch64 -L 'unit|emulated' -j "$(nproc)" --output-on-failure

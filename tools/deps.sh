#!/bin/sh
# Install what is missing from Debian's packages, and say what and why. `deps.sh build|check`.
set -eu
what=${1:-build}
list="
gcc|C compiler|command -v gcc
cmake|build system|command -v cmake
ninja-build|build runner|command -v ninja
pkg-config|finds the libraries|command -v pkg-config
libc6-dev|C headers|test -e /usr/include/stdio.h
libjansson-dev|JSON|pkg-config --exists jansson
libpcre2-dev|regular expressions of tokenizers|pkg-config --exists libpcre2-8
libutf8proc-dev|Unicode normalization|pkg-config --exists libutf8proc
libzip-dev|PyTorch archives|pkg-config --exists libzip
libmicrohttpd-dev|HTTP server|pkg-config --exists libmicrohttpd
"
[ "$what" = check ] && list="$list
libcmocka-dev|unit tests|pkg-config --exists cmocka
clang|second compiler|command -v clang-14
clang-format-14|layout of the source|command -v clang-format-14
git|clean-tree test|command -v git
curl|talks to the server|command -v curl
qemu-user|older processors, emulated|command -v qemu-x86_64
"
[ "$what" = check ] && [ "${FUZZ:-0}" != 0 ] && list="$list
libclang-rt-14-dev|fuzzing and sanitizers of clang|ls /usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a
"
missing= reasons=
while IFS='|' read -r pkg why probe; do
    [ -n "$pkg" ] || continue
    if ! sh -c "$probe" >/dev/null 2>&1; then
        missing="$missing $pkg"
        reasons="$reasons
  $pkg ($why)"
    fi
done <<LIST
$list
LIST
[ -n "$missing" ] || exit 0
echo "Installing from Debian's packages:$reasons" >&2
if ! command -v apt-get >/dev/null 2>&1; then
    echo "No apt-get here: install the packages above with your system's tools, then run make again." >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || { echo "Neither root nor sudo: ask an administrator for the packages above." >&2; exit 1; }
    sudo=sudo
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if ! { $sudo apt-get update && $sudo apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    exit 1
fi
rm -f "$log"

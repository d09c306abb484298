#!/bin/sh
# The same tokens on emulated processors. usage: tokens.sh NATIVE EMULATOR PROGRAM CPU=KERNELS...
# NB_NATIVE in the environment goes before NATIVE. A small model is quantized by NATIVE; PROGRAM under EMULATOR must then pick
# KERNELS on each CPU and write what NATIVE writes, with 16-bit and with 8-bit activations. An illegal instruction would end it.
set -eu
native=${NB_NATIVE:-$1} emulator=$2 program=$3
shift 3
for need in "$native" "$program"; do
    [ -x "$need" ] || { echo "skipped: $need is not built"; exit 77; }
done
command -v "$emulator" >/dev/null || { echo "skipped: $emulator is not installed (Debian: qemu-user)"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT INT TERM
"$native" quantize models/pemberley-4m -o "$tmp/q4" --method rtn -q

answer() { # command...: what it writes
    "$@" run "$tmp/q4" "It is a truth" --raw --max-tokens 10 --temperature 0 -q --context 64 $options
}

bad=0
for options in "" "--act a8 --threads 1"; do
    want=$(answer "$native")
    [ -n "$want" ] || { echo "not ok: no answer"; exit 1; }
    for row in "$@"; do
        cpu=${row%%=*} kernels=${row#*=}
        got=$(answer "$emulator" -L "${SYSROOT:-/}" -cpu "$cpu" "$program" 2>"$tmp/err") || { echo "not ok: $cpu $options: $(tail -n 1 "$tmp/err")"; bad=1; continue; }
        [ "$got" = "$want" ] || { echo "not ok: $cpu $options: \"$got\", natively \"$want\""; bad=1; }
        [ -z "$options" ] || continue
        used=$("$emulator" -L "${SYSROOT:-/}" -cpu "$cpu" "$program" run "$tmp/q4" "a" --raw --max-tokens 1 --context 64 -v 2>&1 | sed -n 's/.* MB, \([^,]*\),.*/\1/p')
        [ "$used" = "$kernels" ] || { echo "not ok: $cpu runs the kernels \"$used\", expected $kernels"; bad=1; }
    done
done
[ "$bad" = 0 ] && echo "ok $*"
exit "$bad"

#!/bin/sh
# `make bench`: kernels beside the machine's limits, then whole steps of a 1B-shape model with random weights.
# usage: bench.sh PATH_OF_NIBBLE. Peers: bench/peers (they are built outside the tree).
set -eu
cd "$(dirname "$0")/.."
nibble=$1
bin=$(dirname "$nibble")
model=build/bench/1b-awq-g128
mkdir -p build/bench
"$bin/nb_bench_kern"
"$bin/nb_bench_dense"
[ -d "$model" ] || "$bin/nibble_gen_model" "$model"
"$nibble" bench "$model" --prompt 512 --decode 64 --rounds 5

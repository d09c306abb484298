#!/bin/sh
# Warnings of both compilers as errors, layout, floors, includers, headers, clean tree.
set -eu
cd "$(dirname "$0")/.."
for preset in release clang; do
    cmake --preset "$preset" >/dev/null
    ninja -C "build/$preset" --quiet
done
for rule in floors includers headers format clean; do
    tests/house.sh "$rule"
done

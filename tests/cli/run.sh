#!/bin/sh
# Run one script of this folder with the program in $NIBBLE and an empty scratch directory in $TMP.
# usage: run.sh PATH_OF_NIBBLE test_X.sh
set -eu
NIBBLE=$1
TMP=$(mktemp -d)
trap 'chmod -R u+w "$TMP"; rm -rf "$TMP"' EXIT INT TERM
export NIBBLE TMP NO_COLOR=1 LC_ALL=C.UTF-8
sh "$(dirname "$0")/$2"

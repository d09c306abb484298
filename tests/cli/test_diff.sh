# nibble diff: same across layouts, exit 1 and one line per tensor when different, JSON.
set -eu

. tests/cli/code.sh

in=tests/data/layouts/awq-gemm-g32-skip-autoawq
"$NIBBLE" convert "$in" --to ct -o "$TMP/ct" -q >/dev/null
code 0 "$NIBBLE" diff "$in" "$TMP/ct"
grep -qx 'codes     14 of 14 linears have the same codes, zero points and scales' "$TMP/out"
grep -qx 'values    0 of 26 tensors differ' "$TMP/out"
grep -qx 'verdict   same' "$TMP/out"
echo "ok same"

"$NIBBLE" convert "$in" --to bf16 -o "$TMP/bf16" -q >/dev/null
code 1 "$NIBBLE" diff "$in" "$TMP/bf16"
grep -qx 'verdict   different' "$TMP/out"
grep -q '^largest   [0-9.e-]* in model\.' "$TMP/out"
code 0 "$NIBBLE" diff "$in" "$TMP/bf16" --tolerance 0.004
code 1 "$NIBBLE" diff "$in" "$TMP/bf16" --json
grep -q '"same": false' "$TMP/out"
grep -q '"kind": "values"' "$TMP/out"
[ ! -s "$TMP/err" ]
echo "ok different"

code 2 "$NIBBLE" diff "$in"
code 3 "$NIBBLE" diff "$in" "$TMP/absent"
echo "ok usage"

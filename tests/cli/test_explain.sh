# nibble explain and formats: text, JSON, unknown names.
set -eu

. tests/cli/code.sh

code 0 "$NIBBLE" explain CNV-010
grep -qx 'CNV-010 (conv.act_order), error, exit code 5' "$TMP/out"
code 0 "$NIBBLE" explain st.truncated
grep -q '^st.truncated (safetensors files)$' "$TMP/out"
code 0 "$NIBBLE" explain qt.order --json
grep -q '"id": "ORD-001"' "$TMP/out"
code 0 "$NIBBLE" explain
grep -q '^  SHP-003  error    qt.shape ' "$TMP/out"
code 2 "$NIBBLE" explain no.such
grep -q '^nibble: error: arg.value: no rule and no class "no.such"; ' "$TMP/err"
echo "ok explain"

# every class that a message of the program can carry is in a family that explain knows
missing=$(grep -rhoE 'NB_E[A-Z]+, "[a-z_0-9]+\.[a-z_0-9]+"' src --include=*.c | sed 's/.*"\([a-z_0-9]*\)\..*/\1/' | sort -u | while read -r family; do
    "$NIBBLE" explain "$family" >/dev/null 2>&1 || echo "$family"
done)
if [ -n "$missing" ]; then
    echo "not ok: no text for" $missing
    exit 1
fi
echo "ok every class"

code 0 "$NIBBLE" formats
grep -q '^awq-gemm  *yes  *yes  *2 3 4 5 6 7 8 ' "$TMP/out"
grep -q '^gptq-marlin  *yes  *-  ' "$TMP/out"
code 0 "$NIBBLE" formats --json
grep -q '"name": "compressed-tensors"' "$TMP/out"
code 2 "$NIBBLE" formats extra
echo "ok formats"

# nibble doctor and nibble plan: what they print, and exit codes.
set -eu

model=models/pemberley-4m
"$NIBBLE" doctor >"$TMP/doctor"
grep -q 'bits as scalar; in use: the best that runs here' "$TMP/doctor"
grep -q '4-bit product ' "$TMP/doctor"
! grep -q WRONG "$TMP/doctor"
"$NIBBLE" doctor --cpu scalar --threads 1 --json >"$TMP/doctor.json"
grep -q '"bits_ok": true' "$TMP/doctor.json"
grep -q '"kernels": "scalar"' "$TMP/doctor.json"
grep -q '"read_bytes_s"' "$TMP/doctor.json"
grep -q 'small models decode on [1-9]' "$TMP/doctor"
grep -q '"small_model_threads": 1,' "$TMP/doctor.json"
"$NIBBLE" doctor --cpu-cap scalar >"$TMP/doctor"
grep -q '^ .*scalar .*; in use: capped by --cpu or NIBBLE_CPU$' "$TMP/doctor"
grep -q 'bf16 product  *scalar  *ok$' "$TMP/doctor"
NIBBLE_CPU=scalar "$NIBBLE" doctor --json >"$TMP/doctor.json"
grep -q '"kernels": "scalar"' "$TMP/doctor.json"
echo "ok doctor"

"$NIBBLE" plan $model --memory 1G --context 1024 >"$TMP/plan"
grep -q 'nibble serve MODEL --max-model-len 1024 --max-seqs 64 --kv-cache ' "$TMP/plan"
"$NIBBLE" plan $model --gpu rtx-4090 --tp 2 --json >"$TMP/plan.json"
grep -q '"kv_bytes_per_token"' "$TMP/plan.json"
grep -q -- '--tensor-parallel-size 2' "$TMP/plan.json"
"$NIBBLE" plan --gpu list | grep -q 'H100-SXM-80GB'
echo "ok plan"

code() { # wanted exit code, wanted words in output or error, command...
    want=$1
    says=$2
    shift 2
    rc=0
    "$@" >"$TMP/out" 2>&1 || rc=$?
    if [ "$rc" -ne "$want" ] || ! grep -q -- "$says" "$TMP/out"; then
        echo "not ok: exit $rc, want $want and \"$says\": $*"
        cat "$TMP/out"
        exit 1
    fi
}
code 1 "over the budget" "$NIBBLE" plan $model --memory 10M --context 64
code 2 "plan.gpu" "$NIBBLE" plan $model --gpu a100
code 2 "plan.tp" "$NIBBLE" plan $model --tp 3
code 2 "plan.lengths" "$NIBBLE" plan $model --context 100000
code 2 "plan.lengths" "$NIBBLE" plan $model --context 64 --prompt 60 --output 60
code 2 "arg.conflict" "$NIBBLE" plan $model --gpu t4 --memory 4G
code 2 "arg.conflict" "$NIBBLE" plan $model --bits 4
code 2 "arg.value" "$NIBBLE" plan $model --memory lots
code 2 "arg.value" "$NIBBLE" plan $model --kv 4
code 2 "arg.missing" "$NIBBLE" plan
code 2 "arg.extra" "$NIBBLE" doctor $model
code 3 "error" "$NIBBLE" plan "$TMP/none"
echo "ok refused"

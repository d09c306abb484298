#!/bin/sh
# The published vocabularies that belong to the vectors of golden/tokenizers/real, by the script beside these.
# usage: tests/fetch_real.sh DIR FETCH_SCRIPT
# DIR appears only when it is complete and its hashes were right. Where it cannot be had (no network, a tool missing, too
# slow, NB_OFFLINE set) one line on stdout says why, exit 77.
set -u
dir=${1:?usage: fetch_real.sh DIR FETCH_SCRIPT}
fetch=${2:?usage: fetch_real.sh DIR FETCH_SCRIPT}
skip() {
    printf '%s\n' "$*"
    exit 77
}
[ -d "$dir" ] && exit 0
[ -f "$fetch" ] || skip "there is no $fetch"
[ -z "${NB_OFFLINE:-}" ] || skip "NB_OFFLINE is set"
for tool in npm tar sha256sum timeout; do
    command -v "$tool" >/dev/null 2>&1 || skip "$tool is not installed"
done
part=$dir.part.$$
mkdir -p "$part" || skip "$part cannot be made"
trap 'rm -rf "$part"' EXIT
trap 'exit 77' INT TERM HUP
npm_config_fetch_retries=0 npm_config_fetch_timeout=30000 npm_config_update_notifier=false npm_config_cache=$part/.npm \
    timeout -k 5 "${NB_FETCH_TIMEOUT:-150}" sh "$fetch" "$part" >"$part/.log" 2>&1 </dev/null
rc=$?
case $rc in
0) ;;
124 | 137) skip "fetching took more than ${NB_FETCH_TIMEOUT:-150} s" ;;
*) skip "fetching failed (exit $rc): no network?" ;;
esac
rm -rf "$part/.npm" "$part/.log"
mv "$part" "$dir" 2>/dev/null || [ -d "$dir" ] || skip "$dir cannot be made"
exit 0

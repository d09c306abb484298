#!/bin/sh
# Which test names each ID of a page of requirements? usage: tools/ids.sh PAGE [SECTION...]
# Prints one line an ID: the ID, how many test files name it, their paths. An ID whose row label does not begin with it
# ("FS-01 ...", or "XX-nn FS-01 ..." for two) still counts: comments and messages name IDs too. Ends with a count; exit 1
# when an ID has no test. Sections default to 5.1-5.6 and 5.9-5.11, the files that nibble reads.
set -eu
page=${1:?usage: tools/ids.sh PAGE [SECTION...]}
shift
[ $# -gt 0 ] || set -- 5.1 5.2 5.3 5.4 5.5 5.6 5.9 5.10 5.11
cd "$(dirname "$0")/.."
grep -roE '\b[A-Z][A-Z]-[0-9]{2}\b' --include='*.c' --include='*.h' --include='*.sh' tests | sort -u |
    awk -v sections="$*" '
        BEGIN { n = split(sections, s, " "); for (i = 1; i <= n; i++) wanted[s[i]] = 1 }
        FNR == NR { split($0, part, ":"); files[part[2]] = files[part[2]] " " part[1]; n_files[part[2]]++; next }
        /^##/ { on = $2 in wanted }
        on && match($0, /^\| [A-Z][A-Z]-[0-9][0-9] \|/) {
            id = substr($0, 3, 5)
            total++
            missing += !(id in files)
            printf "%s %d%s\n", id, n_files[id], files[id]
        }
        END {
            printf "%d IDs, %d without a test\n", total, missing
            exit missing > 0 || total == 0
        }' - "$page"

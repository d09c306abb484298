#!/bin/sh
# spills.sh OBJECT...: no innermost loop with vpdpbusd may load or store vectors relative to the stack pointer. gcc spills
# accumulators when a kernel is written a little differently, and nothing but speed tells (spec kernels 7).
set -eu
command -v objdump >/dev/null || { echo "SKIP: no objdump"; exit 77; }
for object in "$@"; do
    case $object in *gemm_q[48].c.o*) ;; *) continue ;; esac
    objdump -d --no-show-raw-insn "$object" | awk -v object="${object##*/src/}" '
        /^ *[0-9a-f]+:\t/ {
            split($1, a, ":"); n++; at[a[1]] = n; text[n] = $0
            if ($2 ~ /^j/ && $3 in at) { loops++; first[loops] = at[$3]; last[loops] = n }
        }
        END {
            for (l = 1; l <= loops; l++) {
                inner = 1
                for (o = 1; o <= loops; o++)
                    if (o != l && first[o] >= first[l] && last[o] <= last[l] && dots(o)) inner = 0
                if (!inner || !dots(l)) continue
                tiles++
                for (i = first[l]; i <= last[l]; i++)
                    if (text[i] ~ /[xyz]mm[0-9]/ && text[i] ~ /\(%rsp/) { print object ": " text[i]; bad++ }
            }
            print object ": " tiles + 0 " dot product loops, " bad + 0 " vector accesses to the stack"
            exit (bad > 0 || tiles == 0)
        }
        function dots(l,   i) { for (i = first[l]; i <= last[l]; i++) if (text[i] ~ /vpdpbusd/) return 1; return 0 }'
done

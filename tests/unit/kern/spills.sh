#!/bin/sh
# spills.sh LIMIT OBJDUMP OBJECT...: no innermost loop with byte products may load or store vectors relative to the stack pointer more
# than LIMIT times in a hundred products. gcc spills accumulators when a kernel is written a little differently, and nothing but speed
# tells (spec kernels 7). 32 registers hold a tile: 0. With 16 the sums of a piece of 32 inputs are added to sums in memory by design;
# a spilled accumulator takes 200. There, loops for what is left of a group, half as long and shorter, are not looked at.
set -eu
limit=$1 objdump=$2
shift 2
failed=0
command -v "$objdump" >/dev/null || { echo "SKIP: no $objdump"; exit 77; }
for object in "$@"; do
    case $object in *gemm_q[48].c.o*) ;; *) continue ;; esac
    "$objdump" -d --no-show-raw-insn "$object" | awk -v object="${object##*/src/}" -v limit="$limit" '
        /^[0-9a-f]+ </ { name = $2 }
        /^ *[0-9a-f]+:\t/ {
            split($1, a, ":"); n++; at[a[1]] = n; text[n] = $0
            if ($2 ~ /^(j|b$|b\.|cb|tb)/)
                for (f = 3; f <= NF; f++)
                    if ($f in at && at[$f] <= n) { loops++; first[loops] = at[$f]; last[loops] = n; of[loops] = name; break }
        }
        END {
            for (l = 1; l <= loops; l++) {
                dots[l] = count(l, "vpdp(busd|wssd)|vpmadd(ubsw|wd)|[su](dot|mmla|mlal2?|mull2?)[ \t]+v")
                if (dots[l]) tiles++
            }
            for (l = 1; l <= loops; l++)
                for (o = 1; o <= loops; o++)
                    if (o != l && dots[o] && first[o] >= first[l] && last[o] <= last[l]) outer[l] = 1
            for (l = 1; l <= loops; l++)
                if (!outer[l] && dots[l] > most[of[l]]) most[of[l]] = dots[l]
            for (l = 1; l <= loops; l++) {
                if (outer[l] || !dots[l] || (limit > 0 && 2 * dots[l] <= most[of[l]])) continue
                seen++
                spilled = count(l, "[xyz]mm[0-9].*\\(%rsp|\\(%rsp.*[xyz]mm[0-9]|(ld|st)[1-4rpu]*[ \t].*[qdv][0-9].*\\[sp")
                if (100 * spilled > worst * dots[l]) worst = 100 * spilled / dots[l]
                if (100 * spilled > limit * dots[l]) { print object ": " of[l] " " spilled " vector accesses to the stack, " dots[l] " products"; bad++ }
            }
            printf "%s: %d of %d loops with products, at most %d accesses to the stack in 100 products\n", object, seen, tiles, worst
            exit (bad > 0 || seen == 0)
        }
        function count(l, what,   i, c) { for (i = first[l]; i <= last[l]; i++) c += text[i] ~ what; return c + 0 }' || failed=1
done
exit $failed

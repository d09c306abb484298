#!/bin/sh
# Man pages from the program's own help: nibble.1 and nibble-VERB.1.  usage: man.sh PATH_OF_NIBBLE OUTPUT_DIRECTORY
set -eu
nibble=$1 out=$2
version=$("$nibble" --version | cut -d' ' -f2)
mkdir -p "$out"
rm -f "$out"/*.1

# Help of one verb on stdin: name and brief, usage, option lines, sentences, indented examples.
page() {
    awk -v version="$version" '
        function roff(s) { gsub(/\\/, "\\e", s); gsub(/-/, "\\-", s); if (s ~ /^[.'"'"']/) s = "\\&" s; return s }
        NR == 1 { dash = index($0, " - "); name = substr($0, 1, dash - 1); gsub(/ /, "-", name); brief = substr($0, dash + 3); next }
        /^usage: / { usage = substr($0, 8); next }
        /^  -/ {
            if (substr($0, 29, 1) == " ") { left = substr($0, 3, 26); right = substr($0, 30) }
            else { match($0, /^  -[^ ]+ [^ a-z]*/); left = substr($0, 3, RLENGTH - 2); right = substr($0, RLENGTH + 1) }
            sub(/ +$/, "", left); sub(/^ +/, "", right)
            options = options ".TP\n.B " roff(left) "\n" roff(right) "\n"; next
        }
        /^  / { examples = examples roff(substr($0, 3)) "\n"; next }
        /^$/ { if (text != "" && text !~ /\.PP\n$/) text = text ".PP\n"; next }
        { text = text roff($0) "\n" }
        END {
            sub(/\.PP\n$/, "", text)
            upper = toupper(name)
            printf ".TH %s 1 \"\" \"nibble %s\" \"User Commands\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %s\n", roff(upper), version,
                roff(name), roff(brief), roff(usage)
            if (text != "") printf ".SH DESCRIPTION\n%s", text
            if (options != "") printf ".SH OPTIONS\n%s", options
            if (examples != "") printf ".SH EXAMPLES\n.nf\n%s.fi\n", examples
            print ".SH SEE ALSO\n.BR nibble (1)"
        }'
}

verbs=$("$nibble" --help | awk '/^  [a-z]+ / && $1 != "help" { print $1 }')
for verb in $verbs; do
    "$nibble" help "$verb" | page >"$out/nibble-$verb.1"
done
{
    "$nibble" --help | awk -v version="$version" '
        function roff(s) { gsub(/\\/, "\\e", s); gsub(/-/, "\\-", s); return s }
        NR == 1 { printf ".TH NIBBLE 1 \"\" \"nibble %s\" \"User Commands\"\n.SH NAME\nnibble \\- %s\n", version, roff(substr($0, index($0, " - ") + 3)); next }
        /^usage: / { printf ".SH SYNOPSIS\n.B %s\n.SH VERBS\n", roff(substr($0, 8)); next }
        /^  [a-z]/ { verb = $1; rest = $0; sub(/^  [^ ]+( [A-Z]+)? +/, "", rest); if (verb == "help") verb = "help VERB"
                     printf ".TP\n.B %s\n%s\n", roff(verb), roff(rest); next }
        NF { text = text roff($0) "\n" }
        END { printf ".SH DESCRIPTION\n%s", text }'
    cat <<'END'
.SH EXIT STATUS
.nf
  0  done
  1  ran properly, the answer is negative
  2  bad option, value or argument
  3  input missing or not permitted
  4  input breaks a rule of its format
  5  well\-formed, but not supported
  6  over a limit
  7  reading failed, or the input changed
  8  writing failed
  9  out of memory
 10  numbers that cannot be used
 11  data to resume from belongs to another job
 12  the output is already there
 13  a lock is held or an address is in use
 14  written, but the read\-back differs
 70  a bug of nibble
129, 130, 143  stopped by SIGHUP, SIGINT, SIGTERM
141  the reader of standard output went away
.fi
.SH SEE ALSO
END
    for verb in $verbs; do printf '.BR nibble\\-%s (1)\n' "$verb"; done
} >"$out/nibble.1"

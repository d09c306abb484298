# For the scripts of this folder to read: run a command, keep what it prints in $TMP/out and $TMP/err, and see how it ends.
code() { # wanted exit code, command...
    want=$1
    shift
    rc=0
    "$@" >"$TMP/out" 2>"$TMP/err" || rc=$?
    if [ "$rc" -ne "$want" ]; then
        echo "not ok: exit $rc, want $want: $*"
        cat "$TMP/out" "$TMP/err"
        exit 1
    fi
}

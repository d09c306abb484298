# The files of deploy/, as far as they can be tried without root: the unit and what it waits for (sd_notify), the libraries of the image,
# the balancers' syntax (their work: tests/clients/balancers.sh). The board: test_clients.sh (AT-14).
set -eu
PATH=$PATH:/usr/sbin
fail() {
    echo "FAIL $*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null && return; echo "skipped: $1 is not installed"; return 1; }

if have systemd-analyze; then
    sed "s|/usr/local/bin/nibble|$NIBBLE|" deploy/nibble.service >"$TMP/nibble.service"
    grep -q "ExecStart=$NIBBLE serve " "$TMP/nibble.service" || fail "nibble.service: no ExecStart"
    systemd-analyze verify "$TMP/nibble.service" >"$TMP/out" 2>&1 && [ ! -s "$TMP/out" ] || { cat "$TMP/out"; fail "nibble.service"; }
    echo "ok nibble.service"
fi

# What the unit (Type=notify, WatchdogSec) is told: ready once requests are taken, signs of life, the end. Also by an abstract address.
if have python3; then
    for address in "$TMP/notify" "@nibble-test-$$"; do
        rm -f "$TMP/told"
        python3 - "$address" >"$TMP/told" <<'PYTHON' &
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("\0" + sys.argv[1][1:] if sys.argv[1][0] == "@" else sys.argv[1])
s.settimeout(30)
print("bound", flush=True)
word = ""
while word != "STOPPING=1":
    word = s.recv(100).decode()
    print(word, flush=True)
PYTHON
        listener=$!
        until grep -qs bound "$TMP/told"; do sleep 0.02; done
        NOTIFY_SOCKET=$address "$NIBBLE" serve models/pemberley-4m --port 0 --kv-cache 16M --max-model-len 64 -q 2>"$TMP/err" &
        server=$!
        until grep -q READY=1 "$TMP/told" && grep -q WATCHDOG=1 "$TMP/told"; do # a sign of life may come first
            kill -0 $server 2>/dev/null || { cat "$TMP/err"; fail "the server ended"; }
            sleep 0.02
        done
        kill -TERM $server
        wait $server || fail "exit $?"
        wait $listener || fail "STOPPING=1 was not told"
        [ "$(LC_ALL=C sort -u "$TMP/told" | tr '\n' ' ')" = "READY=1 STOPPING=1 WATCHDOG=1 bound " ] && [ "$(grep -c READY "$TMP/told")" = 1 ] ||
            { cat "$TMP/told"; fail "sd_notify"; }
    done
    echo "ok sd_notify: ready, alive, stopping"
fi

if have readelf && have dpkg; then
    for library in $(readelf -d "$NIBBLE" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^lib(c|m|gcc_s|asan|tsan|ubsan)\.so|^ld-'); do
        package=$(dpkg -S "*/$library" 2>/dev/null | sed -n '1s/[:,].*//p')
        [ -n "$package" ] || { echo "skipped: $library is of no Debian package here"; continue; }
        grep -qw -- "$package" deploy/Dockerfile || fail "Dockerfile: $library needs $package"
    done
    grep -q '^USER nibble$' deploy/Dockerfile || fail "Dockerfile: runs as root"
    echo "ok Dockerfile: the libraries of the program, not as root"
fi

if have haproxy; then
    haproxy -c -f deploy/haproxy.cfg >"$TMP/out" 2>&1 || { cat "$TMP/out"; fail "haproxy.cfg"; }
    echo "ok haproxy.cfg"
fi
if have nginx; then
    nginx -t -p "$TMP" -c "$PWD/deploy/nginx.conf" -g "pid $TMP/pid; error_log stderr;" >"$TMP/out" 2>&1 || grep -q 'syntax is ok' "$TMP/out" || { cat "$TMP/out"; fail "nginx.conf"; }
    echo "ok nginx.conf"
fi

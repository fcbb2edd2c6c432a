#!/usr/bin/env bash
# Run tests, and beside them others once on each of some servers. What the others print follows in the end.
#
#     tests/beside.sh "SERVER..." OTHERS... -- TESTS...
#
# OTHERS and TESTS are commands. Many tests wait, and leave the processors to the others.
set -euo pipefail
servers=$1
shift
others=()
while [ "$1" != -- ]; do
    others+=("$1")
    shift
done
shift

work=$(mktemp --directory)
running=()
finish() {
    [ ${#running[@]} -eq 0 ] || kill "${running[@]}" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

for server in $servers; do
    LEASEHOLD_TEST_SERVER=$server "${others[@]}" >"$work/${#running[@]}" 2>&1 &
    running+=($!)
done
failed=0
"$@" || failed=$?
number=0
for server in $servers; do
    ended=0
    wait "${running[$number]}" || ended=$?
    printf 'The same run, on %s: %s\n' "$server" "${others[*]}"
    cat "$work/$number"
    [ $ended = 0 ] || failed=$ended
    number=$((number + 1))
done
running=()
exit $failed

#!/bin/sh
# Proves that the simulator sees what it is there to see: each patch in sim/mutants breaks a promise
# of the core, and a run of the simulator over it has to fail.
#
#   sim/mutants.sh [NAME...]     all mutants, or those named
#   SEEDS=1000                   seeds a mutant gets to be noticed in, unless its patch says `seeds: N`
#
# The tree itself is never changed: mutants are built in a copy, with one target directory for all
# of them (target/mutants).
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
seeds=${SEEDS:-1000}
work=$(mktemp -d "${TMPDIR:-/tmp}/longhaul-mutants.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}/mutants"
export CARGO_TARGET_DIR
# Built once and run for seconds: not worth the optimiser's last word.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=false

copy() {
    rm -rf "$work/tree"
    mkdir "$work/tree"
    (cd "$root" && git ls-files -z |
        xargs -0 tar cf - ) | tar xf - -C "$work/tree"
}

if [ $# -gt 0 ]; then
    names="$*"
else
    names=$(cd "$root/sim/mutants" && ls -- *.patch | sed 's/\.patch$//')
fi

failed=0
printf '%-34s %-10s %s\n' mutant outcome 'noticed by'
for name in $names; do
    copy
    if ! (cd "$work/tree" && patch -s -p1 --fuzz=0 < "$root/sim/mutants/$name.patch") > "$work/log" 2>&1; then
        printf '%-34s %-10s %s\n' "$name" STALE "the patch does not apply: $(head -n 1 "$work/log")"
        failed=1
        continue
    fi
    # Old timestamps from another mutant's copy must not pass for this one's.
    find "$work/tree/core" -name '*.rs' -exec touch {} +
    if ! (cd "$work/tree" && cargo build -q --release -p longhaul-sim) > "$work/log" 2>&1; then
        printf '%-34s %-10s %s\n' "$name" BROKEN "$(grep -m 1 '^error' "$work/log")"
        failed=1
        continue
    fi
    # Those of what stores decide together are for the world of stores.
    case $name in fleet-*) world=--fleet ;; *) world= ;; esac
    needed=$(sed -n 's/^seeds: \([0-9]*\)$/\1/p' "$root/sim/mutants/$name.patch")
    if "$CARGO_TARGET_DIR/release/longhaul-sim" $world --seeds "${needed:-$seeds}" > "$work/log" 2>&1; then
        printf '%-34s %-10s %s\n' "$name" SURVIVED "${needed:-$seeds} seeds"
        failed=1
    else
        printf '%-34s %-10s %s\n' "$name" caught "$(grep -m 1 'FAILED' "$work/log" | cut -c 1-140)"
    fi
done
exit $failed

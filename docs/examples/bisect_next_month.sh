#!/usr/bin/env bash
# On a schedule: does any pre-release break the command, and which package is it?
#
#   bisect_next_month.sh NOW REPORT -- COMMAND...
#
# NOW is the lock of today. The same packages are resolved once more with pre-releases, and what differs is tried.
set -eu
now=$1 report=$2
shift 3
sed -E 's/ *([#;].*|--hash=.*|\\)$//; s/[=~<>!].*//; /^ *(-|$)/d' "$now" | sort -u > next.in
uv pip compile --quiet --no-header --no-annotate --prerelease allow --upgrade next.in -o next.txt
uv pip compile --quiet --no-header --no-annotate --no-deps "$now" -o now.txt
exec "$(dirname "$0")/bisect_red_run.sh" now.txt next.txt "$report" -- "$@"

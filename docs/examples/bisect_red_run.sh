#!/usr/bin/env bash
# On a red run: which package change broke the command, and since which release of it?
#
#   bisect_red_run.sh GREEN RED REPORT -- COMMAND...
#
# GREEN and RED are the lock or `pip freeze` of the last green run and of this one; the Markdown report is appended
# to REPORT, a job's summary. The results stay in the file that BISECT_ENV_DB names: keep it between runs.
# Ends as `bisect-env between` does: 0 with an answer, 1 without, 4 if the red one does not fail here.
set -u
green=$1 red=$2 report=$3
shift 4
export BISECT_ENV_DB=${BISECT_ENV_DB:-bisect-env.sqlite}

if cmp -s "$green" "$red"; then
    echo "The locks are equal: what broke is not a package." | tee -a "$report"
    exit 0
fi
bisect-env between "$green" "$red" --quiet --name red-run -- "$@"
code=$?
case $code in
    0 | 1 | 4) bisect-env report red-run --format md >> "$report" ;;
    *) echo "bisect-env ended with $code; its log says why." >> "$report" ;;
esac
exit $code

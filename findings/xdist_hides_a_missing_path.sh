#!/usr/bin/env bash
# pytest 9.2.0 with pytest-xdist 3.8.0: a path or test that does not exist is an error with its name and exit code 4, but with
# `-n 2` it is neither: exit code 5 ("no tests ran"), not one word about the missing name on stdout or stderr, and tests that
# do exist and stand beside it on the command line are not run either. Scripts that let 5 pass, as for suites that may be
# empty, are green without having run anything.
# Seen with Python 3.11 on Linux. Needs python3 and a package index. Fails if the behaviour is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet pytest==9.2.0 pytest-xdist==3.8.0
echo 'def test_that_exists(): pass' > test_here.py

ends() {  # CODE WHETHER-THE-NAME-IS-PRINTED ARGUMENT…
    local expected=$1 named=$2 code=0 said=no
    shift 2
    venv/bin/python -m pytest "$@" > out 2> err || code=$?
    if grep -q gone out err; then said=yes; fi
    echo "pytest $*: exit code $code, names what is missing: $said, last line: $(tail -n 1 out)"
    [ "$code" = "$expected" ] && [ "$said" = "$named" ] && ! grep -q '1 passed' out
}

ends 4 yes gone.py
ends 4 yes test_here.py::test_gone
ends 4 yes test_here.py gone.py
ends 5 no -n 2 gone.py
ends 5 no -n 2 test_here.py::test_gone
ends 5 no -n 2 test_here.py gone.py

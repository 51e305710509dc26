"""What marking phases costs a trial: `python -m benchmarks.harness [--trials N]`.

The same script, with and without the harness, one after the other in one run, for every Python from 3.6 on
that this machine has, and for a script with many imports. What is added is the median difference of the
pairs, in milliseconds: of CPU time, ours and the interpreter's, which says the same on a busy machine,
and of wall time. Exit code 1 when the CPU time of any is over the limit.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bisect_env.environments.interpreters import machine_interpreters
from bisect_env.trials.harness_marks import install, read_marks
from bisect_env.trials.workdir import inherited_env, trial_env

LIMIT_MS = 20.0
MODULES = """
argparse asyncio calendar concurrent.futures configparser csv decimal difflib email.message fractions getpass
gettext gzip html.parser http.client imaplib ipaddress json logging.handlers mailbox mimetypes multiprocessing
netrc optparse pdb pickletools platform plistlib poplib pprint profile pstats queue random sched shelve shlex
smtplib socketserver sqlite3 statistics string tarfile tempfile textwrap timeit trace tracemalloc turtledemo
unittest.mock urllib.request uuid wave webbrowser wsgiref.simple_server xml.dom.minidom xmlrpc.client zipapp
zipfile
"""
SCRIPTS = {"pass": "pass", "60 imports": f"import {', '.join(MODULES.split())}"}


def one(python: Path, script: str, *, harness: bool, modules: list[str]) -> tuple[float, float]:
    """Milliseconds of CPU and wall time, from after the directory is made to before it is removed."""
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        (top / "main.py").write_text(script)
        env = trial_env(inherited_env(os.environ, python.parent), tmp=top, hash_seed=1, trial_id="x")
        cpu, wall = _cpu(), time.perf_counter()
        if harness:
            env, marks = install(top, env, modules)
        subprocess.run([python, "main.py"], cwd=top, env=env, check=True, capture_output=True)
        if harness:
            assert read_marks(marks).finished
        return 1000 * (_cpu() - cpu), 1000 * (time.perf_counter() - wall)


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> int:
    """Print a line for each Python and script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    asked = parser.parse_args()
    pythons = {
        ".".join(found.version.split(".")[:2]): found
        for found in sorted(machine_interpreters().installed(), key=lambda found: found.release)
        if found.release >= (3, 6)
    }
    modules = [f"package_{number}" for number in range(100)]
    print(f"{asked.trials} pairs each; 100 packages looked for; {os.cpu_count()} cores")
    print("python  script       CPU ms alone   added   ratio    wall ms alone   added   ratio")
    worst = 0.0
    for version, found in sorted(pythons.items(), key=lambda item: item[1].release):
        for name, script in SCRIPTS.items():
            alone, added = [], []
            for number in range(asked.trials):
                # Which one is first changes, so that nothing that drifts favours either.
                order = (False, True) if number % 2 else (True, False)
                took = {h: one(found.path, script, harness=h, modules=modules) for h in order}
                alone.append(took[False])
                added.append(
                    [with_it - without for with_it, without in zip(took[True], took[False], strict=True)]
                )
            bare, more = (
                [statistics.median(column) for column in zip(*rows, strict=True)] for rows in (alone, added)
            )
            worst = max(worst, more[0])
            shown = "      ".join(
                f"{b:10.1f} {m:7.1f} {(b + m) / b:7.2f}" for b, m in zip(bare, more, strict=True)
            )
            print(f"{version:7} {name:12} {shown}", flush=True)
    said = "ok" if worst < LIMIT_MS else "OVER"
    print(f"limit {LIMIT_MS} ms, largest median of CPU time {worst:.1f} ms: {said}")
    return 0 if worst < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())

"""What marking phases costs a trial: `python -m benchmarks.harness [--trials N]`.

The same script, with and without the harness, one after the other in one run, so that a busy machine slows
both. Each pair is a difference; printed are the median and the ninth decile of the differences, in
milliseconds, for every Python from 3.6 on that this machine has, and for a script with many imports. Exit
code 1 when a median is over the limit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bisect_env.environments.interpreters import machine_interpreters
from bisect_env.trials.child_env import child_env
from bisect_env.trials.phases import install

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


def one(python: Path, script: str, *, harness: bool, modules: list[str]) -> float:
    """Seconds from before the directory is filled to after it is emptied."""
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        (top / "main.py").write_text(script)
        env = child_env(os.environ, prefix_bin=python.parent, tmp=top, hash_seed=1, trial_id="x")
        started = time.perf_counter()
        if harness:
            env, _ = install(top, env, modules)
        subprocess.run([python, "main.py"], cwd=top, env=env, check=True, capture_output=True)
        return time.perf_counter() - started


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
    print("python  script        bare ms  harness adds ms (median, 9th decile)   ratio")
    worst = 0.0
    for version, found in sorted(pythons.items(), key=lambda item: item[1].release):
        for name, script in SCRIPTS.items():
            pairs = []
            for number in range(asked.trials):
                # Which one is first changes, so that nothing that drifts favours either.
                order = (False, True) if number % 2 else (True, False)
                took = {h: one(found.path, script, harness=h, modules=modules) for h in order}
                pairs.append((took[False], took[True]))
            added = [1000 * (watched - bare) for bare, watched in pairs]
            bare = 1000 * statistics.median(bare for bare, _ in pairs)
            median, decile = statistics.median(added), statistics.quantiles(added, n=10)[-1]
            worst = max(worst, median)
            ratio = (bare + median) / bare
            print(f"{version:7} {name:12} {bare:8.1f} {median:10.2f} {decile:10.2f} {ratio:23.3f}")
    print(f"limit {LIMIT_MS} ms, largest median {worst:.2f} ms: {'ok' if worst < LIMIT_MS else 'OVER'}")
    return 0 if worst < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())

"""Create a directory that shows the failure without bisect-env. Pure.

The lock is written in formats of other tools: conda-lock's format, pip's requirements with hashes, and
conda's explicit list. `run.sh` runs the script like a trial and counts the failures.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from math import ceil

from bisect_env.answers.untrusted import clean, clean_lines, command_line, escaped
from bisect_env.environments.difference import difference
from bisect_env.environments.lock import Lock
from bisect_env.environments.lockfiles import explicit_text, requirements_text
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import Matrix
from bisect_env.secrets import may_be_stored
from bisect_env.trials.records import NONE, Perturbation

LOCK, REQUIREMENTS, EXPLICIT = "conda-lock.yml", "requirements.txt", "explicit.txt"
RUN, README, DOCKERFILE = "run.sh", "README.md", "Dockerfile"
_OWN = (LOCK, REQUIREMENTS, EXPLICIT, RUN, README, DOCKERFILE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STACK_LINES = 40
_CHANGES = 30
"""Maximum number of changed packages that a README lists."""


@dataclass(frozen=True, slots=True)
class ObservedFailure:
    """What trials have shown about the failure of a combination, to be described in a README.

    Attributes:
        bad: Number of bad trials.
        trials: Number of trials that are evidence.
        detail: The most frequent failure in words, or "".
        stack: Stack of one of its trials, or "".
        machine: The machine on which it ran, or "".
        contrast: The last good combination, if it is known.
    """

    bad: int = 0
    trials: int = 0
    detail: str = ""
    stack: str = ""
    machine: str = ""
    contrast: Contrast | None = None


@dataclass(frozen=True, slots=True)
class Contrast:
    """The last good combination and its results, with which a failing combination is compared.

    Attributes:
        combination: The combination.
        lock: The lock of its environment.
        bad: Number of bad trials.
        trials: Number of trials that are evidence.
    """

    combination: Combination
    lock: Lock
    bad: int
    trials: int


def reproduction(
    matrix: Matrix,
    combination: Combination,
    lock: Lock,
    observed: ObservedFailure,
    *,
    index: str = "",
    perturbation: Perturbation = NONE,
) -> tuple[StudyFile, ...]:
    """Return the files of a directory that reproduces a failure without bisect-env.

    Args:
        matrix: The matrix, with the files of its trial.
        combination: The combination that fails.
        lock: The lock of its environment.
        observed: What is known about its failure.
        index: URL of the package index, "" for pip's default.
        perturbation: The circumstances under which its trials ran, without which it may not fail.

    Raises:
        ValueError: A file of the trial has the name of one of the generated files, or the combination has an
            axis that cannot be the name of an environment variable.
    """
    taken = [file.name for file in matrix.files if file.name in _OWN]
    if taken:
        raise ValueError(f"the trial's file {taken[0]} would be overwritten; rename it in the matrix")
    texts = {
        LOCK: lock.text,
        RUN: _run(matrix, combination, perturbation),
        README: _readme(matrix, combination, lock, observed, index, perturbation),
        DOCKERFILE: _dockerfile(lock, index),
    }
    wheels = [package for package in lock.packages if package.manager == "pip"]
    if lock.is_conda:
        texts[EXPLICIT] = explicit_text(lock.packages)
    if wheels or not (lock.is_conda or lock.image):
        texts[REQUIREMENTS] = requirements_text(wheels)
    made = (StudyFile(name, text.encode(), executable=name == RUN) for name, text in texts.items())
    return (*made, *matrix.files)


def _run(matrix: Matrix, combination: Combination, perturbation: Perturbation) -> str:
    command = shlex.join(matrix.command(combination))
    variables = {"PYTHONFAULTHANDLER": "1", **perturbation.env, **matrix.environment(combination)}
    # The combination comes from a database, so its axes may not be names of variables.
    if strange := [name for name in variables if not _VARIABLE.fullmatch(name)]:
        raise ValueError(f"an axis of this combination has a name that no axis can have: {strange[0]!r}")
    secrets = _left_out(matrix)
    lines = [
        f"export {name}={shlex.quote(value)}"
        if name not in secrets
        else f'export {name}="${{{name}:?may be a secret and is left out: set it first}}"'
        for name, value in sorted(variables.items())
    ]
    exports = "\n".join(lines)
    seconds = f"{matrix.file.trial.timeout:g}"
    copies = matrix.file.trial.concurrency * perturbation.copies
    many = f"# Trials ran {copies} copies at once: start as many of this in the background.\n"
    together = many if copies > 1 else ""
    each, prefix = "", ""
    # As in trials, a seed that the matrix sets is kept.
    if "PYTHONHASHSEED" not in variables:
        each, prefix = _seeds(perturbation), "PYTHONHASHSEED=$seed "
    return f"""#!/bin/sh
# Runs the command N times (default 1), each in a process of its own, and counts how often it fails.
{together}cd "$(dirname "$0")" || exit 2
{exports}
times=${{1:-1}}
failed=0
number=0
while [ "$number" -lt "$times" ]; do
    number=$((number + 1))
{each}    # 124 is a hang.
    {prefix}timeout -s ABRT -k 5 {seconds} {command}
    status=$?
    if [ "$status" -ne 0 ]; then
        failed=$((failed + 1))
        echo "run $number ended with $status" >&2
    fi
done
echo "$failed of $times runs failed"
[ "$failed" -eq 0 ]
"""


def _seeds(perturbation: Perturbation) -> str:
    """Return the lines of `run.sh` that choose each run's hash seed in the same way as trials do.

    Every second run gets one of the seeds at which the failure is frequent, if there are any.
    """
    lines = ["# A hash seed of its own for each run, as trials have.", "seed=$number"]
    turns = 2 * len(perturbation.seeds)
    lines += [
        f"[ $((number % {turns})) -ne {2 * turn + 1} ] || seed={seed}"
        for turn, seed in enumerate(perturbation.seeds)
    ]
    return "".join(f"    {line}\n" for line in lines)


def _circumstances(perturbation: Perturbation) -> list[str]:
    """Explain, for the README, the circumstances of trials that `run.sh` does not create by itself."""
    one, start = perturbation, f"./{RUN}"
    found = {
        f"start {one.copies} times as many copies at the same time": one.copies > 1,
        f"keep {one.load} CPUs busy meanwhile": one.load,
        f"lower its priority (`nice -n {one.nice} {start} 100`)": one.nice,
        f"give it {one.cpus} CPU(s) (`taskset --cpu-list 0-{one.cpus - 1} {start} 100`)": one.cpus,
        f"run the script {one.repeats} times within a process": one.repeats > 1,
        f"call `gc.set_threshold({one.gc_threshold})` first": one.gc_threshold,
    }
    if one == NONE:
        return []
    todo = [text for text, is_so in found.items() if is_so]
    rest = f"do so here, too: {'; '.join(todo)}" if todo else f"`{RUN}` sets them"
    return [f"The trials ran under special circumstances ({escaped(clean(one.name))}): {rest}.\n"]


def _left_out(matrix: Matrix) -> list[str]:
    """Return the sorted names of variables in `trial.env` whose values may be secrets."""
    return sorted(name for name, value in matrix.file.trial.env.items() if not may_be_stored(name, value))


def _dockerfile(lock: Lock, index: str) -> str:
    option = f" {command_line('--index-url', index)}" if index else ""
    image = lock.image
    # An image of the matrix need have neither an installer nor Python, because trials bring their own.
    if lock.is_conda:
        base = "FROM mambaorg/micromamba:latest\n"
        if image:
            base = f"""FROM {image}
USER root
COPY --from=mambaorg/micromamba:latest /bin/micromamba /bin/micromamba
ENV MAMBA_ROOT_PREFIX=/opt/micromamba
"""
        return f"""{base}COPY . /repro
WORKDIR /repro
RUN micromamba create --yes --name repro --file {LOCK}
CMD ["micromamba", "run", "--name", "repro", "sh", "{RUN}", "100"]
"""
    hashes = "" if lock.has_commits else " --require-hashes"
    has_wheels = any(package.manager == "pip" for package in lock.packages)
    if image and lock.python:
        sync = (
            f" && uv pip sync --python /env/bin/python{hashes}{option} {REQUIREMENTS}" if has_wheels else ""
        )
        return f"""FROM {image}
USER root
COPY --from=ghcr.io/astral-sh/uv:latest /uv /bin/uv
COPY . /repro
WORKDIR /repro
RUN uv venv --python {lock.python} /env{sync}
ENV PATH="/env/bin:$PATH"
CMD ["sh", "{RUN}", "100"]
"""
    install = f"RUN pip install --no-deps{hashes}{option} --requirement {REQUIREMENTS}\n"
    return f"""FROM {image or f"python:{lock.python}"}
COPY . /repro
WORKDIR /repro
{install if has_wheels else ""}CMD ["sh", "{RUN}", "100"]
"""


def _readme(
    matrix: Matrix,
    combination: Combination,
    lock: Lock,
    observed: ObservedFailure,
    index: str,
    perturbation: Perturbation,
) -> str:
    what = clean(matrix.file.description) or matrix.name
    rate = (
        f"it failed in {observed.bad} of {observed.trials} runs" if observed.trials else "it was not run yet"
    )
    where = f" on {escaped(clean(observed.machine))}" if observed.machine else ""
    detail = f": {escaped(clean(observed.detail))}" if observed.detail and observed.bad else ""
    script = f"""`{RUN} N` runs this command N times and counts the failures; a run ends after
{matrix.file.trial.timeout:g} s.

```sh
{command_line(*matrix.command(combination))}
```
"""
    parts = [
        f"# {what}\n",
        f"With {_listed(combination)}: {rate}{where}{detail}.\n",
        *_contrast(lock, observed.contrast),
        "## Run it\n",
        _steps(lock, index),
        *_elsewhere(lock),
        script,
        *_circumstances(perturbation),
    ]
    if secrets := _left_out(matrix):
        parts.append(f"Set first, as values that may be secrets are left out: {', '.join(secrets)}.\n")
    if matrix.file.trial.gpus:
        parts.append(f"It needs {ceil(matrix.file.trial.gpus)} GPU(s).\n")
    if observed.stack:
        stack = "\n".join(clean_lines(observed.stack).splitlines()[:_STACK_LINES])
        fence = "```"
        while fence in stack:
            fence += "`"
        parts.append(f"## What was seen\n\n{fence}text\n{stack}\n{fence}\n")
    kinds = f"{len(lock.packages)} package(s) for {lock.platform}, each with its hash"
    parts.append(f"## What is installed\n\n`{LOCK}` has {kinds}; nothing is solved again.\n")
    return "\n".join(parts)


def _contrast(lock: Lock, good: Contrast | None) -> list[str]:
    if good is None:
        return []
    changes = difference(good.lock, lock)
    shown = [
        f"- {change.name}: {change.before.label if change.before else 'absent'} → "
        f"{change.after.label if change.after else 'absent'}"
        for change in changes[:_CHANGES]
    ]
    if len(changes) > _CHANGES:
        shown.append(f"- and {len(changes) - _CHANGES} more")
    listed = "\n".join(shown)
    differ = f"What changed from there to here:\n\n{listed}\n" if changes else "No package differs.\n"
    return [f"With {_listed(good.combination)} it failed in {good.bad} of {good.trials} runs.\n", differ]


def _elsewhere(lock: Lock) -> list[str]:
    """Return notes about packages built from local repositories, because other hosts lack these."""
    places = {
        package.name: package.url.removeprefix("git+file://").rpartition("@")[0]
        for package in lock.packages
        if package.url.startswith("git+file://")
    }
    return [
        f"{escaped(name)} is built from a commit of `{place}`: where that is not, as in a container, "
        f"put an address of it into `{REQUIREMENTS}`.\n"
        for name, place in places.items()
    ]


def _steps(lock: Lock, index: str) -> str:
    option = f" {command_line('--index-url', index)}" if index else ""
    container = "docker build --tag repro . && docker run --rm repro"
    certificates = " Its image has to have the package `ca-certificates`, for the download."
    if lock.is_conda:
        return f"""Any of the first three makes the environment:

```sh
conda-lock install --prefix ./env {LOCK}
micromamba create --prefix ./env --file {LOCK}
conda create --prefix ./env --file {EXPLICIT}    # without wheels, if there are any

conda run --prefix ./env sh {RUN} 100
```

Or in a container: `{container}`.{certificates if lock.image else ""}
"""
    if lock.image:
        tool = "\nPython and its packages are put into it by uv, from the image `ghcr.io/astral-sh/uv`.\n"
        return f"""It is a container image:

```sh
{container}
```
{tool if lock.python else ""}"""
    hashes = "" if lock.has_commits else " --require-hashes"
    return f"""```sh
uv venv --python {lock.python} env
uv pip sync --python env/bin/python{hashes}{option} {REQUIREMENTS}
PATH="$PWD/env/bin:$PATH" ./{RUN} 100
```

Without uv:

```sh
python{lock.python} -m venv env
env/bin/pip install --no-deps{hashes}{option} -r {REQUIREMENTS}
PATH="$PWD/env/bin:$PATH" ./{RUN} 100
```

Or in a container: `{container}`.
"""


def _listed(combination: Combination) -> str:
    return ", ".join(clean(f"{axis} {value}") for axis, value in combination.items)

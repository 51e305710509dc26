"""Write the tables of `docs/outcomes.md` from the code that decides outcomes.

python -m tools.outcomes_page
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bisect_env.trials import classify, gpu_errors
from bisect_env.trials.classify import Rule
from bisect_env.trials.gpu_errors import CUDA_ERRORS
from bisect_env.trials.judge import DEFAULT_OUTCOMES, NEVER_TARGET, SKIPPED, VOID
from bisect_env.trials.records import Outcome

PAGE = Path(__file__).parent.parent / "docs" / "outcomes.md"

ANSWERS: Mapping[Rule, tuple[Outcome, ...]] = {
    classify.harness_error: (Outcome.HARNESS_ERROR,),
    classify.gpu_sick: (Outcome.GPU_LOST,),
    classify.gpu_lost: (Outcome.GPU_LOST,),
    classify.killed_external: (Outcome.KILLED_EXTERNAL,),
    classify.disk_full: (Outcome.DISK_FULL,),
    classify.env_mismatch: (Outcome.ENV_MISMATCH,),
    classify.unsupported: (Outcome.UNSUPPORTED,),
    classify.skip: (Outcome.SKIP,),
    classify.not_runnable: (Outcome.NOT_RUNNABLE,),
    classify.host_oom: (Outcome.HOST_OOM,),
    classify.hang: (Outcome.HANG,),
    classify.cuda_failure: (Outcome.CUDA_FAULT, Outcome.CUDA_OOM, Outcome.CUDA_INIT),
    classify.crash: (Outcome.CRASH,),
    classify.runner_error: (Outcome.RUNNER_ERROR,),
    classify.import_error: (Outcome.IMPORT_ERROR,),
    classify.exit_fail: (Outcome.EXIT_FAIL,),
    classify.passed: (Outcome.PASS,),
}
"""What each rule can answer; the tests hold it against the rules."""

_NOT_A_PROCESS: Mapping[Outcome, str] = {
    Outcome.WORKER_LOST: "The worker, or its host, went away; the cluster says so.",
}
"""Outcomes that no process's end is classified as."""


def rules_of(outcome: Outcome) -> tuple[Rule, ...]:
    """The rules that can answer with an outcome, in their order."""
    return tuple(rule for rule in classify.RULES if outcome in ANSWERS[rule])


def evidence_of(outcome: Outcome) -> str:
    """What an outcome says in a study."""
    if outcome is Outcome.PASS:
        return "good"
    if outcome is Outcome.CUDA_INIT:
        return "void once, then other or bad"
    if outcome in SKIPPED:
        return "skip"
    if outcome in NEVER_TARGET:
        return "void"
    if outcome in VOID:
        return "void or bad"
    if outcome in DEFAULT_OUTCOMES:
        return "bad or other"
    return "other or bad"


def outcomes_table() -> str:
    """A row for each outcome, in order of precedence."""
    rows = []
    for outcome in Outcome:
        rules = rules_of(outcome)
        # "Return `pass` if the exit code is 0, else None."
        told = ((rule.__doc__ or "").partition("\n")[0].partition(" if ")[2] for rule in rules)
        conditions = (one.removesuffix(", else None.") for one in told)
        how = " ".join(f"{one[:1].upper()}{one[1:]}." for one in conditions) or _NOT_A_PROCESS[outcome]
        if numbers := ", ".join(str(error.number) for error in CUDA_ERRORS if error.outcome is outcome):
            how += f" CUDA {numbers}."
        if classify.gpu_sick in rules:
            how += f" Xid {', '.join(map(str, sorted(gpu_errors.SICK_XIDS)))}."
        names = ", ".join(f"`{rule.__name__}`" for rule in rules) or "–"
        rows.append((f"`{outcome}`", evidence_of(outcome), how, names))
    return _markdown(("outcome", "evidence", "how it is known", "rule"), rows)


def cuda_table() -> str:
    """A row for each CUDA error that decides an outcome."""
    rows = [
        (str(e.number), f"`{e.runtime}`", f"`{e.driver}`" if e.driver else "", f"`{e.outcome}`")
        for e in CUDA_ERRORS
    ]
    head = ("number", "runtime", "driver", "outcome")
    return f"{_source('cuda_errors')}\n\n{_markdown(head, rows)}"


def xid_table() -> str:
    """A row for each Xid that says something about a trial."""
    rows = [
        (str(number), description, "void" if number in gpu_errors.SICK_XIDS else "noted")
        for number, description in gpu_errors.XIDS.items()
    ]
    return f"{_source('xids')}\n\n{_markdown(('Xid', 'NVIDIA says', 'the trial is'), rows)}"


def origin(table: str) -> tuple[str, str]:
    """Where a table of GPU errors was taken from, and when and how it was read."""
    source, read, *_ = (gpu_errors.TABLES / f"{table}.csv").read_text("utf-8").splitlines()
    return source.removeprefix("# "), read.removeprefix("# ")


def _source(table: str) -> str:
    source, read = origin(table)
    return f"Source: {source}; {read.partition(' by ')[0]}."


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([_line(head), "|" + "---|" * len(head), *(_line(row) for row in rows)])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


TABLES = {"outcomes": outcomes_table, "cuda": cuda_table, "xids": xid_table}


def written(page: str) -> str:
    """The page with each table between its marks made anew.

    Raises:
        ValueError: A mark is missing.
    """
    for name, table in TABLES.items():
        begin, end = f"<!-- table {name}: written by tools/outcomes_page.py -->", "<!-- end of table -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"{PAGE.name} must have `{begin}` and `{end}` once")
        text = f"{begin}\n\n{table()}\n\n{end}"
        page = pattern.sub(lambda _match, text=text: text, page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")

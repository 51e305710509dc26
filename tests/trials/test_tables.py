"""The tables of CUDA errors, Xids and outcomes: generated, complete, and what the code goes by."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from bisect_env.trials import gpu_errors
from bisect_env.trials.classify import RULES, ExitRecord, classify
from bisect_env.trials.gpu_errors import CUDA_ERRORS, SICK_XIDS, XIDS, described
from bisect_env.trials.records import Outcome
from tests.trials.test_classify import RECORDS
from tools import gpu_tables, outcomes_page
from tools.outcomes_page import ANSWERS, origin, rules_of

DOES_NOT_END = {Outcome.WORKER_LOST}


def test_the_page_shows_what_the_code_goes_by() -> None:
    page = outcomes_page.PAGE.read_text("utf-8")
    assert outcomes_page.written(page) == page, "run `python -m tools.outcomes_page`"
    with pytest.raises(ValueError, match="must have"):
        outcomes_page.written(page.replace("table cuda", "table"))


def test_every_outcome_of_a_process_has_a_rule_and_every_rule_is_listed() -> None:
    assert set(ANSWERS) == set(RULES)
    assert {outcome for outcome in Outcome if not rules_of(outcome)} == DOES_NOT_END


@given(RECORDS)
def test_rules_answer_what_the_table_says(record: ExitRecord) -> None:
    for rule in RULES:
        answer = rule(record)
        assert answer is None or answer.outcome in ANSWERS[rule]


def test_sources_are_named_and_dated() -> None:
    for table, name in (("cuda_errors", "nvidia_cuda_runtime"), ("xids", "xid-catalog")):
        source, read = origin(table)
        assert name in source
        assert read.startswith("read 2026-")


def test_the_tables_hold_the_decisions_of_their_generator() -> None:
    by_outcome: dict[str, set[int]] = {}
    for error in CUDA_ERRORS:
        by_outcome.setdefault(str(error.outcome), set()).add(error.number)
    assert by_outcome == gpu_tables.OUTCOMES
    assert {"sick": set(SICK_XIDS), "program": XIDS.keys() - SICK_XIDS} == gpu_tables.MEANINGS
    lines = (gpu_errors.TABLES / "cuda_errors.csv").read_text("utf-8").splitlines()
    assert len(lines) - 3 > 130  # where it is from, and the names of the columns


def test_a_sick_gpu_is_no_evidence_whatever_the_script_did() -> None:
    for record in (
        ExitRecord(0),
        ExitRecord(-11),
        ExitRecord(1),
        ExitRecord(-6, timed_out=True, killed_by_us=True),
    ):
        found = classify(ExitRecord(record.returncode, timed_out=record.timed_out, xids=(31, 79)))
        assert found.outcome is Outcome.GPU_LOST
        assert found.detail == "Xid 79 (GPU has fallen off the bus)"
    assert classify(ExitRecord(0, xids=(31,))).outcome is Outcome.PASS


def test_xids_in_words() -> None:
    assert described([31, 31, 999]) == "Xid 31 (GPU memory page fault), 999"
    assert described([]) == ""


HEADER = """
    cudaSuccess                           =      0,
    cudaErrorMemoryAllocation             =      2,
"""
PAGE = """Type (XID) |
Code |
|---|---|
XID |
8 |
A_MNEMONIC / ANOTHER |
GPU stopped – most likely |
YES |
NO |
YES |
YES |
RESTART_APP |
CONTACT_SUPPORT |
||
XID |
7 |
OTHER |
Unused |
NO |
"""


def test_generating_from_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="do not know"):
        gpu_tables.cuda_rows(HEADER, "", {2: "out of memory"})
    with pytest.raises(SystemExit, match="does not have"):
        gpu_tables.xid_rows(PAGE)
    monkeypatch.setattr(gpu_tables, "OUTCOMES", {"cuda-oom": {2}})
    monkeypatch.setattr(gpu_tables, "MEANINGS", {"program": {8}})
    monkeypatch.setattr(gpu_tables, "TABLES", tmp_path)
    driver = "    CUDA_ERROR_OUT_OF_MEMORY = 2,\n"
    assert gpu_tables.cuda_rows(HEADER, driver, {2: "out of memory"}) == [
        ["2", "cuda-oom", "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"]
    ]
    (tmp_path / "page.txt").write_text(PAGE)
    gpu_tables.main(["xids", str(tmp_path / "page.txt"), "--updated", "2026-01-02"])
    lines = (tmp_path / "xids.csv").read_text().splitlines()
    assert lines[0].endswith(", last changed 2026-01-02")
    assert lines[3:] == ["8,program,A_MNEMONIC,GPU stopped,RESTART_APP"]

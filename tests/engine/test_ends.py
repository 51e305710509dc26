"""Studies whose scripts end as commands do in real life: behind launchers, with words that all print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bisect_env.errors import UsageError
from bisect_env.matrix.signatures import read_signature
from tests.engine.studies import Done, Studies

pytestmark = pytest.mark.integration

NO_GPU = "UserWarning: CUDA error: no CUDA-capable device is detected; falling back to the CPU"


def asked(studies: Studies, script: str, command: str = "", **keys: str) -> Done:
    """Answer the question at which level a script begins to fail, maybe by another command."""
    path = studies.matrix(script, **keys)
    if command:
        path.write_text(path.read_text().replace("python script.py {level}", command))
    return studies.run(path)


def label(report: dict[str, Any], key: str) -> str | None:
    cell = report["verdict"][key]
    return cell["level"] if cell else None


@pytest.mark.parametrize(
    "words",
    [
        # What would make a failure `unsupported`, other, or void, if it explained the failure.
        NO_GPU,
        "CUDA driver version is insufficient for CUDA runtime version",
        "torch: CUDA out of memory, using a smaller batch",
        "CUDA error: uncorrectable ECC error encountered",
    ],
)
def test_words_that_passing_trials_print_too_explain_no_failure(studies: Studies, words: str) -> None:
    script = f"""
        import sys
        print({words!r}, file=sys.stderr)
        if int(sys.argv[1]) >= 5:
            print("FAIL: wrong sum", file=sys.stderr)
            sys.exit(1)
    """
    report = asked(studies, script).report
    assert (label(report, "last_good"), label(report, "first_bad")) == ("4", "5")
    assert report["verdict"]["status"] != "none"


def test_a_syntax_error_of_a_child_is_a_failure(studies: Studies) -> None:
    script = """
        import subprocess, sys
        code = "x = = 1" if int(sys.argv[1]) >= 5 else "x = 1"
        sys.exit(subprocess.run([sys.executable, "-c", code]).returncode)
    """
    report = asked(studies, script).report
    assert (label(report, "last_good"), label(report, "first_bad")) == ("4", "5")


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_is_gone_from_a_version_on_is_an_answer(studies: Studies, code: int) -> None:
    report = asked(studies, "", f'sh -c "test {{level}} -lt 5 || exit {code}"').report
    assert (label(report, "last_good"), label(report, "first_bad")) == ("4", "5")
    assert report["verdict"]["status"] != "none"


def test_a_command_that_is_nowhere_is_a_mistake(studies: Studies) -> None:
    with pytest.raises(UsageError, match="cannot be run"):
        asked(studies, "", 'sh -c "no-such-command {level}"')


def test_make_hides_no_skip(studies: Studies, tmp_path: Path) -> None:
    """Levels 5 and 6 ask to be skipped; make makes 2 of every exit code."""
    (tmp_path / "Makefile").write_text("t%:\n\tpython script.py $*\n")
    script = """
        import sys
        level = int(sys.argv[1])
        sys.exit(125 if level in (5, 6) else int(level >= 5))
    """
    trial = "allow_host: [make]"
    path = studies.matrix(script, trial=trial)
    text = path.read_text().replace("python script.py {level}", "make t{level}")
    path.write_text(text.replace("[script.py]", "[script.py, Makefile]"))
    report = studies.run(path).report
    assert (label(report, "last_good"), label(report, "first_bad")) == ("4", "7")
    skipped = {row["combination"]["level"] for row in report["combinations"] if row["status"] == "set-aside"}
    assert skipped <= {"5", "6"} != set()


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGSEGV)", "os.abort()"])
def test_a_crash_behind_a_shell_is_the_crash_that_is_asked_about(studies: Studies, end: str) -> None:
    """Other failures begin at 3, the crash at 6."""
    script = f"""
        import os, signal, sys
        level = int(sys.argv[1])
        if level >= 6:
            {end}
        sys.exit(level >= 3)
    """
    bad = "{outcomes: [crash], signals: [SIGSEGV]}" if "SIGSEGV" in end else "{outcomes: [crash]}"
    command = 'sh -c "python script.py {level}; exit $?"'
    report = asked(studies, script, command, trial=f"bad: {bad}").report
    assert label(report, "first_bad") == "6"
    assert read_signature(report["failures"][0]["signature"]).kind.startswith("crash:SIG")


def test_no_test_of_a_name_is_no_answer_about_versions(studies: Studies) -> None:
    """A stand-in for pytest, which has one version here: its words and codes are those of a real run."""
    script = """
        import sys
        if int(sys.argv[1]) >= 4:
            print("=== 1 deselected in 0.01s ===")
            sys.exit(5)
    """
    report = asked(studies, script).report
    assert label(report, "first_bad") is None
    reasons = {row["reason"] for row in report["combinations"] if row["status"] == "set-aside"}
    assert reasons
    assert all("no test ran" in reason for reason in reasons)


def test_a_pattern_is_searched_in_all_that_is_printed(studies: Studies) -> None:
    """The message stands between two times as much as is kept of an output."""
    script = """
        import sys
        level = int(sys.argv[1])
        noise = "progress of a long job, one line of many\\n" * 60_000
        sys.stdout.write(noise + ("checksum mismatch\\n" if level >= 5 else "") + noise)
        sys.exit(level >= 3)
    """
    report = asked(studies, script, trial='bad: {output: ["^checksum mismatch$"]}').report
    assert (label(report, "last_good"), label(report, "first_bad")) == ("2", "5")

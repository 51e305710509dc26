"""A script run again and again within one process is the script that it is alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.interpreter import can_repeat, python_options
from bisect_env.trials.harness_marks import repeated
from bisect_env.trials.records import Outcome, Phase, TrialRecord
from bisect_env.trials.signature import matches

Run = Callable[..., TrialRecord]
COUNTS = """
    import os, sys
    first = "seen" not in globals()
    seen = True
    assert first, "not a fresh __main__"
    import helper
    helper.times += 1
    print(helper.times, __name__, sys.argv, os.path.basename(__file__), sys.modules["__main__"].seen)
"""
HELPER = StudyFile("helper.py", b"times = 0\n")


def files(code: str) -> tuple[StudyFile, ...]:
    import textwrap

    return (StudyFile("main.py", textwrap.dedent(code).encode()), HELPER)


@pytest.mark.integration
def test_each_body_is_a_fresh_main_and_imports_stay(run: Run) -> None:
    record = run(files=files(COUNTS), repeats=3, command=("python", "-W", "error", "main.py", "-x", "y"))
    assert record.outcome is Outcome.PASS, record.stderr
    assert record.stdout.splitlines() == [
        f"{number} __main__ ['main.py', '-x', 'y'] main.py True" for number in (1, 2, 3)
    ]
    assert record.iterations == 3


@pytest.mark.integration
@pytest.mark.parametrize("options", [("-Wignore::DeprecationWarning",), ("-W", "ignore::DeprecationWarning")])
def test_a_filter_of_warnings_is_an_option_in_both_spellings(run: Run, options: tuple[str, ...]) -> None:
    code = (
        COUNTS
        + """
    import warnings
    warnings.warn("old", DeprecationWarning)
    warnings.warn("new", UserWarning)
    print(sys.warnoptions)
    """
    )
    record = run(files=files(code), repeats=2, command=("python", *options, "main.py", "-W"))
    assert record.outcome is Outcome.PASS, record.stderr
    assert record.stdout.splitlines() == [
        line
        for number in (1, 2)
        for line in (
            f"{number} __main__ ['main.py', '-W'] main.py True",
            "['ignore::DeprecationWarning']",
        )
    ]
    assert record.iterations == 2
    assert "UserWarning: new" in record.stderr
    assert "DeprecationWarning" not in record.stderr


@pytest.mark.integration
@pytest.mark.parametrize(
    ("failure", "outcome", "returncode"),
    [
        ("raise ValueError('now')", Outcome.EXIT_FAIL, 1),
        ("import sys; sys.exit(7)", Outcome.EXIT_FAIL, 7),
        ("import sys; sys.exit(125)", Outcome.SKIP, 125),
        ("import os; os.abort()", Outcome.CRASH, -6),
        ("import missing_module", Outcome.IMPORT_ERROR, 1),
    ],
)
def test_the_first_failure_ends_it_as_it_would_alone(
    run: Run, failure: str, outcome: Outcome, returncode: int
) -> None:
    code = f"""
        import helper
        helper.times += 1
        def fail():
            {failure}
        if helper.times == LIMIT: fail()
        raise SystemExit
    """
    alone = run(files=files(code.replace("LIMIT", "1")))
    again = run(files=files(code.replace("LIMIT", "3")), repeats=10)
    for record in (alone, again):
        assert (record.outcome, record.returncode) == (outcome, returncode), record.stderr
    assert (again.iterations, alone.iterations) == (3, 0)
    assert ("in iteration 3 of 10" in again.detail) == (outcome is not Outcome.PASS)
    assert again.phase is alone.phase
    assert again.signature == alone.signature
    assert not again.signature or matches(again.signature, alone.signature)


@pytest.mark.integration
def test_a_script_may_change_its_directory(run: Run) -> None:
    """The path of the script is relative to the first directory."""
    record = run(files=files("import os; print(os.path.basename(__file__)); os.chdir('/')"), repeats=3)
    assert record.outcome is Outcome.PASS
    assert record.stdout.split() == ["main.py"] * 3


@pytest.mark.integration
def test_modules_and_code_are_repeated_too(run: Run) -> None:
    module = run(files=files(COUNTS), repeats=2, command=("python", "-m", "main"))
    assert [line.split()[0] for line in module.stdout.splitlines()] == ["1", "2"], module.stderr
    code = run(files=files(""), repeats=2, command=("python", "-c", "import sys; print(sys.argv)", "a"))
    assert code.stdout == "['-c', 'a']\n" * 2


@pytest.mark.integration
def test_a_hang_in_a_later_body(run: Run) -> None:
    code = "import helper, time\nhelper.times += 1\nif helper.times == 2: time.sleep(99)"
    record = run(files=files(code), repeats=5, timeout=2.0)
    assert (record.outcome, record.iterations, record.phase) == (Outcome.HANG, 2, Phase.BODY)


@pytest.mark.integration
def test_iterations_of_all_copies_are_counted(run: Run) -> None:
    record = run(files=files("pass"), repeats=4, concurrency=3)
    assert (record.iterations, dict(record.copies)) == (12, {Outcome.PASS: 3})


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        (["s.py", "-m"], 0),
        (["-u", "-W", "error", "s.py"], 3),
        (["-Werror", "-X", "dev", "-m", "mod"], 3),
        (["-Wignore::DeprecationWarning", "s.py"], 1),
        (["-uWignore:cm:Warning", "-Ximporttime", "s.py"], 2),
        (["-uW", "ignore", "-m", "mod"], 2),
        (["-c", "1"], 0),
        (["-m"], None),
        (["--check-hash-based-pycs", "never", "s.py"], 2),
        (["-uc", "1"], None),
        (["-mmodule", "x"], None),
        (["-"], None),
        (["-V"], None),
        ([], None),
    ],
)
def test_where_the_options_end(arguments: list[str], end: int | None, tmp_path: Path) -> None:
    options = python_options(arguments)
    assert (options and options.end) == end
    assert can_repeat(["python", *arguments]) is (end is not None)
    if end is None:
        with pytest.raises(ValueError, match="no Python script"):
            repeated(arguments, 2, tmp_path)
    else:
        changed, notes = repeated(arguments, 2, tmp_path)
        assert changed[:end] == arguments[:end]
        assert changed[end + 1 :] == ["2", str(notes), *arguments[end:]]


@pytest.mark.integration
@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes of exceptions")
def test_the_traceback_of_a_script_shows_its_lines(run: Run) -> None:
    record = run("def f():\n    raise KeyError('x')\nf()", repeats=2)
    assert "    raise KeyError('x')" in record.stderr
    assert "KeyError: 'x'" in record.detail

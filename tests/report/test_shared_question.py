"""What is shared holds the question, can be run again from the file alone, and names nobody's home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bisect_env.errors import UsageError
from bisect_env.matrix.files import StudyFile
from bisect_env.report.build import QUESTION_LIMIT, load_report
from bisect_env.report.formats import formatted
from bisect_env.report.model import QuestionFile, Report
from bisect_env.report.shared_question import question_of_report, shared
from bisect_env.storage.store import Store
from tests.report.samples import MATRIX, StudyBuilder, axis, orjson_study, orjson_verdict
from tests.storage.samples import definition, lock, states

SHARED = ("html", "md", "json", "junit")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        yield store


def with_files(store: Store, *files: StudyFile, path: str = "matrices/orjson.yaml") -> Report:
    study = store.open_study(definition(matrix_text=MATRIX, files=files, matrix_path=path))
    store.save_locks([lock("1.0"), lock("2.0")])
    store.save_combinations(study.id, states())
    return load_report(store, study.id)


@pytest.mark.parametrize("form", ["html", "json"])
def test_a_report_gives_its_question_back(store: Store, tmp_path: Path, form: str) -> None:
    script = StudyFile("sub/a b&<\"'.py", "import sys\r\nprint('é</script>')\n\n".encode(), executable=True)
    empty = StudyFile("empty.txt", b"", executable=False)
    path = tmp_path / f"report.{form}"
    path.write_text(formatted(with_files(store, script, empty), form), "utf-8", newline="")
    matrix, files = question_of_report(path)
    assert matrix == MATRIX.replace("/home/ann", "~")
    assert files == (script, empty)


@pytest.mark.parametrize("form", ["html", "json"])
@pytest.mark.parametrize(
    ("file", "said"),
    [
        (StudyFile("large.bin", b"x" * (QUESTION_LIMIT + 1), executable=False), "lacks large.bin"),
        (StudyFile("data.bin", b"\xff\0", executable=False), "lacks data.bin"),
        (StudyFile("own.txt", b"https://me:hunter2@example.org/x", executable=False), "lacks own.txt"),
    ],
)
def test_what_a_report_cannot_hold_is_named(
    store: Store, tmp_path: Path, form: str, file: StudyFile, said: str
) -> None:
    path = tmp_path / "report"
    text = formatted(with_files(store, file, StudyFile("a.py", b"pass\n", executable=False)), form)
    path.write_text(text, "utf-8")
    assert "hunter2" not in text
    with pytest.raises(UsageError, match=said):
        question_of_report(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("<html></html>", "holds no question"), ("{}", "holds no question"), ("name: x\n", "holds no question")],
)
def test_a_file_that_is_no_report(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.html"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        question_of_report(path)
    with pytest.raises(UsageError, match="cannot be read"):
        question_of_report(tmp_path / "gone.html")


@pytest.mark.parametrize("name", ["../evil.py", "/etc/passwd", "a\nb"])
def test_a_report_writes_no_file_elsewhere(store: Store, tmp_path: Path, name: str) -> None:
    report = with_files(store)
    question = report.question.model_copy(update={"files": (QuestionFile(name=name, text="x"),)})
    path = tmp_path / "report.json"
    path.write_text(formatted(report.model_copy(update={"question": question}), "json"))
    with pytest.raises(UsageError, match="path"):
        question_of_report(path)


@pytest.mark.parametrize("form", SHARED)
def test_no_home_of_anybody_is_named(store: Store, form: str) -> None:
    study = StudyBuilder(store, [axis("lib", "1", "2")])
    homes = ("/home/ann/x.py", "/Users/ann/x.py", "/root/.cache/x.py")
    stack = "".join(f'  File "{home}", line 3 in f\n' for home in homes)
    study.crashes({"lib": "2"}, 2, stack=f"{stack}see https://example.org/home/ann/x", detail=homes[0])
    text = formatted(load_report(store, study.study.id), form)
    assert "~/x.py" in text
    assert "~/.cache/x.py" in text
    assert "/Users/ann" not in text
    assert "/root/" not in text
    assert "/home/ann" not in text.replace("example.org/home/ann", "").replace("example.org\\/home/ann", "")


@pytest.mark.parametrize("form", SHARED)
def test_a_home_of_the_own_user_is_not_named_wherever_it_is(
    store: Store, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/lustre/project.1/ann")
    study = StudyBuilder(store, [axis("lib", "1", "2")])
    study.crashes(
        {"lib": "2"}, 2, stack='  File "/lustre/project.1/ann/x.py", line 3\n  /lustre/project.1/annex'
    )
    text = formatted(load_report(store, study.study.id), form)
    assert "~/x.py" in text
    assert "project.1/ann/" not in text
    assert "/lustre/project.1/annex" in text.replace("\\/", "/")


@pytest.mark.parametrize("form", [*SHARED, "text"])
def test_a_home_at_the_beginning_of_a_line_is_not_named(store: Store, form: str) -> None:
    study = StudyBuilder(store, [axis("lib", "1", "2")])
    stack = "first\n/home/ann/x.py:1: UserWarning: y\n\t/home/ann/y.py\n'a\\n/home/ann/z.py'\n"
    study.crashes({"lib": "2"}, 2, stack=stack)
    text = formatted(load_report(store, study.study.id), form)
    assert "~/x.py:1: UserWarning: y" in text
    assert "/home/ann" not in text


def test_a_colleague_can_paste_the_commands(store: Store) -> None:
    for path in ("/home/ann/asked/0a1b/matrix.yaml", "../x/matrix.yaml"):
        report = shared(with_files(store, path=path))
        for step in report.reproduce:
            for command in step.commands:
                assert path not in command
                assert report.study.id[:8] in command
    report = with_files(store)
    assert "matrices/orjson.yaml" in shared(report).reproduce[0].commands[0]


def test_the_page_says_how_to_ask_again(store: Store) -> None:
    study = orjson_study(store)
    study.finished(orjson_verdict())
    text = formatted(load_report(store, study.study.id), "html")
    assert "<summary>matrix.yaml</summary>" in text
    assert "print(&#39;planted&#39;)" in text


def test_a_page_with_a_damaged_question_is_refused(store: Store, tmp_path: Path) -> None:
    page = formatted(with_files(store, StudyFile("a.py", b"pass\n", executable=False)), "html")
    path = tmp_path / "report.html"
    assert page.count('"text": "pass\\n"') == 1
    for damage in ('"text": "pass\\n', '"text": 7', '"text": "\\ud800"'):
        path.write_text(page.replace('"text": "pass\\n"', damage))
        with pytest.raises(UsageError, match="holds no question"):
            question_of_report(path)

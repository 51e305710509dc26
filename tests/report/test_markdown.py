"""The Markdown report: what it says, and that nothing others wrote becomes markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from bisect_env.answers.untrusted import clean, escaped
from bisect_env.report.build import load_report
from bisect_env.report.markdown import MOST, cell, code, fenced, markdown_text
from bisect_env.report.model import QuestionFile, StepReport
from bisect_env.report.text import report_text
from bisect_env.report.words import MOST_SLICES
from bisect_env.storage.store import Store
from tests.report.samples import StudyBuilder, axis, hostile_study, orjson_study, orjson_verdict, verdict
from tests.storage.samples import signature

GITHUB = MarkdownIt("gfm-like", {"html": True, "linkify": False})
EVIL = "</details><script>x</script> ```\n# h `|` [l](http://e.example) ![i](u) @user #1 **b** ~~s~~ <b>&amp;"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        yield store


def test_it_is_ready_for_a_bug_report(store: Store) -> None:
    study = orjson_study(store)
    study.finished(orjson_verdict())
    report = load_report(store, study.study.id)
    text = markdown_text(report)
    assert text.startswith(
        "**orjson 3.9.11 is the first bad version (last good 3.9.10): crashed in 3 of 18 trials"
    )
    assert "| first bad | `python=3.11 orjson=3.9.11` |" in text
    assert "| `3.9.11` | 3 | 18 | 17 % (3.6–41 %) | bad, ← first bad |" in text
    assert "`× No solution found: ╰─▶ orjson 3.9.13 has no wheel`" in text
    stack = r"<details open><summary>[^<]*</summary>\n\n.*\n\n```text\nFatal Python error.*```\n\n</details>"
    assert re.search(stack, text, re.DOTALL)
    assert "bisect-env 0.1.0" in text
    assert "```sh\nbisect-env run matrices/orjson_crash.yaml --fresh\n```" in text
    html = GITHUB.render(text)
    assert html.count("<table>") == 2
    assert html.count("<details") == html.count("</details>") == 3


def test_nothing_that_others_wrote_becomes_markup(store: Store) -> None:
    calm, evil = (hostile_study(store, text) for text in ("calm", EVIL))
    texts = [markdown_text(load_report(store, study.study.id)) for study in (calm, evil)]

    def tags(text: str) -> list[str]:
        return re.findall(r"<(?!br)/?[a-zA-Z][a-z0-9]*", GITHUB.render(text))

    assert "script>x" in texts[1]
    # Apart from code, which the evil text is shown in where it was nothing before, the structure is the same.
    assert [t for t in tags(texts[1]) if "code" not in t] == [t for t in tags(texts[0]) if "code" not in t]
    outside = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", GITHUB.render(texts[1]), flags=re.DOTALL)
    assert "@user" not in outside
    assert "http://e.example" not in outside


def test_the_name_of_a_file_is_no_markup(store: Store) -> None:
    """A line that begins with `<details>` is HTML, in which a backslash escapes nothing."""
    report = load_report(store, orjson_study(store).study.id)
    file = QuestionFile(name="<img src=//evil.example/x.png>my_file.py", text="pass\n")
    question = report.question.model_copy(update={"files": (file,)})
    html = GITHUB.render(markdown_text(report.model_copy(update={"question": question})))
    assert "<img" not in html
    assert "<summary>&lt;img src=//evil.example/x.png&gt;my_file.py</summary>" in html


@given(st.text())
@example("a | b `` ` c \\")
@example("<https://x.example> @a &lt;")
def test_escaped_text_reads_as_it_was(text: str) -> None:
    line = clean(text)
    rendered = GITHUB.render(f"x {escaped(line)} x").removeprefix("<p>").removesuffix("</p>\n")
    assert not re.search(r"<[^>]*>", rendered)
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        rendered = rendered.replace(entity, character)
    assert rendered.replace("\N{WORD JOINER}", "") == f"x {line} x"


@given(st.text(min_size=1))
@example("``|`")
def test_code_is_code_also_in_a_table(text: str) -> None:
    line = clean(text)
    rendered = GITHUB.render(f"| a | b |\n|---|---|\n| {cell(text)} | y |\n")
    cells = re.findall(r"<td>(.*?)</td>", rendered, re.DOTALL)
    assert len(cells) == 2
    assert cells[1] == "y"
    if line:
        assert re.fullmatch(r"<code>[^<]*</code>", cells[0])
        shown = re.search(r"<code>([^<]*)</code>", GITHUB.render(f"x {code(text)} x"))
        assert shown is not None
        # What a script printed reads alike in both, without backslashes of ours.
        assert shown[1] == re.sub(r"</?code>", "", cells[0])


@given(st.lists(st.text(alphabet="`~ab\\<", max_size=8)))
def test_a_block_ends_where_it_should(lines: list[str]) -> None:
    rendered = GITHUB.render("\n".join([*fenced(lines, "text"), "", "after"]))
    assert rendered.endswith("</code></pre>\n<p>after</p>\n")


def test_an_issue_can_hold_it(store: Store) -> None:
    study = StudyBuilder(store, [axis("a", *(f"{i}" for i in range(200)))])
    for kind in range(6):
        stack = "\n".join(f'  File "{kind}/{"x" * 140}.py", line {n} in f' for n in range(300))
        study.crashes({"a": str(150 + kind)}, 3, stack=stack, signature=signature(f"kind {kind}"))
        study.passes({"a": str(10 * kind)}, 5)
    text = markdown_text(load_report(store, study.study.id))
    assert len(text) < MOST
    assert "lines …" in text


@pytest.mark.slow
@pytest.mark.parametrize("slices", [1, 3])
def test_an_issue_can_hold_a_large_table(store: Store, slices: int) -> None:
    axes = [
        axis("a", *(f"2026.{i}.0" for i in range(60))),
        axis("b", *(f"1.{i}" for i in range(60))),
        axis("c", *map(str, range(slices))),
    ]
    study = StudyBuilder(store, axes)
    study.crashes({"a": "2026.1.0", "b": "1.1", "c": "0"}, 3)
    cells = study.cells()
    calls = [{"combination": cell, "verdict": "bad", "tried": True, "probability": 1.0} for cell in cells]
    table = {"good": 0, "bad": len(cells), "tried": len(cells), "complete": True, "calls": calls}
    study.finished(verdict(axes, None, None, kind="table", table=table))
    text = markdown_text(load_report(store, study.study.id))
    assert len(text) < MOST
    assert "### Compatibility" in text
    # What has no room is named; what is shown is whole.
    assert ("Left out, because it is too long here: the compatibility table" in text) == (slices > 1)
    html = GITHUB.render(text)
    assert html.count("<details") == html.count("</details>")
    assert "crash:SIGSEGV" in text


def test_tables_without_room_are_counted_as_in_other_formats(store: Store) -> None:
    axes = [axis("a", "1", "2", "3"), axis("b", "1", "2", "3"), *(axis(name, "1", "2") for name in "cdefg")]
    study = StudyBuilder(store, axes)
    study.crashes({str(one["name"]): "2" for one in axes}, 3)
    calls = [
        {"combination": cell, "verdict": "bad", "tried": True, "probability": 1.0} for cell in study.cells()
    ]
    table = {"good": 0, "bad": len(calls), "tried": 1, "complete": True, "calls": calls}
    study.finished(verdict(axes, None, None, kind="table", table=table))
    report = load_report(store, study.study.id)
    assert 2**5 - MOST_SLICES == 2
    assert "… and 2 more tables; `--format csv` has them" in markdown_text(report)
    assert "… and 2 more tables\n" in report_text(report)


def test_a_maintainer_gets_the_environment_itself(tmp_path: Path) -> None:
    step = StepReport(
        title="As a directory",
        commands=("bisect-env reproduce first-bad",),
        files={"requirements.txt": "# Exact\ntorch==2.3.0 --hash=sha256:abc\n", "explicit.txt": "x\n" * 999},
    )
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        study = orjson_study(store)
        study.finished(orjson_verdict())
        report = load_report(store, study.study.id).model_copy(update={"reproduce": (step,)})
    text = markdown_text(report)
    assert "<details><summary>requirements.txt of the environment that fails</summary>" in text
    assert "\ntorch==2.3.0 --hash=sha256:abc\n" in text
    assert "`explicit.txt` has 999 lines; attach the directory." in text

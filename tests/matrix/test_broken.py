"""Every broken matrix file gives exactly the text beside it (BISECT_ENV_UPDATE_GOLDEN=1 writes them anew)."""

import os
import random
import re
from pathlib import Path

import pytest

from bisect_env.errors import BisectEnvError, ExitCode, MatrixError
from bisect_env.matrix.load import load_matrix

ROOT = Path(__file__).parents[2]
BROKEN = Path(__file__).parent / "broken"
FILES = sorted(BROKEN.glob("*.yaml"))


def test_there_are_at_least_thirty():
    assert len(FILES) >= 30


@pytest.mark.timeout(20)  # generous: guards against a file that makes the loader hang
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_message(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(BROKEN)
    with pytest.raises(MatrixError) as caught:
        load_matrix(path.name)
    message = str(caught.value) + "\n"
    golden = path.with_suffix(".txt")
    if os.environ.get("BISECT_ENV_UPDATE_GOLDEN"):
        golden.write_text(message, encoding="utf-8")
    assert caught.value.exit_code is ExitCode.USAGE
    assert message == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_problem_has_a_remedy(path: Path):
    with pytest.raises(MatrixError) as caught:
        load_matrix(path)
    assert caught.value.problems
    for problem in caught.value.problems:
        what, separator, remedy = problem.rpartition("; ")
        assert separator, f"no remedy in: {problem}"
        assert what
        assert remedy
        assert "Error" not in problem
        assert "pydantic" not in problem


WORDS = [
    *(
        "null",
        "[]",
        "{}",
        "-1",
        "1e999",
        ".nan",
        "''",
        '"\\U00110000"',
        "2026-13-45",
        "&a [*a]",
        "*b",
        "9" * 400,
    ),
    *(
        "[[[[",
        "\t",
        "\ufeff",
        "\x07",
        "#",
        '"',
        ": ",
        "<<: *x",
        "!!python/object:os.system x",
        "../../x",
        "{level}",
    ),
    *("'>=1,<0'", "==1.*", "a" * 5000, "\u202e", "\ud800", "0x1F", "12:30:45", "yes", "---"),
]


def mutilated(text: str, chance: random.Random) -> str:
    """A file with a line or two taken out, doubled, moved, or with something else in its place."""
    for _ in range(chance.choice((1, 1, 2))):
        lines = text.split("\n")
        i, word = chance.randrange(len(lines)), chance.choice(WORDS)
        lines[i : i + 1] = chance.choice(
            [
                [],
                [lines[i], chance.choice(lines)],
                [" " * chance.randrange(9) + lines[i].lstrip()],
                [re.sub(r":.*", lambda _, word=word: f": {word}", lines[i], count=1)],
                [re.sub(r"[\w.]+", lambda _, word=word: word, lines[i], count=1)],
                [lines[i][: len(lines[i]) // 2] + word + lines[i][len(lines[i]) // 2 :]],
            ]
        )
        text = "\n".join(lines) or "x"
    return text


def test_whatever_a_file_is_changed_into_ends_in_words(tmp_path: Path) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    texts = [path.read_text("utf-8", "replace") for path in (*FILES, *(ROOT / "matrices").glob("*.yaml"))]
    path, told = tmp_path / "matrix.yaml", 0
    for _ in range(200):
        text = mutilated(chance.choice(texts), chance)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            load_matrix(path)
        except BisectEnvError:
            told += 1
        except Exception as error:
            raise AssertionError(text) from error
    assert told > 100

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.environments.lock import LockedPackage, LockFileError
from bisect_env.environments.lockfiles import content_hash, make_lock, parse_lock

# Its vendored conda warns about itself.
CONDA_LOCK = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning", "ignore::DeprecationWarning")

NAMES = st.text("abcxyz019-", min_size=1, max_size=8).map(lambda text: f"p{text}q")
HASHES = st.binary(min_size=32, max_size=32).map(bytes.hex)
VERSIONS = st.tuples(
    st.lists(st.integers(0, 2030), min_size=1, max_size=4), st.sampled_from(["", "rc1", ".post1", "+cpu"])
).map(lambda parts: ".".join(map(str, parts[0])) + parts[1])


@st.composite
def packages(draw):
    name, version = draw(NAMES), draw(VERSIONS)
    ending = draw(st.sampled_from(["-py3-none-any.whl", ".tar.gz", ".zip"]))
    host = draw(
        st.sampled_from(["https://files.example/a%20b", "file:///somewhere/über", "http://h:8080/x?y=1"])
    )
    return LockedPackage(name, version, "pip", f"{host}/{name}-{version}{ending}", draw(HASHES))


LISTS = st.lists(packages(), max_size=8, unique_by=lambda p: p.name)
PYTHONS = st.sampled_from(["2.7", "3.10", "3.11.7"])
DATES = st.none() | st.just("2020-09-23T00:00:00Z")


@given(LISTS, PYTHONS, DATES, st.randoms(use_true_random=False))
def test_order_does_not_matter_and_text_reads_back(chosen, python, date, random):
    lock = make_lock(python, "linux-64", chosen, date)
    shuffled = list(chosen)
    random.shuffle(shuffled)
    assert make_lock(python, "linux-64", shuffled, date) == lock
    assert parse_lock(lock.text) == lock
    has_source = any(package.is_source for package in chosen)
    assert lock.exclude_newer == (date if has_source else None)


@given(LISTS.filter(bool), PYTHONS)
def test_every_url_hash_python_and_platform_counts(chosen, python):
    first, *rest = chosen
    changed = LockedPackage(first.name, first.version, "pip", first.url, "0" * 64)
    hashes = {
        content_hash(python, "linux-64", chosen),
        content_hash("3.99", "linux-64", chosen),
        content_hash(python, "osx-arm64", chosen),
        content_hash(python, "linux-64", rest),
        content_hash(python, "linux-64", chosen, "2020-01-01T00:00:00Z"),
    }
    if first.sha256 != changed.sha256:
        hashes.add(content_hash(python, "linux-64", [changed, *rest]))
        assert len(hashes) == 6
    assert len(hashes) >= 5


def test_the_hash_is_the_same_in_every_release():
    package = LockedPackage(
        "six", "1.17.0", "pip", "https://files.example/six-1.17.0-py2.py3-none-any.whl", "ab" * 32
    )
    assert content_hash("3.11", "linux-64", [package]) == (
        "e30b987b74e980d9dfb30c3c6dfe2e2c3cc37ea53a29a7023b82c58a118e9e48"
    )


@CONDA_LOCK
def test_conda_lock_reads_it(tmp_path: Path):
    from conda_lock.lockfile import parse_conda_lock_file

    chosen = [
        LockedPackage(
            "six", "1.17.0", "pip", "https://files.example/six-1.17.0-py2.py3-none-any.whl", "ab" * 32
        ),
        LockedPackage(
            "lark-parser", "0.7.0", "pip", "https://files.example/lark-parser-0.7.0.tar.gz", "cd" * 32
        ),
    ]
    lock = make_lock("3.10", "linux-64", chosen, "2020-09-23T00:00:00Z")
    path = tmp_path / "a.conda-lock.yml"
    path.write_text(lock.text)
    theirs = parse_conda_lock_file(path)
    assert {(p.name, p.version, p.manager, p.url, p.hash.sha256, p.platform) for p in theirs.package} == {
        (p.name, p.version, "pip", p.url, p.sha256, "linux-64") for p in chosen
    }
    assert theirs.metadata.content_hash == {"linux-64": lock.content_hash}
    assert theirs.metadata.custom_metadata == {
        "bisect-env.python": "3.10",
        "bisect-env.exclude-newer": "2020-09-23T00:00:00Z",
    }


@CONDA_LOCK
def test_conda_lock_reads_an_empty_one(tmp_path: Path):
    from conda_lock.lockfile import parse_conda_lock_file

    path = tmp_path / "a.yml"
    path.write_text(make_lock("3.10", "linux-64", []).text)
    assert parse_conda_lock_file(path).package == []


@pytest.mark.parametrize(
    ("old", "new", "says", "remedy"),
    [
        ("six-1.17.0", "six-1.16.0", "was changed", "lock the matrix again"),
        ("ab" * 32, "cd" * 32, "was changed", "lock the matrix again"),
        ("'3.10'", "'3.9'", "was changed", "lock the matrix again"),
        ("version: 1\n", "version: 2\n", "has the version 2", "lock the matrix again"),
        ("metadata:", "metadata: [", "is not a lock of ours", "lock the matrix again"),
        # Of a file that lacks what every lock has it is likely that another tool wrote it.
        ("sha256:", "md5:", "is not a lock of ours", "name a lock that bisect-env wrote"),
    ],
)
def test_edited_locks_are_refused(old, new, says, remedy):
    package = LockedPackage(
        "six", "1.17.0", "pip", "https://files.example/six-1.17.0-py2.py3-none-any.whl", "ab" * 32
    )
    text = make_lock("3.10", "linux-64", [package]).text
    assert old in text
    with pytest.raises(LockFileError, match=says) as raised:
        parse_lock(text.replace(old, new), name="x.yml")
    assert "x.yml" in str(raised.value)
    assert f"remedy: {remedy}" in str(raised.value)


@given(st.text())
def test_any_text_gives_a_clear_error(text):
    with pytest.raises(LockFileError):
        parse_lock(text)

"""Repositories are read from a mirror: commits in order, quickly, and nothing of theirs is run."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.repositories import Change, git, pure, write
from bisect_env.environments.repository import CommitNotFoundError, Repository
from bisect_env.errors import InfrastructureError, UsageError

pytestmark = pytest.mark.integration


def test_a_line_of_commits_goes_from_the_older_end_to_the_newer_one(tmp_path: Path, cache: Path) -> None:
    commits = write(tmp_path / "demo", pure("demo", 8, 5))
    history = Repository(str(tmp_path / "demo"), cache).history("v1.0", "HEAD")
    assert history.line == tuple(commits) == history.chosen()
    assert history.label(commits[4]) == f"{commits[4][:10]} (Change number 5 (#1005))"
    assert history.label(commits[0]).endswith("(Change number 1 (#1001))")


@pytest.mark.parametrize("text", ["v1.1", "main", "2024-01-01T08:30:00Z", "2024-01-01", "hash", "short"])
def test_ends_are_tags_branches_days_or_hashes(tmp_path: Path, cache: Path, text: str) -> None:
    commits = write(tmp_path / "demo", pure("demo", 8, 5))
    named = {"hash": commits[-1], "short": commits[-1][:9]}.get(text, text)
    assert Repository(str(tmp_path / "demo"), cache).resolve("v1.0", named) == [commits[0], commits[-1]]


def cpu() -> float:
    """Seconds of work of this process and its children: what a busy machine does not change."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.mark.slow
def test_a_hundred_thousand_commits_become_an_axis_at_once(tmp_path: Path, cache: Path) -> None:
    commits = write(tmp_path / "long", (Change({"n": str(n)}, f"Change {n}") for n in range(100_000)))
    git = ["git", "-C", str(tmp_path / "long"), "log", "--format=%H %P %ct %s", "main"]
    listed, took = [], []
    for turn in range(3):
        repository = Repository(str(tmp_path / "long"), cache / str(turn))
        before = cpu()
        subprocess.run(git, stdout=subprocess.DEVNULL, check=True)
        listed.append(cpu() - before)
        before = cpu()
        history = repository.history(commits[0], "main")
        chosen = history.chosen()
        place = history.place
        took.append(cpu() - before)
    assert len(history.line) == 100_000
    assert 200 <= len(chosen) <= 500
    assert (chosen[0], chosen[-1]) == (commits[0], commits[-1])
    # Around an answer the others are looked at, until every commit of it was.
    low, high = chosen[100], chosen[101]
    between = history.inside([low], high)
    assert between == tuple(commits[place[low] + 1 : place[high]])
    # Beside git's own list in the same run, which a busy machine slows down as well. The least of three turns
    # counts, because other processes disturb one more than another.
    assert min(took) < 3 * min(listed)


def test_what_a_merge_brought_in_is_looked_at_when_it_is_the_first_bad_one(
    tmp_path: Path, cache: Path
) -> None:
    #  1 - 2 - 3 ------ 7 - 8      7 merges 6
    #       \- 4 - 5 - 6 /
    changes = [
        Change({"a": "1"}),
        Change({"a": "2"}),
        Change({"a": "3"}),
        Change({"b": "4"}, parents=[2]),
        Change({"b": "5"}),
        Change({"b": "6"}),
        Change({"c": "7"}, "Merge pull request #77", parents=[3, 6]),
        Change({"c": "8"}),
    ]
    commits = write(tmp_path / "merged", changes)
    repository = Repository(str(tmp_path / "merged"), cache)
    plain = repository.history(commits[0], "main")
    every = repository.history(commits[0], "main", every=True)
    mainline = tuple(commits[i] for i in (0, 1, 2, 6, 7))
    assert plain.line == every.line == mainline
    assert plain.inside(commits[:3], commits[6]) == ()
    assert every.inside(commits[:3], commits[6]) == tuple(commits[3:6])
    assert every.inside(commits[:3], commits[3]) == every.inside(commits[:6], commits[6]) == ()
    # Where only some of the branch is known to be good, the rest of it is looked at.
    assert every.inside(commits[:4], commits[6]) == tuple(commits[4:6])
    assert every.left_out(mainline) == {commits[6]: 3}
    # A merge that does not build: what it brought in is looked at, and stands before it once it is good.
    values = every.around(mainline, commits[:3], commits[7])
    assert values == (*commits[:3], *commits[3:6], *commits[6:])
    assert every.around(values, commits[:6], commits[7]) == values


def test_releases_on_branches_of_their_own_begin_where_the_branch_did(tmp_path: Path, cache: Path) -> None:
    changes = [
        Change({"a": "1"}),
        Change({"a": "2"}),
        Change({"fix": "1"}, tags=["v1.0"]),
        Change({"a": "4"}, parents=[2]),
        Change({"a": "5"}, tags=["v2.0"]),
    ]
    commits = write(tmp_path / "branches", changes)
    history = Repository(str(tmp_path / "branches"), cache).history("v1.0", "v2.0")
    assert history.line == (commits[1], commits[3], commits[4])


def test_ends_that_are_none_are_refused_with_a_remedy(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "demo", pure("demo", 4, 2))
    repository = Repository(str(tmp_path / "demo"), cache)
    with pytest.raises(CommitNotFoundError, match="no commit v9") as unknown:
        repository.history("v1.0", "v9")
    assert "such as " in str(unknown.value)
    assert "shallow" not in str(unknown.value)
    address = f"file://{tmp_path / 'demo'}"
    git(tmp_path, "clone", "--quiet", "--depth", "2", address, "shallow")
    with pytest.raises(CommitNotFoundError, match=r"no commit v1\.0") as unknown:
        Repository(str(tmp_path / "shallow"), cache).history("v1.0", "HEAD")
    assert "it is a shallow clone" in str(unknown.value)
    with pytest.raises(UsageError, match=r"no commit lies between v1\.1 and v1\.0") as caught:
        repository.history("v1.1", "v1.0")
    assert "swap" in str(caught.value)
    with pytest.raises(UsageError, match="which are both"):
        repository.history("2024-01-01", "2024-01-02")
    with pytest.raises(CommitNotFoundError, match="as old as 2023-12-31") as unknown:
        repository.history("2023-12-31", "main")
    assert "name a day from 2024-01-01 on" in str(unknown.value)
    with pytest.raises(UsageError, match="there is no repository"):
        Repository(str(tmp_path / "nowhere"), cache).history("a", "b")
    (tmp_path / "plain").mkdir()
    with pytest.raises(UsageError, match="is no git repository"):
        Repository(str(tmp_path / "plain"), cache).history("a", "b")


def test_a_mirror_goes_on_where_its_repository_is_gone_and_follows_it_where_it_grows(
    tmp_path: Path, cache: Path
) -> None:
    place = tmp_path / "demo"
    commits = write(place, pure("demo", 4, 2))
    repository = Repository(str(place), cache)
    assert repository.resolve("main") == [commits[3]]
    git(place, "update-ref", "refs/heads/main", commits[2])
    assert repository.resolve("main") == [commits[2]]
    place.rename(tmp_path / "away")
    assert repository.resolve(commits[0], commits[3]) == [commits[0], commits[3]]


def test_nothing_of_a_hostile_repository_runs_and_nothing_is_written_outside(
    tmp_path: Path, cache: Path
) -> None:
    place, outside = tmp_path / "hostile", tmp_path / "outside"
    outside.mkdir()
    mark = tmp_path / "ran"
    changes = [
        Change(
            {
                ".gitattributes": "* filter=evil\n*.txt diff=evil merge=evil ident\n",
                'a b/naïve "file".txt': "$Id$ text",
                ".githooks/post-checkout": f"#!/bin/sh\ntouch {mark}\n",
            },
            links={"out": str(outside), "up": "../../../.."},
        ),
        Change({"a b/c": "2"}, "Subject\twith\ttabs; $(touch ran) `x`"),
    ]
    commits = write(place, changes)
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc", "post-merge"):
        hook = place / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
        hook.chmod(0o755)
    for key, value in {
        "filter.evil.smudge": f"touch {mark}; cat",
        "filter.evil.clean": f"touch {mark}; cat",
        "diff.evil.textconv": f"touch {mark}; cat",
        "diff.evil.command": f"touch {mark}",
        "core.fsmonitor": f"touch {mark}",
        "core.hooksPath": str(place / ".githooks"),
        "uploadpack.packObjectsHook": f"touch {mark}; exec",
        "core.sshCommand": f"touch {mark}",
        "core.pager": f"touch {mark}",
    }.items():
        git(place, "config", key, value)
    before = sorted(p for p in place.rglob("*"))
    repository = Repository(str(place), cache)
    history = repository.history(commits[0], "main")
    assert len(history.line) == 2
    assert repository.details(commits[1]).files == (("a b/c", 1, 0),)
    folder = tmp_path / "out"
    folder.mkdir()
    with repository.checked_out(commits[1], folder) as source:
        assert (source / "a b" / 'naïve "file".txt').read_text() == "$Id$ text" or (
            (source / "a b" / 'naïve "file".txt').read_text().startswith("$Id: ")
        )
        assert (source / "out").is_symlink()
        assert repository.pointers(source) == []
    assert not mark.exists()
    assert list(outside.iterdir()) == list(folder.iterdir()) == []
    assert sorted(p for p in place.rglob("*")) == before


def test_submodules_and_pointers_of_lfs_are_known(tmp_path: Path, cache: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    changes = [
        Change({"a": "1"}),
        Change(
            {".gitattributes": "*.bin filter=lfs diff=lfs\n", "data/x.bin": pointer, "y.bin": "real"},
            modules={"vendored/lib one": "1" * 40},
        ),
    ]
    commits = write(tmp_path / "parts", changes)
    repository = Repository(str(tmp_path / "parts"), cache)
    repository.resolve(*commits)
    assert repository.submodules(commits[0]) == []
    assert repository.submodules(commits[1]) == ["vendored/lib one"]
    folder = tmp_path / "out"
    folder.mkdir()
    with repository.checked_out(commits[1], folder) as source:
        assert repository.pointers(source) == ["data/x.bin"]


def test_a_commit_says_who_when_and_what(tmp_path: Path, cache: Path) -> None:
    commits = write(tmp_path / "demo", pure("demo", 3, 2))
    repository = Repository(str(tmp_path / "demo"), cache)
    repository.resolve(commits[2])
    found = repository.details(commits[2])
    assert (found.author, found.subject) == ("Ann Author", "Change number 3 (#1003)")
    assert found.authored.isoformat() == "2024-01-01T03:00:00+00:00"
    assert found.files == (("demo.py", 1, 1),)
    assert (found.tags, found.parents) == (("v1.1",), (commits[1],))
    assert repository.file(commits[2], "pyproject.toml") is not None
    assert repository.file(commits[2], "nothing") is None


def test_git_is_needed(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "demo", pure("demo", 3, 2))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match="git is not on this host"):
        Repository(str(tmp_path / "demo"), cache).history("v1.0", "v1.1")


def test_a_repository_elsewhere_is_fetched_and_asked_again_only_for_what_can_move(
    tmp_path: Path, cache: Path
) -> None:
    place = tmp_path / "served" / "demo"
    commits = write(place, pure("demo", 4, 2))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["git", "daemon", "--listen=127.0.0.1"]
    server = subprocess.Popen(
        [*words, f"--port={port}", "--export-all", f"--base-path={place.parent}"],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        repository = Repository(f"git://127.0.0.1:{port}/demo", cache)
        deadline = time.monotonic() + 20
        while True:
            try:
                history = repository.history("v1.0", "HEAD")
                break
            except InfrastructureError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert history.line == tuple(commits)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    assert repository.resolve("v1.0", commits[2]) == [commits[0], commits[2]]
    with pytest.raises(InfrastructureError, match=r"git://127.0.0.1:\d+/demo cannot be reached"):
        repository.resolve("feature")


def test_the_origin_of_a_clone_is_that_of_its_worktrees_and_of_a_bare_one(
    tmp_path: Path, cache: Path
) -> None:
    write(tmp_path / "demo", pure("demo", 2, 2))
    git(tmp_path / "demo", "remote", "add", "origin", "https://ann:word@forge.example.org/ann/demo")
    git(tmp_path / "demo", "worktree", "add", "--quiet", str(tmp_path / "linked"), "v1.0")
    git(tmp_path, "clone", "--quiet", "--bare", "demo", "bare")
    git(tmp_path / "bare", "remote", "set-url", "origin", "git@forge.example.org:ann/demo")
    for folder in ("demo", "linked"):
        origin = Repository(str(tmp_path / folder), cache).forge()
        assert origin.endswith("forge.example.org/ann/demo")
        assert "word" not in origin
    assert Repository(str(tmp_path / "bare"), cache).forge() == "git@forge.example.org:ann/demo"
    git(tmp_path / "demo", "remote", "remove", "origin")
    assert Repository(str(tmp_path / "demo"), cache).forge() == ""


def test_a_tag_named_like_a_day_is_the_tag(tmp_path: Path, cache: Path) -> None:
    commits = write(tmp_path / "demo", pure("demo", 8, 5))
    git(tmp_path / "demo", "tag", "2024-01-01", commits[1])
    assert Repository(str(tmp_path / "demo"), cache).resolve("2024-01-01") == [commits[1]]


def test_a_shallow_clone_that_was_completed_is_read_completely(tmp_path: Path, cache: Path) -> None:
    commits = write(tmp_path / "demo", pure("demo", 4, 2))
    git(tmp_path, "clone", "--quiet", "--depth", "2", f"file://{tmp_path / 'demo'}", "shallow")
    repository = Repository(str(tmp_path / "shallow"), cache)
    with pytest.raises(CommitNotFoundError, match="git fetch --unshallow"):
        repository.history("v1.0", "HEAD")
    git(tmp_path / "shallow", "fetch", "--quiet", "--unshallow", "--tags")
    assert repository.history("v1.0", "HEAD").line == tuple(commits)


def test_no_password_in_what_git_says_is_told(tmp_path: Path, cache: Path, monkeypatch) -> None:
    failing = tmp_path / "bin" / "git"
    failing.parent.mkdir()
    says = "fatal: from http://me:hunter2@one/ to http://me:hunter2@two/"
    case = f'case "$*" in *" fetch "*) echo {says} >&2; exit 128;; esac'
    failing.write_text(f'#!/bin/sh\n{case}\nexec {shutil.which("git")} "$@"\n')
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{failing.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(InfrastructureError) as caught:
        Repository("https://host.invalid/x.git", cache).resolve("main")
    assert "http://me:***@two/" in str(caught.value)
    assert "hunter2" not in str(caught.value)

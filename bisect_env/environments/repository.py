"""Mirrors git repositories in the cache, and reads them without running any code from them.

The user's own clone is only read. A mirror has no hooks, no foreign configuration and no work tree. Filters
named in `.gitattributes` do not run either, because no filter is configured in a mirror.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from bisect_env.environments.cache import hold, lock_file
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.history import SHORT, Commit, CommitDetails, History
from bisect_env.running import Finished, run_tool
from bisect_env.secrets import passed_on, without_credentials, without_passwords
from bisect_env.temporary import lock_holder, remove_tree

_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}(T\S+)?")
_FETCH_TIMEOUT = 3600.0
_READ_TIMEOUT = 600.0
PATIENCE = _FETCH_TIMEOUT + 60
"""Time, in seconds, to wait for another process that fetches the same repository."""
_REFS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*", "+refs/remotes/*:refs/remotes/*")
# Settings for every git command. They override the repository's configuration, which could run commands.
_FIRM = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.autocrlf": "false",
    "protocol.ext.allow": "never",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
    "submodule.recurse": "false",
    "safe.directory": "*",
}
# Variables of the user that git may need to reach a repository.
_TRANSPORT = ("SSH_AUTH_SOCK", "GIT_SSH_COMMAND", "GIT_SSH", "GIT_ASKPASS", "SSH_ASKPASS", "GIT_SSL_CAINFO")


class CommitNotFoundError(UsageError):
    """The error raised if a repository has no commit with the given name, hash or date."""


class Repository:
    """A git repository, which is read from a mirror (a local copy) in the cache.

    Args:
        source: URL of the repository, or absolute path of a local clone.
        cache: The cache directory of bisect-env.
    """

    def __init__(self, source: str, cache: Path) -> None:
        self.source = source
        name = hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:24]
        self.mirror = cache / "git" / f"{name}.git"
        self._lock = cache / "git" / f".{name}.lock"

    @property
    def shown(self) -> str:
        """Return the URL (without a password) or path of the repository, for messages."""
        return without_credentials(self.source) if "://" in self.source else self.source

    # -- what is there --------------------------------------------------------------------------------------

    def has(self, commit: str) -> bool:
        """Return whether the mirror contains the commit with the given full hash."""
        if not self.mirror.is_dir():
            return False
        return self._git("cat-file", "-e", f"{commit}^{{commit}}").returncode == 0

    def update(self) -> None:
        """Fetch all branches and tags into the mirror, which is created if it does not exist.

        Raises:
            UsageError: The repository is a path that does not exist or is not a git repository.
            InfrastructureError: The repository cannot be reached, git is not installed, or another process
                has been fetching the repository for longer than a fetch may take.
        """
        self.mirror.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_path = "://" not in self.source
        if is_path and not Path(self.source).is_dir():
            raise UsageError(f"there is no repository {self.source}", remedy="correct the path")
        with lock_file(self._lock, exclusive=True, timeout=PATIENCE) as fd:
            if fd is None:
                raise InfrastructureError(
                    f"another process has been fetching {self.shown} for {PATIENCE:.0f} s "
                    f"({lock_holder(self._lock)})",
                    remedy="end that process, then give the same command again",
                )
            if not self.mirror.is_dir():
                self._make(is_path=is_path)
            # The clone may have had the missing commits fetched since the mirror was made from it.
            whole = ["--unshallow"] if (self.mirror / "shallow").exists() else []
            finished = self._fetched("--prune", *whole, self.source, *_REFS)
            if finished.returncode != 0 or finished.timed_out:
                raise self._unreachable(finished)
            os.utime(self.mirror)
        head = self._run("ls-remote", "--symref", self.source, "HEAD", transport=True)
        if found := re.search(r"^ref: (refs/\S+)\tHEAD$", head.stdout, re.MULTILINE):
            self._git("symbolic-ref", "HEAD", found[1])
        elif found := re.search(r"^([0-9a-f]{40,64})\tHEAD$", head.stdout, re.MULTILINE):
            self._git("update-ref", "--no-deref", "HEAD", found[1])

    def resolve(self, *texts: str) -> list[str]:
        """Return the full hashes of the commits with the given names, hashes or dates.

        The repository is fetched first, unless all texts are full hashes that the mirror already has.

        Args:
            texts: Tags, branches, hashes or dates (`2025-03-01`, the last commit of that day).

        Raises:
            CommitNotFoundError: A text names no commit.
            InfrastructureError: The repository cannot be reached, and the mirror does not know all texts.
        """
        if all(_HASH.fullmatch(text) and self.has(text) for text in texts):
            return list(texts)
        try:
            self.update()
        except InfrastructureError:
            # The network is unreachable. Go on with the mirror if it knows all texts.
            if not self.mirror.is_dir() or not all(self._resolved(text) for text in texts):
                raise
        found = []
        for text in texts:
            commit = self._resolved(text)
            if commit is None and _HASH.fullmatch(text) and self.mirror.is_dir():
                self._fetched(self.source, text)
                commit = self._resolved(text)
            if commit is None:
                raise self._unknown(text)
            found.append(commit)
        return found

    def history(self, first: str, last: str, *, every: bool = False) -> History:
        """Return the commits after `first` up to `last`; see `VersionCatalogue.commits`."""
        old, new = self.resolve(first, last)
        args = ["log", "--format=%H%x00%P%x00%s", "--no-show-signature"]
        args += [] if every else ["--first-parent"]
        text = self._read(*args, new, f"^{old}", "--")
        commits: dict[str, Commit] = {}
        for line in text.split("\n"):
            if line:
                commit, parents, subject = line.split("\0", 2)
                commits[commit] = Commit(tuple(parents.split()), subject)
        if not commits and old == new:
            raise UsageError(
                f"{self.shown}: no commit lies between {first} and {last}, which are both {old[:SHORT]}",
                remedy="name two that differ",
            )
        if not commits:
            raise UsageError(
                f"{self.shown}: no commit lies between {first} and {last}",
                remedy="swap them: the older one comes first",
            )
        begin = old
        if self._git("merge-base", "--is-ancestor", old, new).returncode != 0:
            # The older commit is on another branch, as tags of releases often are. Start at the fork point.
            line_ = History(old, new, commits).line
            oldest = line_[1]
            if not commits[oldest].parents:
                raise UsageError(
                    f"{self.shown}: {first} and {last} have no commit in common",
                    remedy="name an older end from which the newer one was made",
                )
            begin = commits[oldest].parents[0]
        subject = self._read("log", "-1", "--format=%s", "--no-show-signature", begin, "--").rstrip("\n")
        return History(begin, new, commits, every, subject)

    def details(self, commit: str) -> CommitDetails:
        """Return the details of a commit, such as author, dates and changed files."""
        form = "--format=%an%x00%aI%x00%cI%x00%s%x00%P"
        author, authored, committed, subject, parents = (
            self._read("log", "-1", form, "--no-show-signature", "--no-mailmap", commit, "--")
            .rstrip("\n")
            .split("\0")
        )
        changed: list[tuple[str, int | None, int | None]] = []
        base = parents.split()[0] if parents else _EMPTY_TREE
        args = ("diff-tree", "-r", "-z", "--numstat", "--no-renames", "--no-ext-diff", "--no-textconv")
        for entry in self._read(*args, base, commit, "--").split("\0"):
            if entry:
                added, removed, path = entry.split("\t", 2)
                changed.append((path, _number(added), _number(removed)))
        tags = self._read("tag", "--points-at", commit).split("\n")
        return CommitDetails(
            commit,
            author,
            datetime.fromisoformat(authored),
            datetime.fromisoformat(committed),
            subject,
            tuple(parents.split()),
            tuple(changed),
            tuple(tag for tag in tags if tag),
        )

    def committed(self, commit: str) -> datetime:
        """Return the committer date of a commit, in UTC."""
        text = self._read("log", "-1", "--format=%ct", "--no-show-signature", commit, "--").strip()
        return datetime.fromtimestamp(int(text), UTC)

    def forge(self) -> str:
        """Return the web address of the repository, or of the origin of a local clone."""
        if "://" in self.source:
            return self.shown
        args = ("-C", self.source, "config", "--local", "--no-includes", "--get", "remote.origin.url")
        found = self._run(*args).stdout.strip()
        return without_credentials(found) if "://" in found else found

    def tags(self) -> list[str]:
        """Return the names of all tags."""
        text = self._read("for-each-ref", "--format=%(refname:strip=2)", "refs/tags")
        return [name for name in text.split("\n") if name]

    def file(self, commit: str, path: str) -> str | None:
        """Return the text of the file `path` in a commit, or None if the commit has no such file."""
        finished = self._git("cat-file", "blob", f"{commit}:{path}")
        return finished.stdout if finished.returncode == 0 else None

    def folders_with(self, commit: str, names: Collection[str]) -> list[str]:
        """Return the subdirectories of a commit that contain a file with one of the given names.

        Directories with fewer path components come first. The root directory is left out.
        """
        paths = [path.rpartition("/") for _, path in self._tree(commit)]
        found = {folder for folder, _, name in paths if name in names}
        return sorted(found - {""}, key=lambda folder: (folder.count("/"), folder))

    def submodules(self, commit: str) -> list[str]:
        """Return the paths of submodules in a commit."""
        return [path for facts, path in self._tree(commit) if facts.startswith("160000 ")]

    def _tree(self, commit: str) -> Iterator[tuple[str, str]]:
        """Yield (description, path) of every file in a commit. The description begins with its mode."""
        for entry in self._read("ls-tree", "-r", "-z", "--full-tree", commit).split("\0"):
            facts, _, path = entry.partition("\t")
            yield facts, path

    # -- the files of a commit ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def checked_out(self, commit: str, folder: Path) -> Iterator[Path]:
        """Check out a commit in a temporary clone, and yield the path of the clone.

        The clone is removed at the end of the `with` block.

        It is a clone, so that builds which derive their version from git tags work. It is cloned from the
        mirror, so that no hooks or filters run.

        Args:
            commit: Full hash of a commit in the mirror.
            folder: Directory in which the clone is created, as `source`.

        Raises:
            InfrastructureError: git failed to create the clone.
        """
        place = folder / "source"
        # The clone reads its objects from the mirror, so the mirror must not be removed meanwhile.
        lease = hold(self.mirror)
        try:
            args = ("clone", "--quiet", "--shared", "--no-checkout", "--template=", self.mirror, place)
            self._check(self._run(*args))
            self._check(self._run("-C", place, "checkout", "--quiet", "--force", "--detach", commit))
            yield place
        finally:
            remove_tree(place)
            lease.release()

    def pointers(self, place: Path) -> list[str]:
        """Return the files of a checkout that are git-lfs pointers instead of content."""
        marked = self._run("-C", place, "ls-files", "-z", "--", ":(attr:filter=lfs)").stdout
        return [path for path in marked.split("\0") if path and _is_pointer(place / path)]

    # -- running git ----------------------------------------------------------------------------------------

    def _make(self, *, is_path: bool) -> None:
        beside = self.mirror.with_name(f".new-{self.mirror.name}-{secrets.token_hex(4)}")
        try:
            if is_path:
                # git hardlinks the objects of a local clone if possible, so this is fast and takes no space.
                args = ("clone", "--quiet", "--mirror", "--template=", self.source, beside)
                finished = self._run(*args, transport=True)
            else:
                finished = self._run("init", "--quiet", "--bare", "--template=", beside)
            if finished.returncode != 0 or finished.timed_out:
                raise self._unreachable(finished)
            beside.rename(self.mirror)
        finally:
            remove_tree(beside)

    def _resolved(self, text: str) -> str | None:
        names = [f"refs/tags/{text}", f"refs/heads/{text}", f"refs/remotes/{text}"]
        names += [f"refs/remotes/origin/{text}", text]
        for name in names:
            finished = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
            if finished.returncode == 0:
                return finished.stdout.strip()
        if not _DAY.fullmatch(text):
            return None
        day = text if "T" in text else f"{text}T23:59:59Z"
        finished = self._git("rev-list", "-1", "--first-parent", f"--before={day}", "HEAD", "--")
        return finished.stdout.strip() or None

    def _read(self, *args: str) -> str:
        return self._check(self._git(*args))

    def _check(self, finished: Finished) -> str:
        if finished.returncode != 0 or finished.timed_out:
            raise InfrastructureError(
                f"git cannot read {self.shown}: {_words(finished)}",
                remedy=f"if it stays so, remove {self.mirror} and give the same command again",
            )
        return finished.stdout

    def _git(self, *args: str) -> Finished:
        return self._run("--git-dir", self.mirror, *args)

    def _fetched(self, *args: str) -> Finished:
        own = ("--git-dir", self.mirror, "fetch", "--quiet", "--no-tags")
        return self._run(*own, *args, transport=True)

    def _run(self, *args: str | Path, transport: bool = False) -> Finished:
        env = _environment(os.environ, transport=transport)
        firm = [word for name, value in _FIRM.items() for word in ("-c", f"{name}={value}")]
        argv = ["git", "--no-pager", *firm, *args]
        try:
            return run_tool(
                argv,
                env=env,
                cwd=Path("/"),
                timeout=_FETCH_TIMEOUT if transport else _READ_TIMEOUT,
                keep=None,
            )
        except FileNotFoundError:
            raise InfrastructureError(
                "git is not on this host, and commits are read with it", remedy="install git"
            ) from None

    def _unknown(self, text: str) -> CommitNotFoundError:
        if _DAY.fullmatch(text):
            oldest = self._read(
                "log", "--first-parent", "--format=%cs", "--no-show-signature", "HEAD", "--"
            ).split()
            return CommitNotFoundError(
                f"{self.shown} has no commit that is as old as {text}",
                remedy=f"name a day from {oldest[-1]} on" if oldest else "name a commit",
            )
        form = "--format=%(refname:strip=2)"
        names = self._read("for-each-ref", "--sort=-creatordate", form, "refs/tags", "refs/heads").split("\n")
        remedy = "name a tag, a branch, a full hash or a day that it has"
        if near := difflib.get_close_matches(text, names, 3) or [name for name in names if name][:3]:
            remedy += f", such as {', '.join(near)}"
        if (self.mirror / "shallow").exists():
            remedy += (
                "; it is a shallow clone, which lacks older ones: `git fetch --unshallow --tags` has it all"
            )
        return CommitNotFoundError(f"{self.shown} has no commit {text}", remedy=remedy)

    def _unreachable(self, finished: Finished) -> InfrastructureError | UsageError:
        words = "took too long" if finished.timed_out else _words(finished)
        if "://" not in self.source and re.search("not a git repository|does not exist", words):
            return UsageError(f"{self.source} is no git repository", remedy="correct the path")
        return InfrastructureError(
            f"the repository {self.shown} cannot be reached: {words}",
            remedy="check its address, the network and credentials (git asks for none), then try again",
        )


_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def _environment(outer: Mapping[str, str], *, transport: bool) -> dict[str, str]:
    """Return the environment variables for a git command.

    Args:
        outer: Environment of this process.
        transport: Whether the command contacts the repository. It then gets the user's git configuration and
            credentials; other commands get neither.
    """
    env = passed_on(outer)
    env |= {name: outer[name] for name in ("PATH", "TMPDIR") if name in outer}
    env |= {
        "LC_ALL": "C.UTF-8",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_ATTR_NOSYSTEM": "1",
    }
    if transport:
        env |= {name: outer[name] for name in _TRANSPORT if name in outer}
        env |= {name: outer[name] for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM") if name in outer}
        env.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
    else:
        env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_NO_LAZY_FETCH": "1"}
    return env


def _words(finished: Finished) -> str:
    lines = [line.removeprefix("fatal: ").strip() for line in finished.stderr.splitlines() if line.strip()]
    return without_passwords("; ".join(lines[-3:])) if lines else f"git ended with {finished.returncode}"


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _is_pointer(path: Path) -> bool:
    try:
        if path.is_symlink() or path.stat().st_size > 1024:
            return False
        return path.read_bytes().startswith(b"version https://git-lfs.github.com/spec/")
    except OSError:
        return False  # a path that the checkout does not contain

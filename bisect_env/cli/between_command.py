"""`bisect-env between` and `diff`: what differs between two environments, and which package broke one."""

from __future__ import annotations

import dataclasses
import json
import string
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bisect_env.answers.explanation import Explanation
from bisect_env.answers.untrusted import clean
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.cli import views
from bisect_env.cli.asking import (
    Flags,
    SaveOption,
    TrialFlags,
    asked_command,
    devices,
    kept,
    own_words,
)
from bisect_env.cli.explain_command import find_culprits
from bisect_env.cli.grouping import with_groups
from bisect_env.cli.options import CacheOption, DatabaseOption, ExecutionOptions, JsonOption, StudyOption
from bisect_env.cli.output import deliver, say
from bisect_env.cli.places import open_place
from bisect_env.cli.run_command import answer, lacked
from bisect_env.cli.signals import stop_on_signals
from bisect_env.cli.views import ShownOptions, View, log_event, start_log
from bisect_env.engine import events
from bisect_env.engine.between import (
    Ends,
    lock_ends,
    moving_packages,
    no_environment,
    other_archives,
    read_ends,
    record,
    stored_environment,
    surroundings,
    withdrawn,
)
from bisect_env.engine.between import answer as whole_answer
from bisect_env.engine.locking import Locking
from bisect_env.engine.missing import MissingModules
from bisect_env.engine.opening import expand_as_known
from bisect_env.engine.stored import stored_combination
from bisect_env.engine.study import Conclusion
from bisect_env.environments.difference import PackageChange, PackageState, counted, difference, project_urls
from bisect_env.environments.lock import Lock, UnsolvableError
from bisect_env.environments.lockfiles import read_lock
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import ExitCode, NoEnvironmentError, UsageError
from bisect_env.matrix.ask import BAD, ENVIRONMENT, GOOD, Pair, pair_text, releases_text
from bisect_env.matrix.load import Matrix, load_matrix
from bisect_env.report.build import report_document
from bisect_env.report.text import print_report
from bisect_env.storage.entries import Study
from bisect_env.storage.store import Store

SideOption = Annotated[
    str | None,
    typer.Option(help="Instead of the first two words: a lock, a list, a directory, or STUDY:COMBINATION."),
]


@with_groups()
def between(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GOOD BAD -- COMMAND",
            help="The environment that works, the one that fails (lock files, `pip freeze`, directories, "
            "STUDY:COMBINATION), and what fails in it.",
            show_default=False,
        ),
    ] = None,
    *,
    good: SideOption = None,
    bad: SideOption = None,
    python: Annotated[str, typer.Option("--python", help="Python of both, if the files state none.")] = "",
    flags: TrialFlags,
    no_versions: Annotated[
        bool, typer.Option("--no-versions", help="Stop at the package; do not bisect its releases.")
    ] = False,
    no_hashes: Annotated[
        bool, typer.Option("--no-hashes", help="Go on where an archive is not the one that a lock states.")
    ] = False,
    allow_source: Annotated[
        bool, typer.Option("--allow-source", help="Build packages that have no wheel.")
    ] = False,
    channel: Annotated[
        list[str] | None, typer.Option("--channel", "-c", help="conda channels, where the files name none.")
    ] = None,
    save: SaveOption = None,
    db: DatabaseOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Find which package change between two environments broke a command, and its first bad release.

    `bisect-env between green.lock red.lock -- pytest -x tests/test_io.py` makes both environments again,
    shows that one fails, finds the smallest set of changes that carries the failure, and bisects the releases
    of the culprit. Ends with 0 if the answer reaches the confidence. The same command goes on after an
    interruption.
    """
    words = list(words or ())
    sides = [good, bad]
    for i, side in enumerate(sides):
        sides[i] = side if side is not None or not words else words.pop(0)
    if sides[0] is None or sides[1] is None:
        raise UsageError(
            "two environments are needed: one that works, and one that fails",
            remedy="bisect-env between green.lock red.lock -- COMMAND, or with --good and --bad",
        )
    asked = Flags(**asdict(flags), words=words, gpus=where.gpus, packages=[""])
    start_log("between", shown)
    question, travelling = asked_command(asked, words)

    def stored(text: str) -> Any:
        if ":" not in text or Path(text).exists():
            return None
        with Store.open(db, read_only=True) as store:
            return stored_environment(store, text)

    ends = read_ends(sides[0], sides[1], python=python, stored=stored)
    if not shown.quiet:
        for one in (ends.good, ends.bad):
            say(one.summary(), sys.stderr)
    for note in ends.notes:
        say(f"note: {note}", sys.stderr)

    wholes = ends.wholes
    pair = Pair(
        wholes[0], wholes[1], question, tuple(channel or ()) or ends.channels, allow_source=allow_source
    )
    session = _Comparison(
        ends,
        pair,
        travelling,
        replace(where, gpus=devices(asked)),
        db,
        shown,
    )
    session.run(save, versions=not no_versions, hashes=not no_hashes)


class _Comparison:
    """One `between`: three studies in one database, and the place where they run."""

    def __init__(
        self,
        ends: Ends,
        pair: Pair,
        files: dict[str, Path],
        where: ExecutionOptions,
        db: str | None,
        shown: ShownOptions,
    ) -> None:
        self.ends, self.pair, self.files, self.where, self.db = ends, pair, files, where, db
        self.as_json, self.quiet = shown.as_json, shown.quiet or shown.as_json
        self.stopped: threading.Event = stop_on_signals()

    def run(self, save: Path | None, *, versions: bool, hashes: bool) -> None:

        matrix = self._matrix(save, hashes=hashes)
        conclusion = self._study(
            matrix, "both environments are tried", MissingModules((), {ENVIRONMENT: (GOOD, BAD)})
        )
        verdict = VerdictDocument.model_validate(conclusion.report["verdict"])
        if not verdict.first_bad or not verdict.is_decided:
            self._show(conclusion.report)
            raise typer.Exit(int(conclusion.exit_code))
        explanation, study = self._explain(matrix)
        document, releases, why_not = None, None, ""
        if versions:
            said = [f"{one['detail']}\n{one['stack']}" for one in conclusion.report["failures"]]
            found = self._releases(explanation, "\n".join(said))
            if isinstance(found, str):
                why_not = found
            else:
                document, releases = found
        own = None if document is None else VerdictDocument.model_validate(document["verdict"])
        sentence = whole_answer(explanation, own, why_not)
        with Store.open(self.db) as store:
            record(store, study, sentence, releases, "" if own is None else own.sentence)
            report = report_document(store, study.id)
        self._show(report)
        sure = explanation.is_sure and (not versions or own is None or own.first_bad is not None)
        raise typer.Exit(int(ExitCode.VERDICT if sure else ExitCode.NO_VERDICT))

    def _show(self, document: dict[str, Any]) -> None:

        if self.as_json:
            say(json.dumps(document))
        else:
            print_report(document)

    # -- the pair ------------------------------------------------------------------------------------------

    def _matrix(self, save: Path | None, *, hashes: bool) -> Matrix:
        """Return the matrix of both ends, each of which can be made again."""
        problems: dict[str, str] = {}
        for dependencies in ("resolve", "none"):
            pair = replace(self.pair, dependencies=dependencies)
            text = pair_text(pair, command_line=own_words())
            matrix = load_matrix(kept(text, self.files, None, quiet=True))
            place, provider = open_place(self.where, matrix)
            with closing(place):
                self._say("solving both environments")
                locks = lock_ends(matrix, provider)
                found = {n: one.message for n, one in locks.items() if isinstance(one, UnsolvableError)}
                if found:
                    problems = problems or found
                    continue
                others = other_archives(self.ends, locks) if hashes else []
            if others:
                shown = "\n".join(others[:5])
                raise NoEnvironmentError(
                    f"{len(others)} packages have other archives than the locks state: what is built "
                    "would not be what was locked",
                    tried=shown,
                    remedy="if that is well (another index, a file that was built again), add `--no-hashes`",
                )
            if dependencies == "none":
                why = next(iter(problems.values())).partition("\n")[0]
                say(
                    "warning: packages of these environments contradict each other, so that their metadata "
                    f"are not asked: {why}",
                    sys.stderr,
                )
            self.pair = pair
            return load_matrix(kept(text, self.files, save, quiet=self.quiet))
        raise no_environment(self.ends, problems)

    # -- the studies ---------------------------------------------------------------------------------------

    def _study(self, matrix: Matrix, what: str, missing: MissingModules | None = None) -> Conclusion:

        self._say(what)
        view: View = views.choose(as_json=False, quiet=self.quiet, plain=True)

        def notify(event: events.Event) -> None:
            if isinstance(event, events.Failed) and missing is not None and lacked(missing, event.exit_code):
                return  # said in words of its own
            log_event(event)
            view(event)
            if missing is not None:
                missing.on_event(event)

        return answer(
            matrix,
            where=self.where,
            db=self.db,
            view=view,
            notify=notify,
            stopped=self.stopped,
            lockfiles=matrix.path.absolute().parent / "lockfiles",
            missing=missing,
        )

    def _explain(self, matrix: Matrix) -> tuple[Explanation, Study]:

        self._say("finding the smallest set of changes that carries the failure")
        with Store.open(self.db) as store:
            found = store.find_study(matrix.name, matrix.digest)
            assert found is not None
            explanation = find_culprits(
                matrix, found, store, self.where, stopped=self.stopped, quiet=self.quiet
            )
            return explanation, found

    def _releases(self, explanation: Explanation, failure: str) -> tuple[dict[str, Any], Study] | str:
        """Return the report over the culprit's releases and its study, or why there is none.

        Args:
            explanation: What carries the failure.
            failure: What failing trials said.
        """
        place, provider = open_place(
            self.where, load_matrix(kept(self._text(), self.files, None, quiet=True))
        )
        place.close()
        moving = moving_packages(explanation, self.pair, withdrawn(provider), failure)
        if isinstance(moving, str):
            return moving
        for what, rest in surroundings(explanation, self.pair, moving):
            path = kept(releases_text(moving, rest, self.pair), self.files, None, quiet=True)
            matrix = load_matrix(path)
            with Store.open(self.db) as store:
                grid = expand_as_known(matrix, store, provider).grid
            ends = [end for end in (grid.good, grid.bad) if end is not None]
            with closing(Locking(matrix, grid, provider)) as locking:
                locking.lock_every(ends)
            if not locking.prepared.unsolvable.keys() & set(ends):
                names = " and ".join(one.name for one in moving)
                conclusion = self._study(matrix, f"bisecting the releases of {names}, {what}")
                with Store.open(self.db) as store:
                    study = store.find_study(matrix.name, matrix.digest)
                assert study is not None
                return conclusion.report, study
        return "no environment holds its releases beside the other packages"

    def _text(self) -> str:

        return pair_text(self.pair)

    def _say(self, text: str) -> None:
        if not self.quiet:
            say(text, sys.stderr)


# --------------------------------------------------------------------------------------------------
# `bisect-env diff`: which packages differ between two environments.

_HASH_DIGITS = 8
_WORDS = {"rebuilt": "same version, another archive", "moved": "same archive, another place"}


def diff(
    before: Annotated[
        str, typer.Argument(help="A combination (torch=2.2,cuml=24.04), a lock file, or a lock's hash.")
    ] = "last-good",
    after: Annotated[str, typer.Argument(help="The other one.")] = "first-bad",
    study: StudyOption = None,
    db: DatabaseOption = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """List packages added, removed and changed between two combinations.

    By default from the last good to the first bad one. Packages that axes move come first; pages of
    projects are shown for environments that exist here.
    """
    (old_name, old), (new_name, new), axes = _sides(before, after, study, db)
    places = (cache or default_cache_dir()) / "prefixes"
    urls = project_urls(places / lock.content_hash for lock in (new, old))
    changes = difference(old, new, axes, urls)
    if as_json:
        document = {
            "schema": 1,
            "before": {"name": old_name, "lock": old.content_hash},
            "after": {"name": new_name, "lock": new.content_hash},
            "changes": [dataclasses.asdict(change) for change in changes],
        }
        deliver(json.dumps(document, indent=2) + "\n", None)
    else:
        deliver(_text(old_name, new_name, changes), None)


def _sides(
    before: str, after: str, reference: str | None, db: str | None
) -> tuple[tuple[str, Lock], tuple[str, Lock], Sequence[str]]:

    files = [Path(side) if side.endswith((".yml", ".yaml")) else None for side in (before, after)]
    if files[0] is not None and files[1] is not None:
        return (before, read_lock(files[0])), (after, read_lock(files[1])), ()
    with Store.open(db, read_only=True) as store:
        found = store.study(reference)
        sides = [
            (side, read_lock(file)) if file is not None else _stored(store, found, side)
            for side, file in zip((before, after), files, strict=True)
        ]
        return sides[0], sides[1], found.definition.packages


def _stored(store: Store, study: Study, side: str) -> tuple[str, Lock]:

    if len(side) >= _HASH_DIGITS and set(side) <= set(string.hexdigits):
        hashes = {s.lock_hash for s in store.combinations(study.id) if s.lock_hash}
        matching = [known for known in hashes if known.startswith(side.lower())]
        lock = store.lock(matching[0]) if len(matching) == 1 else None
        if lock is None:
            raise UsageError(
                f"no lock of the study {study.name} has a hash that begins with {side}",
                remedy="`bisect-env report --format json` lists each combination with its lock",
            )
        return lock.content_hash[:12], lock
    one = stored_combination(store, study, side)
    return str(one.combination), one.lock


def _text(before: str, after: str, changes: Sequence[PackageChange]) -> str:

    rows = [
        [clean(cell) for cell in (_SIGNS[c.kind], c.name, _cell(c.before), _cell(c.after), _note(c))]
        for c in changes
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    lines = [f"from {clean(before)}", f"to   {clean(after)}", counted(changes), ""]
    split = sum(change.of_axis for change in changes)
    for position, row in enumerate(rows):
        if 0 < split == position:
            lines.append("")
        padded = [f"{cell:<{width}}" for cell, width in zip(row, [*widths, 0], strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines).rstrip("\n") + "\n"


_SIGNS = {"added": "+", "removed": "-", "changed": "~", "rebuilt": "≈", "moved": "→"}


def _cell(state: PackageState | None) -> str:
    return "—" if state is None else state.label


def _note(change: PackageChange) -> str:
    """Return what versions do not show: another source, other archives, and the project's page."""
    parts = []
    old, new = change.before, change.after
    if old is not None and new is not None:
        if old.manager != new.manager:
            parts.append(f"{old.manager or 'interpreter'} → {new.manager or 'interpreter'}")
        if old.source != new.source:
            parts.append(f"{old.source} → {new.source}")
        elif change.kind in _WORDS:
            parts.append(f"{_WORDS[change.kind]} ({old.sha256[:12]} → {new.sha256[:12]})")
    elif (one := new or old) is not None and one.source:
        parts.append(one.source)
    return "  ".join([*parts, change.home] if change.home else parts)

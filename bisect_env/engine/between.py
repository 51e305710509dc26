"""Finds the release that broke one of two environments, of which the other works.

Three studies, one after the other: both ends are made again and tried; the smallest set of package changes
that carries the failure is found (see `explain`); and the releases of what carries it are bisected, with
everything else as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from packaging.utils import canonicalize_name

from bisect_env.answers.chapters import TracedReport
from bisect_env.answers.explanation import Explanation
from bisect_env.answers.phrases import probability
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.engine.explain import ABSENT
from bisect_env.engine.locking import Locking
from bisect_env.engine.stored import refuse_local, stored_combination
from bisect_env.environments.foreign import (
    ForeignEnvironment,
    environment_of_lock,
    fitting_python,
    read_environment,
)
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.errors import NoEnvironmentError, UsageError
from bisect_env.matrix.ask import BAD, ENVIRONMENT, GOOD, Moving, Pair
from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import WholeEnvironment
from bisect_env.matrix.versions import Manager, host_platform
from bisect_env.storage.entries import TRACED, Study
from bisect_env.storage.store import Store

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Ends:
    """Two environments that can be compared.

    Attributes:
        good: The one that works.
        bad: The one that fails.
        python: Minor version of Python on either side, where no conda package brings it.
        notes: What should be known of them, in sentences.
    """

    good: ForeignEnvironment
    bad: ForeignEnvironment
    python: tuple[str, str]
    notes: tuple[str, ...]

    @property
    def wholes(self) -> tuple[WholeEnvironment, WholeEnvironment]:
        """Return both environments in the form of a matrix."""
        return _whole(self.good, self.python[0]), _whole(self.bad, self.python[1])

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the channels of both, the bad one's first; conda-forge if conda packages have none."""
        found = tuple(dict.fromkeys((*self.bad.channels, *self.good.channels)))
        return found or (("conda-forge",) if self.good.uses_conda else ())

    def changed(self) -> int:
        """Return how many packages differ between both ends."""
        good, bad = (
            {p.name: (p.manager, p.version, p.build) for p in e.packages} for e in (self.good, self.bad)
        )
        return sum(good.get(name) != bad.get(name) for name in good.keys() | bad.keys())


def read_ends(
    good: str, bad: str, *, python: str = "", stored: Callable[[str], ForeignEnvironment | None]
) -> Ends:
    """Read two environments, and determine their Python version.

    Args:
        good: A file, a directory, or a study's combination (`STUDY:last-good`).
        bad: The same.
        python: What the user says; "" for what they state.
        stored: Looks a study's combination up; None where it is none.

    Raises:
        UsageError: One cannot be read, or they cannot be compared.
    """

    def read(source: str, wanted: str) -> ForeignEnvironment:
        return stored(source) or read_environment(source, python=wanted)

    first = read(good, python), read(bad, python)
    stated = [_minor(one.python) for one in first]
    known = [one for one in stated if one]
    default = python or (known[0] if known else fitting_python([one.requires_python for one in first]))
    if not default:
        ranges = " and ".join(f"{one.source} ({one.requires_python})" for one in first)
        raise UsageError(f"no Python is for both {ranges}", remedy="name one with `--python`")
    pythons = (python or stated[0] or default, python or stated[1] or default)
    # Markers of the one that states no Python are those of the other's.
    sides = read(good, pythons[0]), read(bad, pythons[1])
    ends = Ends(sides[0], sides[1], (pythons[0], pythons[1]), tuple(_notes(*sides, pythons)))
    _comparable(ends)
    return ends


def stored_environment(store: Store, text: str) -> ForeignEnvironment | None:
    """Return the environment of a study's combination, such as `quickstart:last-good`.

    Args:
        store: Where studies are.
        text: As the user wrote it.

    Returns:
        None where the text names no study.

    Raises:
        UsageError: The study has no such combination, or no environment for it.
    """
    reference, colon, at = text.partition(":")
    if not colon or not at or "/" in reference:
        return None
    try:
        study = store.study(reference)
    except UsageError:
        return None
    one = stored_combination(store, study, at)
    refuse_local(one)
    return environment_of_lock(one.lock, text)


def _notes(good: ForeignEnvironment, bad: ForeignEnvironment, pythons: tuple[str, str]) -> Sequence[str]:
    notes = [f"{one.source}: {note}" for one in (good, bad) for note in one.notes]
    for one in (good, bad):
        named = [f"{left.name} ({left.why})" for left in one.left_out if "not for this" not in left.why]
        if named:
            more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
            notes.append(f"{one.source}: left out: {', '.join(named[:_SHOWN])}{more}")
    patches = [one.python for one in (good, bad)]
    if not good.uses_conda and all(patches) and patches[0] != patches[1] and pythons[0] == pythons[1]:
        notes.append(
            f"Python {patches[0]} and {patches[1]}: both are made with the newest {pythons[0]} that is here"
        )
    return notes


def _comparable(ends: Ends) -> None:
    """Raise an error for two ends that cannot be compared.

    Raises:
        UsageError: In words that name the remedy.
    """
    here = host_platform()
    for one in (ends.good, ends.bad):
        if one.platform and one.platform != here:
            raise UsageError(
                f"{one.source}: it is for {one.platform}, and this is {here}",
                remedy="give the command on a machine of that platform, or lock it for this one",
            )
        if not one.packages:
            raise UsageError(
                f"{one.source}: every package is left out",
                remedy="name an environment with packages of an index",
            )
    if ends.good.uses_conda != ends.bad.uses_conda:
        conda, wheels = sorted((ends.good, ends.bad), key=lambda one: not one.uses_conda)
        raise UsageError(
            f"{conda.source} is of conda packages ({conda.format}), and {wheels.source} of wheels alone "
            f"({wheels.format}): no environment lies between them",
            remedy="compare two of one kind",
        )
    if ends.python[0] == ends.python[1] and not ends.changed():
        raise UsageError(
            f"{ends.good.source} and {ends.bad.source} hold the same packages",
            tried=f"comparing {len(ends.good.packages)} packages",
            remedy="what broke is not in them: look at the code, the data, the machine; if local packages "
            "were left out, compare those",
        )


def _whole(environment: ForeignEnvironment, python: str) -> WholeEnvironment:
    conda = tuple(p.spec for p in environment.packages if p.manager == "conda")
    pypi = tuple(p.spec for p in environment.of("pip"))
    return WholeEnvironment.model_construct(python=None if conda else python or None, pypi=pypi, conda=conda)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


# -- both ends, before anything is tried -------------------------------------------------------------------


def lock_ends(matrix: Matrix, provider: EnvironmentProvider) -> dict[str, LockResult]:
    """Lock both ends, in the order good, bad.

    Args:
        matrix: Matrix of the pair.
        provider: Solves.
    """
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    prepared = Locking(matrix, grid, provider).lock_all()
    results: dict[Index, LockResult] = {**prepared.locks, **prepared.unsolvable}
    return {name: results[grid.index(Combination.of({ENVIRONMENT: name}))] for name in (GOOD, BAD)}


def other_archives(ends: Ends, locks: Mapping[str, LockResult]) -> list[str]:
    """Return which packages have an archive that the lock file does not allow, in words.

    Args:
        ends: What the lock files say.
        locks: Of both ends.
    """
    found = []
    for name, environment in ((GOOD, ends.good), (BAD, ends.bad)):
        lock = locks[name]
        if not isinstance(lock, Lock):
            continue
        allowed = {(p.manager, _normal(p.name)): p.hashes for p in environment.packages if p.hashes}
        for package in lock.packages:
            hashes = allowed.get((package.manager, _normal(package.name)), ())
            if hashes and package.sha256 and package.sha256 not in hashes:
                found.append(
                    f"{environment.source}: {package.name} {package.version}: {package.sha256[:12]}… is not "
                    f"among its {len(hashes)} hashes"
                )
    return found


def no_environment(ends: Ends, problems: dict[str, str]) -> NoEnvironmentError:
    """Return the message that an end cannot be made."""
    sources = {GOOD: ends.good.source, BAD: ends.bad.source}
    name, words = next(iter(problems.items()))
    return NoEnvironmentError(
        f"{sources[name]} cannot be made again: {words}",
        tried="with and without what packages say of each other",
        remedy="if a package is gone from the index, name another with `--index`, or take it out of both "
        "files; packages without wheels need `--allow-source`",
    )


def _normal(name: str) -> str:
    return str(canonicalize_name(name))


# -- the releases of what carries the failure --------------------------------------------------------------


def moving_packages(
    explanation: Explanation,
    pair: Pair,
    yanked: Callable[[str, Collection[str]], bool],
    failure: str = "",
) -> tuple[Moving, ...] | str:
    """Return the packages whose releases to bisect, or the reason why there are none.

    Args:
        explanation: What carries the failure.
        pair: The environments.
        yanked: Whether one of these versions of a package was withdrawn.
        failure: What failing trials said. Of packages that no environment separates, it may name one.
    """
    if not explanation.is_sure:
        return "what carries it is not known yet"
    chosen = [explanation.changes[i] for i in explanation.culprits]
    if explanation.tied:
        group = [explanation.changes[i] for i in inseparable(explanation)]
        chosen = [change for change in group if _names(failure, change.name)]
        if len(chosen) != 1:
            return "no single package carries it"
    if explanation.kind == "whole":
        return "no single package carries it"
    chosen = chosen[:1] if explanation.kind == "any" else chosen
    conda = {text.partition(" ")[0].lower() for text in (*pair.good.conda, *pair.bad.conda)}
    moving = []
    for change in chosen:
        old, new = (label.partition(" ")[0] for label in (change.old, change.new))
        if ABSENT in (old, new):
            return f"{change.name} is there on one side alone"
        if old == new:
            return f"{change.name} has the same version on both sides"
        if change.name == "python":
            return "between two Pythons there is no release"
        is_conda = change.name in conda
        moving.append(
            Moving(change.name, old, new, is_conda, not is_conda and yanked(change.name, (old, new)))
        )
    return tuple(moving)


def inseparable(explanation: Explanation) -> tuple[int, ...]:
    """Return the indices of the changes that could not be tested apart, because they occur only together.

    Empty if one change, or one set of changes, is to blame alone.
    """
    if not explanation.tied:
        return ()
    return tuple(sorted({i for one in (explanation.culprits, *explanation.tied) for i in one}))


def _names(text: str, package: str) -> bool:
    """Return whether the output of a failure names a package, by its usual import name."""
    return re.search(rf"(?<![\w-]){re.escape(package.replace('-', '_'))}(?![\w-])", text) is not None


def withdrawn(provider: EnvironmentProvider) -> Callable[[str, Collection[str]], bool]:
    """Return a function that asks the index whether one of some versions of a package was withdrawn."""

    def ask(package: str, versions: Collection[str]) -> bool:
        releases = provider.catalogue.versions(package, manager=Manager.PYPI, index=None)
        return any(release.yanked for release in releases if release.version in versions)

    return ask


def surroundings(
    explanation: Explanation, pair: Pair, moving: Sequence[Moving]
) -> list[tuple[str, WholeEnvironment]]:
    """Return the environments in which to try the releases: the good one first, then the bad one.

    Around what was tried without the rest of the changes, the culprits alone are known to carry the
    failure.
    """
    without = {one.name for one in moving}
    follow = {explanation.changes[i].name for i in inseparable(explanation)} - without
    if follow:
        # They move with the releases as those demand: nothing pins them.
        return [
            (f"{words}, what it needs free to follow", _free(_lacking(whole, without), follow))
            for words, whole in (
                ("everything else as in the good one", pair.good),
                ("everything else as in the bad one", pair.bad),
            )
        ] + [("everything else free to follow", _loose(_lacking(pair.bad, without)))]
    culprits = frozenset(explanation.culprits)
    tried = {frozenset(intermediate.moved) for intermediate in explanation.intermediates}
    good = ("everything else as in the good one", _lacking(pair.good, without))
    bad = ("everything else as in the bad one", _lacking(pair.bad, without))
    loose = ("everything else free to follow", _loose(_lacking(pair.bad, without)))
    everything = frozenset(range(len(explanation.changes)))
    first = [good, bad] if culprits in tried or everything - culprits not in tried else [bad, good]
    return [*first, loose]


def _lacking(whole: WholeEnvironment, names: Collection[str]) -> WholeEnvironment:
    return _each(whole, lambda text, name: () if _normal(name) in names else (text,))


def _free(whole: WholeEnvironment, names: Collection[str]) -> WholeEnvironment:
    return _each(whole, lambda text, name: (name if _normal(name) in names else text,))


def _loose(whole: WholeEnvironment) -> WholeEnvironment:
    return _each(whole, lambda text, name: (text if name == "python" else name,))


def _each(whole: WholeEnvironment, change: Callable[[str, str], tuple[str, ...]]) -> WholeEnvironment:
    """Return an environment with other packages.

    Args:
        whole: The environment.
        change: Returns what replaces a package, given its text and its name.
    """
    pypi = [one for text in whole.pypi for one in change(text, text.partition("==")[0].strip())]
    conda = [one for text in whole.conda for one in change(text, text.partition(" ")[0])]
    return whole.model_copy(update={"pypi": tuple(pypi), "conda": tuple(conda)})


# -- the answer --------------------------------------------------------------------------------------------


def answer(explanation: Explanation, verdict: VerdictDocument | None, why_not: str = "") -> str:
    """Return all of it in one sentence. Pure.

    Args:
        explanation: What carries the failure.
        verdict: Verdict about the releases; None if they were not bisected.
        why_not: The reason, if there is one to tell.
    """
    changes = [explanation.changes[i] for i in explanation.culprits]
    count = len(explanation.changes)
    if not explanation.is_sure or explanation.tied or explanation.kind == "whole":
        text = f"{_of(count)}{explanation.sentence}"
        if verdict is not None:
            return f"{text}; {_releases(verdict, len(inseparable(explanation)))}"
        return f"{text}; its releases were not bisected: {why_not}" if why_not else text
    named = " together with ".join(str(change) for change in changes)
    if explanation.kind == "any":
        named = " and ".join(str(change) for change in changes)
    verb = "carry it"
    if len(changes) == 1:
        verb = "carries it" if explanation.perhaps else "alone carries it"
    if explanation.kind == "any":
        verb = "each carry it"
    having, lacking = explanation.with_culprits, explanation.without_culprits
    evidence = f" (failed in {having.counts} trials with it, {lacking.counts} without)"
    head = f"{_of(count)}{named} {verb}{evidence}{explanation.not_tried_without()}"
    if count == 1:
        head = f"{named} is all that changed{evidence}"
    if count > 1:
        head += f", probability {probability(explanation.probability)}"
    if verdict is None:
        return f"{head}; its releases were not bisected: {why_not}" if why_not else head
    return f"{head}; {_releases(verdict, len(changes))}"


def _of(count: int) -> str:
    return "" if count == 1 else f"Of {count} packages that changed, "


def _releases(verdict: VerdictDocument, culprits: int) -> str:
    first, last = verdict.first_bad, verdict.last_good
    if not verdict.is_decided or not first:
        return f"which release of it is the first bad one is not known: {verdict.reason or 'no verdict'}"
    axes = [axis for axis in verdict.culprit_axes if axis in first] or [
        axis for axis in first if axis != "python"
    ]
    sure = f", probability {probability(verdict.probability)}" if verdict.probability else ""
    if len(axes) == 1:
        axis = axes[0]
        whose = "its" if culprits == 1 else f"{axis}'s"
        good = f" (last good {last[axis]}{sure})" if last else ""
        return f"{whose} first bad release is {first[axis]}{good}"
    named = " with ".join(f"{axis} {first[axis]}" for axis in axes)
    good = f" (last good {' with '.join(f'{axis} {last[axis]}' for axis in axes)}{sure})" if last else ""
    return f"first bad are {named}{good}"


def record(store: Store, study: Study, sentence: str, releases: Study | None, said: str) -> None:
    """Store the result of the releases' study with the study of the two environments.

    Args:
        store: Open for writing.
        study: Study of the two environments.
        sentence: The whole answer.
        releases: The study of the releases, if there is one.
        said: What that study says.
    """
    found = TracedReport(sentence=sentence, study=releases.id if releases else "", releases=said)
    payload = found.model_dump(mode="json")
    known = [decision.payload for decision in store.decisions(study.id) if decision.kind == TRACED]
    if not known or known[-1] != payload:
        store.record_decision(study.id, TRACED, payload)

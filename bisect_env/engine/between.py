"""Find the release that makes one of two environments fail while the other works.

Three studies run one after the other. First, both environments are rebuilt and tried. Then the smallest set
of package changes that causes the failure is found (see `explain`). Finally, the releases of these packages
are bisected, with all other packages unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from packaging.utils import canonicalize_name

from bisect_env.answers.explanation import Explanation
from bisect_env.answers.phrases import and_more
from bisect_env.engine.explain import ABSENT
from bisect_env.engine.locking import Locking
from bisect_env.engine.stored import refuse_local, stored_combination
from bisect_env.environments.foreign import environment_of_lock, read_environment
from bisect_env.environments.foreign_reading import ForeignEnvironment, Why, fitting_python
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.errors import NoEnvironmentError, UsageError
from bisect_env.matrix.ask import BAD, ENVIRONMENT, GOOD, Moving, Pair, releases_of_package
from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.interpreter import check_build
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import WholeEnvironment
from bisect_env.matrix.versions import host_platform
from bisect_env.storage.store import Store

_SHOWN = 6
_NAME_WITH_EXTRAS = re.compile(r"^[\w.-]*(\[[^]]*\])?")
_NAME = re.compile(r"[\w.-]*")
"""The name of a package at the beginning of a requirement."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Two environments to compare: one in which the script works, and one in which it fails.

    Attributes:
        good: The environment that works.
        bad: The environment that fails.
        python: Minor version of Python (such as "3.11") of the good and the bad environment, for environments
            whose Python is not a conda package.
        notes: Sentences about the environments that the user should know.
    """

    good: ForeignEnvironment
    bad: ForeignEnvironment
    python: tuple[str, str]
    notes: tuple[str, ...]

    @property
    def wholes(self) -> tuple[WholeEnvironment, WholeEnvironment]:
        """Return the good and the bad environment (packages and Python) as values of a matrix axis."""
        return _whole(self.good, self.python[0]), _whole(self.bad, self.python[1])

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the conda channels of both environments; those of the bad environment come first.

        If the environments use conda but state no channel, the result is conda-forge.
        """
        found = tuple(dict.fromkeys((*self.bad.channels, *self.good.channels)))
        return found or (("conda-forge",) if self.good.uses_conda else ())


def read_ends(
    good: str, bad: str, *, python: str = "", stored: Callable[[str], ForeignEnvironment | None]
) -> Ends:
    """Read the environment that works and the one that fails, and determine their Python versions.

    Args:
        good: A file, a directory, or a study's combination (such as `STUDY:last-good`).
        bad: The same for the failing environment.
        python: Version of Python that the user states; "" for the one that the environments state.
        stored: Returns the environment of a study's combination; None if the text names none.

    Raises:
        UsageError: An environment cannot be read, or the two cannot be compared.
    """
    try:
        check_build(python)
    except ValueError as error:
        raise UsageError(f"--python: {error}", remedy="leave it out, or name such a version") from None

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
    # If one environment states no Python, evaluate its markers for the other's.
    sides = read(good, pythons[0]), read(bad, pythons[1])
    ends = Ends(sides[0], sides[1], (pythons[0], pythons[1]), tuple(_notes(*sides, pythons)))
    _comparable(ends)
    return ends


def stored_environment(store: Store, text: str) -> ForeignEnvironment | None:
    """Return the environment that a text such as `quickstart:last-good` (study:combination) names.

    Args:
        store: Database with the studies.
        text: The user's text.

    Returns:
        None if the text does not name a study.

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
    notes += [
        f"{one.source}: left out: {and_more(named, _SHOWN)}"
        for one in (good, bad)
        if (named := [f"{name} ({why})" for name, why in one.left_out.items() if why != Why.NOT_HERE])
    ]
    patches = [one.python for one in (good, bad)]
    if not good.uses_conda and all(patches) and patches[0] != patches[1] and pythons[0] == pythons[1]:
        notes.append(
            f"Python {patches[0]} and {patches[1]}: both are made with the newest {pythons[0]} that is here"
        )
    return notes


def _comparable(ends: Ends) -> None:
    """Raise an error if two environments cannot be compared, for example because they are equal.

    Raises:
        UsageError: They cannot be compared; the message names the reason and a remedy.
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
    good, bad = ({(p.name, p.manager, p.version, p.build) for p in e.packages} for e in (ends.good, ends.bad))
    if ends.python[0] == ends.python[1] and good == bad:
        raise UsageError(
            f"{ends.good.source} and {ends.bad.source} hold the same packages",
            tried=f"comparing {len(ends.good.packages)} packages",
            remedy="what broke is not in them: look at the code, the data, the machine; if local packages "
            "were left out, compare those",
        )


def _whole(environment: ForeignEnvironment, python: str) -> WholeEnvironment:
    conda = tuple(p.spec for p in environment.packages if p.is_conda)
    pypi = tuple(p.spec for p in environment.packages if p.manager == "pip")
    whole = WholeEnvironment.model_construct(python=None if conda else python or None, pypi=pypi, conda=conda)
    return with_extras(whole, environment.extras)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


# -- both ends, before anything is tried -------------------------------------------------------------------


def lock_ends(matrix: Matrix, provider: EnvironmentProvider) -> dict[str, LockResult]:
    """Lock the good and the bad environment; return their locks or errors by name (`good`, `bad`).

    Args:
        matrix: A matrix whose two combinations are the two environments.
        provider: Runs the solver.
    """
    grid = expand(matrix, provider.catalogue, datetime.now(UTC))
    prepared = Locking(matrix, grid, provider).lock_all()
    results: dict[Index, LockResult] = {**prepared.locks, **prepared.unsolvable}
    return {name: results[grid.index(Combination.of({ENVIRONMENT: name}))] for name in (GOOD, BAD)}


def other_archives(ends: Ends, locks: Mapping[str, LockResult]) -> list[str]:
    """Return a warning for each package whose locked archive is not listed in the original lock file.

    Archives are compared by their hashes. Packages for which the original file states no hash are not
    checked.

    Args:
        ends: The environments, with the hashes that their files state.
        locks: The locks of both environments.
    """
    found = []
    for name, environment in ((GOOD, ends.good), (BAD, ends.bad)):
        lock = locks[name]
        if not isinstance(lock, Lock):
            continue
        for package in lock.packages:
            hashes = environment.hashes.get((package.manager, package.name), ())
            if hashes and package.sha256 and package.sha256 not in hashes:
                found.append(
                    f"{environment.source}: {package.name} {package.version}: {package.sha256[:12]}… is not "
                    f"among its {len(hashes)} hashes"
                )
    return found


def no_environment(ends: Ends, problems: dict[str, str]) -> NoEnvironmentError:
    """Build the error to raise if the good or the bad environment cannot be rebuilt.

    Args:
        ends: The two environments.
        problems: The reason for each environment (`good`, `bad`) that cannot be rebuilt.
    """
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
    """Return the packages to bisect next, release by release, because they cause the failure.

    Returns the reason (text) instead if no releases can be bisected.

    Args:
        explanation: Which changed packages cause the failure.
        pair: The two environments.
        yanked: Returns whether one of the given versions of a package was withdrawn from the index.
        failure: Output of failing trials. If several packages cannot be told apart, it may name one of them.
    """
    if not explanation.is_sure:
        return "what carries it is not known yet"
    chosen = [explanation.changes[i] for i in explanation.culprits]
    if explanation.tied:
        group = [explanation.changes[i] for i in explanation.inseparable]
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
        axis = releases_of_package(
            change.name, is_conda=is_conda, yanked=not is_conda and yanked(change.name, (old, new))
        )
        moving.append(Moving(axis, old, new))
    return tuple(moving)


def _names(text: str, package: str) -> bool:
    """Return whether a failure's output contains the name under which a package is usually imported."""
    return re.search(rf"(?<![\w-]){re.escape(package.replace('-', '_'))}(?![\w-])", text) is not None


def withdrawn(provider: EnvironmentProvider) -> Callable[[str, Collection[str]], bool]:
    """Return a function that checks whether any of several versions of a package was yanked (withdrawn)."""

    def ask(package: str, versions: Collection[str]) -> bool:
        releases = provider.catalogue.versions(package, index=None)
        return any(release.yanked for release in releases if release.version in versions)

    return ask


def surroundings(
    explanation: Explanation, pair: Pair, moving: Sequence[Moving]
) -> list[tuple[str, WholeEnvironment]]:
    """Return the environments, without the bisected packages, in which to try the releases of these packages.

    Each item is a description and an environment; the best environment comes first. An environment determines
    the versions of all other packages. Usually, these are the versions of the good environment first, then
    those of the bad one, and finally unpinned versions. If some changes cannot be told apart, the packages
    beside the bisected one are unpinned in all of them.

    Args:
        explanation: Which changed packages cause the failure.
        pair: The two environments.
        moving: The packages whose releases are bisected.
    """
    without = {one.name for one in moving}
    extras = explanation.extras
    pair = replace(pair, good=with_extras(pair.good, extras), bad=with_extras(pair.bad, extras))
    follow = {explanation.changes[i].name for i in explanation.inseparable} - without
    good = ("everything else as in the good one", _lacking(pair.good, without))
    bad = ("everything else as in the bad one", _lacking(pair.bad, without))
    loose = ("everything else free to follow", _loose(bad[1]))
    if follow:
        # Leave these packages unpinned, so that the solver can choose what each release requires.
        free = [
            (f"{words}, what it needs free to follow", _free(whole, follow)) for words, whole in (good, bad)
        ]
        return [*free, loose]
    culprits = frozenset(explanation.culprits)
    tried = {frozenset(intermediate.moved) for intermediate in explanation.intermediates}
    everything = frozenset(range(len(explanation.changes)))
    first = [good, bad] if culprits in tried or everything - culprits not in tried else [bad, good]
    return [*first, loose]


def with_extras(whole: WholeEnvironment, extras: Mapping[str, Collection[str]]) -> WholeEnvironment:
    """Return a copy of an environment whose packages are asked for with the given extras, by package name."""

    def changed(text: str, name: str) -> tuple[str]:
        wanted = extras.get(_normal(name), ())
        rest = text[len(name) :]
        return (text if not wanted or rest[:1] == "[" else f"{name}[{','.join(sorted(wanted))}]{rest}",)

    return _replaced(whole, changed)


def _lacking(whole: WholeEnvironment, names: Collection[str]) -> WholeEnvironment:
    def left(text: str, name: str) -> tuple[str, ...]:
        if _normal(name) not in names:
            return (text,)
        # An axis gives the version; the extras are asked for beside it.
        return (bare,) if (bare := _unpinned(text)) != name else ()

    return _replaced(whole, left)


def _free(whole: WholeEnvironment, names: Collection[str]) -> WholeEnvironment:
    return _replaced(whole, lambda text, name: (_unpinned(text) if _normal(name) in names else text,))


def _loose(whole: WholeEnvironment) -> WholeEnvironment:
    return _replaced(whole, lambda text, name: (text if name == "python" else _unpinned(text),))


def _unpinned(text: str) -> str:
    """Return a requirement, or a conda package, without its version; extras are kept."""
    return text[: len(text) - len(_NAME_WITH_EXTRAS.sub("", text, count=1))]


def _replaced(whole: WholeEnvironment, change: Callable[[str, str], tuple[str, ...]]) -> WholeEnvironment:
    """Apply a function to the line of each package of an environment, and return the changed copy.

    Args:
        whole: The environment.
        change: Returns the texts that replace a package, given its text (such as `numpy==1.26.4`) and name.
    """
    pypi = [one for text in whole.pypi for one in change(text, _NAME.match(text)[0])]  # type: ignore[index]
    conda = [one for text in whole.conda for one in change(text, text.partition(" ")[0])]
    return whole.model_copy(update={"pypi": tuple(pypi), "conda": tuple(conda)})


# -- the answer --------------------------------------------------------------------------------------------


def answer(explanation: Explanation, releases: str) -> str:
    """Return one sentence that says which packages cause the failure and which release is the first bad one.

    Args:
        explanation: Which changed packages cause the failure.
        releases: What is known about their releases: the sentence of the study of releases, or why there is
            none; "" if nothing is to be said about them.
    """
    count = len(explanation.changes)
    head = "" if count == 1 else f"Of {count} packages that changed, "
    return "; ".join(filter(None, (f"{head}{explanation.sentence}", releases)))

"""The pictures of `docs/statistics.md`, which `benchmarks.search --write` draws from its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.search_calibration import SEARCH, made_by
from benchmarks.search_worlds import Alone, grid_of

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
_COLOURS = {"bisect-env": "#1f6f8b", "git_bayesect": "#d9822b", "30 runs a step": "#c9b458"}
_RATES = ("0,1", "0,0.5", "0,0.1", "0.01,0.1", "0.02,0.3", "0.05,0.15")
_FEWEST = 10
"""Minimum number of studies behind a point of the picture of claims."""
_MODES = {"calibration:quick": "--quick", "": "default", "calibration:sure": "--sure"}

Lines = Sequence[Mapping[str, Any]]


def draw(lines: Lines) -> None:
    """Draw the pictures whose rows were played, and those that need no rows."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    _save(_one_study(), "search-study")
    _save(_worth(), "search-worth")
    found = {(one["row"], one["method"]): one for one in lines}
    if shown := [rates for rates in _RATES if (f"checked:{rates}", "bisect-env") in found]:
        _save(_bars(found, shown), "search-trials")
    if played := [one for one in lines if "bands" in one]:
        _save(_calibration(played), "search-calibration")


def _save(figure: Figure, name: str) -> None:
    # Without software and date the same results give the same file.
    figure.savefig(PICTURES / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def _bars(found: Mapping[tuple[str, str], Mapping[str, Any]], shown: Sequence[str]) -> Figure:
    """Draw the trials of each method, all counted."""
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    width = 0.8 / len(_COLOURS)
    for i, (method, colour) in enumerate(_COLOURS.items()):
        rows = [(at, found.get((f"checked:{rates}", method))) for at, rates in enumerate(shown)]
        played = [(at, row) for at, row in rows if row is not None]
        axes.bar(
            [at + (i - (len(_COLOURS) - 1) / 2) * width for at, _ in played],
            [row["trials"] for _, row in played],
            width,
            yerr=[row["deviation"] / row["studies"] ** 0.5 for _, row in played],
            label=method,
            color=colour,
        )
    axes.set_yscale("log")
    axes.set_xticks(range(len(shown)), [rates.replace(",", ", ") for rates in shown])
    axes.set_xlabel("background rate, bad rate; 32 versions")
    axes.set_title("trials of a study, all counted")
    axes.legend(fontsize=8)
    return figure


def _one_study() -> Figure:
    """Draw the belief over 32 versions, trial after trial."""
    rng = np.random.default_rng(3)
    first_bad, rate = 20, 0.3
    search = made_by(SEARCH)(grid_of((32,)), Alone((32,)))
    beliefs, tried = [search.probability_bad()], []
    while not search.finished:
        (cell,) = search.ask(1)
        hit = bool(rng.random() < (rate if cell[0] >= first_bad else 0.0))
        tried.append((cell[0], hit))
        search.tell(cell, hit=hit)
        beliefs.append(search.probability_bad())
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    shown = axes.imshow(np.array(beliefs).T, origin="lower", aspect="auto", cmap="RdYlGn_r", vmin=0, vmax=1)
    for hit, colour, words in ((False, "white", "passed"), (True, "black", "failed")):
        points = [(i + 0.5, cell) for i, (cell, was) in enumerate(tried) if was == hit]
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, s=14, color=colour, edgecolor="black", label=words)
    axes.axhline(first_bad - 0.5, color="blue", linewidth=1, linestyle="--", label="the truth")
    axes.set_xlabel("trials")
    axes.set_ylabel("version")
    axes.set_title(f"One study: bad from version {first_bad} on, in {100 * rate:.0f} % of trials")
    axes.legend(loc="lower right", fontsize=8)
    figure.colorbar(shown, label="probability of being bad")
    return figure


def _worth() -> Figure:
    """Draw what one trial tells about good or bad, by how likely bad is, at known rates."""
    chance = np.linspace(0, 1, 301)
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    for p0, p1 in ((0.0, 1.0), (0.0, 0.5), (0.02, 0.3), (0.0, 0.1), (0.01, 0.1)):
        given = chance * _entropy(np.array(p1)) + (1 - chance) * _entropy(np.array(p0))
        bits = _entropy(chance * p1 + (1 - chance) * p0) - given
        (line,) = axes.plot(chance, bits, label=f"background {p0:g}, bad rate {p1:g}")
        # The capacity of a trial.
        axes.plot(chance[bits.argmax()], bits.max(), "o", color=line.get_color())
    axes.set_yscale("log")
    axes.set_ylim(1e-3, 1.3)
    axes.set_xlabel("probability that the version is bad")
    axes.set_ylabel("bits from one trial")
    axes.legend(fontsize=8)
    return figure


def _entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return -p log₂ p - (1 - p) log₂ (1 - p), 0 where p is 0 or 1."""
    inside = np.clip(p, 1e-300, 1 - 1e-16)
    return np.asarray(-inside * np.log2(inside) - (1 - inside) * np.log1p(-inside) / np.log(2))


def _calibration(lines: Lines) -> Figure:
    """Draw claimed against right for each mode, with two standard errors.

    Args:
        lines: The lines of all modes with their bands; those of the default mode are added up.
    """
    figure, axes = plt.subplots(figsize=(6, 4.5), layout="constrained")
    total = 0
    for (mode, label), colour in zip(_MODES.items(), _COLOURS.values(), strict=True):
        chosen = [one for one in lines if (one["row"] if one["row"] in _MODES else "") == mode]
        by_band: dict[float, list[Mapping[str, Any]]] = {}
        for band in (band for one in chosen for band in one["bands"]):
            by_band.setdefault(band["from"], []).append(band)
        points = []
        for _, bands in sorted(by_band.items()):
            count = sum(band["studies"] for band in bands)
            right = sum(band["right"] for band in bands)
            claimed = sum(band["claimed"] * band["studies"] for band in bands) / count
            if count < _FEWEST:
                continue
            # Laplace's estimate in the error, so that "all right" has one, too.
            smooth = (right + 1) / (count + 2)
            points.append((claimed, right / count, 2 * np.sqrt(smooth * (1 - smooth) / count)))
            total += count
        if points:
            x, y, error = zip(*points, strict=True)
            axes.errorbar(x, y, yerr=error, fmt="o", color=colour, label=label)
    axes.plot([0.5, 1], [0.5, 1], color="black", linewidth=0.8, linestyle="--")
    axes.set_xlim(0.8, 1.005)
    axes.set_ylim(0.8, 1.02)
    axes.set_xlabel("probability that was claimed")
    axes.set_ylabel("share that was right")
    axes.set_title(f"{total} studies of planted worlds")
    axes.legend(fontsize=8)
    return figure

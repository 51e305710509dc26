"""The benchmark's table in `benchmarks/results/README.md`, and the pictures in `docs/pictures`.

`python -m benchmarks.search_pictures` draws them again from the stored results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from benchmarks.search_methods import CONFIDENCE, QUICK, grid_of
from bisect_env.search.choice import binary_entropy
from bisect_env.search.searcher import Search
from bisect_env.search.verdict import capacity

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PAGE = RESULTS / "README.md"
PICTURES = ROOT / "docs" / "pictures"
_BETWEEN = ("<!-- written by the {}: begin -->", "<!-- written by the {}: end -->")
_COLOURS = {
    "bisect-env": "#1f6f8b",
    QUICK: "#8fc1d4",
    "git_bayesect": "#d9822b",
    "SPRT, rates known": "#8a8a8a",
    "30 runs a step": "#c9b458",
    "coordinate descent": "#7a5195",
}
_SHOWN = ("32:0,1", "32:0,0.1", "32:0.01,0.1", "32:0.02,0.3", "32:0.05,0.15", "32:0,differing")

Results = Mapping[str, Any]


def publish(document: Results) -> None:
    """Write table and pictures of a run of all rows."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    _save(_bars(document, "trials", "trials of a study, all counted", log=True), "search-trials")
    _save(_bars(document, "wrong", "wrong answers", log=False), "search-wrong")
    _save(_one_study(), "search-study")
    _save(_worth(), "search-worth")
    calibration = RESULTS / "search_calibration.json"
    if calibration.exists():
        found = json.loads(calibration.read_text("utf-8"))
        _save(_calibration(found), "search-calibration")
        _write("calibration", calibration_table(found))
    _write("benchmark", table(document))


def _write(writer: str, text: str) -> None:
    """Replace what a benchmark wrote into the page before."""
    begin, end = (mark.format(writer) for mark in _BETWEEN)
    page = PAGE.read_text("utf-8")
    before, rest = page.split(begin, 1)
    _, after = rest.split(end, 1)
    PAGE.write_text(before + begin + "\n" + text + end + after, encoding="utf-8")


def calibration_table(document: Results) -> str:
    """Shares of right answers by what was claimed, as Markdown."""
    rows = {"the prior": document, "all fixed truths": document["fixed_together"], **document["fixed"]}
    claims = [claim["at_least"] for claim in document["claims"]]
    lines = [
        "",
        "| truths from | studies | "
        + " | ".join(f"right, of those that claimed ≥ {q:g}" for q in claims)
        + " | 95 % intervals that held the true rate |",
        "|---|---|" + "---|" * (len(claims) + 1),
    ]
    for name, found in rows.items():
        shares = [
            f"{100 * c['right']:.1f} ± {100 * c['right_error']:.1f} % of {c['studies']}"
            if c["studies"]
            else "none"
            for c in found["claims"]
        ]
        held = f"{100 * found['intervals_held']:.1f} % of {found['intervals']}" if found["intervals"] else "—"
        lines.append("| " + " | ".join([name, str(found["studies"]), *shares, held]) + " |")
    return "\n".join([*lines, "", ""])


def table(document: Results) -> str:
    """All rows and methods as Markdown."""
    scale, seed = document["scale"], document["seed"]
    lines = [
        "",
        (
            f"Seed {seed}, {scale:g} of the full run's repetitions, {document['seconds']} seconds on "
            f"{document['processes']} processes, confidence {document['confidence']:g}; "
            f"± is the standard error of the mean.{document.get('note', '')}"
        ),
        "",
        (
            "| row | method | studies | trials | environments | rounds | trials + B × env. | wrong | "
            "not confirmed | mark |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        marks = ", ".join(
            f"{name} ≤ {most:g}: {'met' if row[name] <= most else 'missed'}"
            for name, most in row["marks"].items()
        )
        cells = [
            row["row"],
            row["method"],
            str(row["repetitions"]),
            *(_with_error(row, name, 1) for name in ("trials", "environments", "rounds", "total")),
            *(_with_error(row, name, 100) + " %" for name in ("wrong", "not_confirmed")),
            marks,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", ""])


def _with_error(row: Results, name: str, factor: float) -> str:
    return f"{factor * row[name]:.1f} ± {factor * row[f'{name}_error']:.1f}"


def _save(figure: Figure, name: str) -> None:
    # Without software and date the same results give the same file.
    figure.savefig(PICTURES / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def _bars(document: Results, column: str, label: str, *, log: bool) -> Figure:
    found = {(r["row"], r["method"]): r for r in document["rows"]}
    methods = [m for m in _COLOURS if any((row, m) in found for row in _SHOWN)]
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    width = 0.8 / len(methods)
    factor = 100 if column == "wrong" else 1
    for i, method in enumerate(methods):
        rows = [(at, found[row, method]) for at, row in enumerate(_SHOWN) if (row, method) in found]
        axes.bar(
            [at + (i - (len(methods) - 1) / 2) * width for at, _ in rows],
            [factor * r[column] for _, r in rows],
            width,
            yerr=[factor * r[f"{column}_error"] for _, r in rows],
            label=method,
            color=_COLOURS[method],
        )
    if log:
        axes.set_yscale("log")
    else:
        axes.axhline(100 * (1 - CONFIDENCE), color="black", linewidth=0.8, linestyle="--")
        axes.set_ylabel("% of studies")
    axes.set_xticks(range(len(_SHOWN)), [name.removeprefix("32:").replace(",", ", ") for name in _SHOWN])
    axes.set_xlabel("background rate, bad rate; 32 versions")
    axes.set_title(label)
    axes.legend(fontsize=8)
    return figure


def _one_study() -> Figure:
    """Belief over 32 versions, trial after trial."""
    rng = np.random.default_rng(3)
    first_bad, rate = 20, 0.3
    grid = grid_of((32,))
    search = Search(grid, {i: i for i in grid.indices()})
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
    """What one trial tells about good or bad, by how likely bad is, at known rates."""
    chance = np.linspace(0, 1, 301)
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    for p0, p1 in ((0.0, 1.0), (0.0, 0.5), (0.02, 0.3), (0.0, 0.1), (0.01, 0.1)):
        hit = chance * p1 + (1 - chance) * p0
        given = chance * binary_entropy(np.full_like(chance, p1)) + (1 - chance) * binary_entropy(
            np.full_like(chance, p0)
        )
        bits = binary_entropy(hit) - given
        best = int(bits.argmax())
        (line,) = axes.plot(chance, bits, label=f"background {p0:g}, bad rate {p1:g}")
        axes.plot(chance[best], capacity(p0, p1), "o", color=line.get_color())
    axes.set_yscale("log")
    axes.set_ylim(1e-3, 1.3)
    axes.set_xlabel("probability that the version is bad")
    axes.set_ylabel("bits from one trial")
    axes.legend(fontsize=8)
    return figure


def _calibration(document: Results) -> Figure:
    """Claimed against right, with two standard errors."""
    figure, axes = plt.subplots(figsize=(6, 4.5), layout="constrained")
    bins = [b for b in document["bins"] if b["studies"]]
    claimed = [b["claimed"] for b in bins]
    axes.errorbar(claimed, [b["right"] for b in bins], yerr=[2 * b["right_error"] for b in bins], fmt="o")
    low = min(0.5, *claimed)
    axes.plot([low, 1], [low, 1], color="black", linewidth=0.8, linestyle="--")
    axes.set_xlabel("probability that was claimed")
    axes.set_ylabel("share that was right")
    axes.set_title(f"{document['studies']} studies drawn from the prior")
    return figure


if __name__ == "__main__":
    publish(json.loads((RESULTS / "search.json").read_text("utf-8")))

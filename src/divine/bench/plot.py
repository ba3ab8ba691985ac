"""The figures of speculation as a picture: speed-up by class, acceptance by depth.

Needs matplotlib, which is an extra; nothing else here does.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from divine.api import DraftCounts
from divine.errors import UnsupportedError
from divine.files import replacing

# Okabe and Ito's colours, told apart by everyone; the same for a drafter in both panels.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
_MARKERS = "osD^vPX*"
_INK, _PALE = "#333333", "#DDDDDD"
_GROUP = 0.8  # of the distance between classes that their bars fill
_FEWEST = 10  # nodes: shares of fewer scatter


def check_plot() -> None:
    """Raise UnsupportedError if plot() cannot draw here."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "a plot needs matplotlib, which is not installed; "
            "`pip install 'divine-llm[plot]'` brings it"
        )


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Write a PNG of what speculate() returned; raises UnsupportedError, or as replacing()."""
    check_plot()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    entries = result["speculation"]
    drafts = list(dict.fromkeys(entry["draft"] for entry in entries))
    classes = list(dict.fromkeys(entry["class"] for entry in entries))
    width = max(6.0, 1.6 + 0.18 * len(drafts) * len(classes) + 0.5 * len(classes))
    figure = Figure(figsize=(width + 4.5, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    speed, depth = figure.subplots(1, 2, width_ratios=(width, 4.5))
    _speed_ups(speed, entries, drafts, classes)
    _acceptance(depth, entries, drafts)
    figure.suptitle(_title(result), color=_INK, fontsize=11)
    figure.legend(
        *speed.get_legend_handles_labels(), loc="outside lower center", ncols=8, frameon=False
    )
    with replacing(path) as place:
        figure.savefig(place, format="png", dpi=144)


def _title(result: Mapping[str, Any]) -> str:
    title = str(result["model"])
    if result.get("draft_model"):
        title += f", drafts by {result['draft_model']}"
    settings = result["settings"]
    return f"{title}\n{settings['max_tokens']} tokens, temperature {settings['temperature']:g}"


def _speed_ups(
    axes: Any, entries: Sequence[Mapping[str, Any]], drafts: Sequence[str], classes: Sequence[str]
) -> None:
    bar = _GROUP / len(drafts)
    for index, draft in enumerate(drafts):
        of_draft = [entry for entry in entries if entry["draft"] == draft]
        places = [
            classes.index(entry["class"]) - _GROUP / 2 + bar * (index + 0.5) for entry in of_draft
        ]
        bars = axes.bar(
            places,
            [entry["ratio"] for entry in of_draft],
            0.92 * bar,
            color=COLOURS[index % len(COLOURS)],
            label=draft,
        )
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # over the dashed line
        axes.bar_label(bars, fmt="%.2f", fontsize=7, color=_INK, padding=2, rotation=90, bbox=paper)
    axes.axhline(1, color=_INK, linewidth=1, linestyle="--", zorder=2)
    axes.set_xticks(range(len(classes)), classes)
    axes.set_ylabel("times plain decoding, median")
    axes.set_title("Speed-up by class (dashed: plain)", fontsize=10, color=_INK)
    axes.margins(y=0.12)
    _tidy(axes)


def _acceptance(axes: Any, entries: Sequence[Mapping[str, Any]], drafts: Sequence[str]) -> None:
    for index, draft in enumerate(drafts):
        shares = _by_depth([entry for entry in entries if entry["draft"] == draft])
        axes.plot(
            list(shares),
            list(shares.values()),
            color=COLOURS[index % len(COLOURS)],
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=5,
        )
    axes.set_ylim(-0.03, 1.03)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("depth in the draft")
    axes.set_ylabel("accepted share of the nodes reached")
    axes.set_title("Acceptance by depth, all classes", fontsize=10, color=_INK)
    _tidy(axes)


def _by_depth(entries: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Depth, from 1, -> accepted share over all classes, where enough nodes were judged."""
    nodes = sum((DraftCounts(**entry["nodes"]) for entry in entries), DraftCounts())
    judged = map(sum, zip(nodes.accepted, nodes.rejected, strict=True))
    return {
        depth: share
        for depth, (share, count) in enumerate(zip(nodes.acceptance, judged, strict=True), 1)
        if share is not None and count >= _FEWEST
    }


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_INK)
    axes.tick_params(colors=_INK)
    axes.grid(axis="y", color=_PALE, linewidth=0.8)
    axes.set_axisbelow(True)

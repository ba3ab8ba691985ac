"""The record of a training run: a line of JSON for each measurement, TensorBoard, a picture.

Going on from a checkpoint drops what was recorded after it, so a run that was stopped leaves the
same record as one that was not. Knows numbers and files.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from divine.files import replacing

LOG = "log.jsonl"
CURVES = "curves.png"


class Record:
    """Appends measurements to the log and to TensorBoard, if that is installed."""

    def __init__(self, folder: Path, after_step: int) -> None:
        """`after_step`: later entries are dropped: training goes on from there."""
        self._path = folder / LOG
        self.entries = [e for e in read_log(folder) if e["step"] <= after_step]
        self._path.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries), "utf-8")
        self._board: Any = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(folder / "tensorboard", purge_step=after_step + 1)

    def add(self, entry: dict[str, Any]) -> None:
        """One measurement: "step", numbers by name, and lists of numbers by depth."""
        self.entries.append(entry)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if self._board is not None:
            for name, value in entry.items():
                if isinstance(value, list):
                    for depth, of_depth in enumerate(value, 1):
                        self._board.add_scalar(f"{name}/{depth}", of_depth, entry["step"])
                elif name != "step":
                    self._board.add_scalar(name, value, entry["step"])
            self._board.flush()

    def close(self) -> None:
        """Close TensorBoard's file."""
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The entries of a log; a line that was cut off is left out."""
    entries = []
    try:
        lines = (folder / LOG).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            entries.append(entry)
    return entries


def draw(folder: Path, entries: list[dict[str, Any]], title: str) -> Path | None:
    """curves.png of a log; None without matplotlib, or with nothing to draw."""
    measured = [entry for entry in entries if "acceptance" in entry]
    if importlib.util.find_spec("matplotlib") is None or not measured:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    steps = [entry["step"] for entry in entries if "loss" in entry]
    left.plot(steps, [entry["loss"] for entry in entries if "loss" in entry], label="training")
    left.plot(
        [entry["step"] for entry in measured],
        [entry["held_out_loss"] for entry in measured],
        marker="o",
        markersize=3,
        label="held out",
    )
    left.set_xlabel("step")
    left.set_ylabel("loss")
    left.legend(frameon=False)
    for depth in range(len(measured[0]["acceptance"])):
        right.plot(
            [entry["step"] for entry in measured],
            [entry["acceptance"][depth] for entry in measured],
            marker="o",
            markersize=3,
            label=f"depth {depth + 1}",
        )
    right.set_xlabel("step")
    right.set_ylabel("acceptance on held-out answers")
    right.set_ylim(0, 1)
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    path = folder / CURVES
    with replacing(path) as place:
        figure.savefig(place, format="png", dpi=120)
    return path

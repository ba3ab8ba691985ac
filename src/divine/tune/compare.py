"""Which architecture of drafting heads is worth more after equal time on the same answers.

    python -m divine.tune.compare BASE.gguf --answers FOLDER [--minutes 10] [-t 2] [--json FILE]

Trains both with the same seed, loss, draft vocabulary and depths, one after the other, and measures
them on the same positions of held-out answers: accuracy by depth, and tokens per pass of greedy
chains, prompts' look-ups and the costs of drafting left out. For deciding; nothing else imports it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from divine.errors import DivineError, UsageError
from divine.files import check_replaceable, replacing
from divine.heads import HeadWeights
from divine.tune import checkpoint
from divine.tune.answers import AnswerStore
from divine.tune.architectures import network_of
from divine.tune.base import Base
from divine.tune.batches import split
from divine.tune.losses import LOSSES
from divine.tune.options import LAYER_RATE, LAYER_SETTINGS, TrainSettings
from divine.tune.pieces import LONGEST, Pieces
from divine.tune.step import Accuracy, DeviceTables, measure
from divine.tune.tables import Tables, tables_of
from divine.tune.trainer import Progress
from divine.tune.training import TablesOf, train
from divine.tune.workers import Workers

Ids: TypeAlias = NDArray[np.int32]
Tell: TypeAlias = Callable[[str, Progress], None]
CHAIN = 3
POSITIONS = 32768  # of held-out answers
UNEQUAL = 0.1  # so much more time of one than of the other is told
MEASUREMENTS = 8  # on the way: they take time, too


@dataclass
class Contender:
    """One architecture after its training; parts: of batches of held-out answers."""

    architecture: str
    summary: str
    parameters: int
    steps: int
    positions: int  # trained on, repeats counted
    seconds: float  # of steps alone
    curve: list[dict[str, float]]  # measurements on the way, on fewer positions
    parts: list[Accuracy]

    @property
    def accuracy(self) -> Accuracy:
        """Of all held-out positions."""
        return self.without(None)

    def without(self, place: int | None) -> Accuracy:
        """Of all parts but one."""
        rest = (part for number, part in enumerate(self.parts) if number != place)
        return sum(rest, Accuracy.none(len(self.parts[0].kept)))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        accuracy = self.accuracy
        return {
            "architecture": self.architecture,
            "summary": self.summary,
            "parameters": self.parameters,
            "steps": self.steps,
            "positions": self.positions,
            "seconds": round(self.seconds, 2),
            "accuracy": [round(value, 4) for value in accuracy.by_depth],
            "acceptance": [round(value, 4) for value in accuracy.acceptance],
            "tokens_per_pass": round(accuracy.chain(CHAIN), 4),
            "held_out_positions": int(accuracy.judged[0]),
            "curve": self.curve,
        }


class _Watch:
    """Keeps what a run tells: how far it came, and its measurements by time."""

    def __init__(self, architecture: str, tell: Tell) -> None:
        self._architecture, self._tell = architecture, tell
        self._known: Accuracy | None = None
        self.last = Progress(0, 0, 0.0, 0, 0.0, None)
        self.curve: list[dict[str, float]] = []

    def __call__(self, progress: Progress) -> None:
        self.last, accuracy = progress, progress.accuracy
        if accuracy is not None and accuracy is not self._known:
            self._known = accuracy
            seconds, worth = round(progress.stepping, 2), round(accuracy.chain(CHAIN), 4)
            self.curve.append({"seconds": seconds, "tokens_per_pass": worth})
        self._tell(self._architecture, progress)


def compare(
    store: AnswerStore,
    tables: TablesOf,
    contenders: Sequence[TrainSettings],
    folder: Path,
    *,
    fingerprint: str | None,
    end_ids: Sequence[int],
    workers: Workers,
    tell: Tell = lambda architecture, progress: None,
    positions: int = POSITIONS,
) -> list[Contender]:
    """Train each into a folder of its architecture's name, and measure all on the same positions.

    `tables`, `fingerprint`, `end_ids`: as for train(), whose errors it raises, and UsageError if
    no answer is held out or a folder has a run already: time would not be equal then.
    """
    for settings in contenders:
        own = folder / settings.architecture
        if (own / checkpoint.NAME).exists():
            raise UsageError(f"{own} has a training run already; give another folder to compare in")
        if not len(split(store, settings.held_out)[1]):
            raise UsageError(f"{store.folder} has no answer to hold out; capture more")
    found = []
    for settings in contenders:
        watch = _Watch(settings.architecture, tell)
        made: list[Tables] = []

        def noted(tokens: Ids, listed: Ids, made: list[Tables] = made) -> Tables:
            made[:] = [tables(tokens, listed)]
            return made[0]

        weights, _ = train(
            store, noted, settings, folder / settings.architecture,
            fingerprint=fingerprint, end_ids=end_ids, workers=workers, tell=watch,
        )  # fmt: skip
        parts = _measured(store, settings, weights, made[0], workers.device, positions)
        definition, last = weights.definition, watch.last
        found.append(
            Contender(
                settings.architecture,
                definition.summary,
                definition.parameters,
                last.step,
                last.positions,
                last.stepping,
                watch.curve,
                parts,
            )
        )
    return found


def _measured(
    store: AnswerStore,
    settings: TrainSettings,
    weights: HeadWeights,
    tables: Tables,
    device: torch.device,
    positions: int,
) -> list[Accuracy]:
    """Of each batch of held-out answers, the same for every architecture."""
    network = network_of(weights.definition, tables.final_gain)
    network.load(weights.tensors)
    network.to(device).eval()
    size = settings.length * settings.stretches
    _, held_out = split(store, settings.held_out)
    answers = Pieces(
        store,
        held_out,
        depth=settings.num_heads,
        longest=LONGEST,
        positions=size,
        seed=settings.seed,
    )
    on_device = DeviceTables(tables, device, None)
    return [measure(network, [batch], on_device) for batch in answers.all(positions)]


def difference(a: Contender, b: Contender) -> tuple[float, float]:
    """Tokens per pass of b less those of a, and its standard error by leaving batches out.

    NaN for a single batch.
    """

    def less(without: int | None) -> float:
        return b.without(without).chain(CHAIN) - a.without(without).chain(CHAIN)

    count = len(a.parts)
    if count < 2:
        return less(None), float("nan")
    left = np.array([less(place) for place in range(count)])
    return less(None), float(np.sqrt((count - 1) * left.var()))


def table(found: Sequence[Contender]) -> str:
    """What was found, for people."""
    depths = len(found[0].accuracy.by_depth)
    titles = ["", "M parameters", "seconds", "steps", "positions"]
    titles += [f"depth {depth}" for depth in range(1, depths + 1)]
    lines = [[*titles, f"tokens/pass, chain of {CHAIN}"]]
    for one in found:
        accuracy = one.accuracy
        lines.append([
            f"{one.architecture}: {one.summary}", f"{one.parameters / 1e6:.2f}",
            f"{one.seconds:.0f}", str(one.steps), str(one.positions),
            *(f"{value:.3f}" for value in accuracy.by_depth), f"{accuracy.chain(CHAIN):.3f}",
        ])  # fmt: skip
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rows = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines]  # fmt: skip
    return "\n".join(row.rstrip() for row in rows)


def main() -> None:
    """Compare, and print."""
    chosen = _arguments()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    try:
        if chosen.json is not None:
            check_replaceable(Path(chosen.json))
        _report(_trained(chosen), chosen)
    except DivineError as error:
        sys.stderr.write(f"compare: {error}\n")
        sys.exit(error.exit_code)


def _trained(chosen: argparse.Namespace) -> list[Contender]:
    folder = Path(chosen.output) if chosen.output else None
    with (
        Base(chosen.base, threads=chosen.threads) as base,
        nullcontext(folder) if folder else tempfile.TemporaryDirectory() as used,
    ):
        return compare(
            AnswerStore(Path(chosen.answers)),
            lambda tokens, listed: tables_of(base, tokens, listed),
            _contenders(chosen),
            Path(used),
            fingerprint=base.fingerprint,
            end_ids=sorted(base.tokenizer.end_ids),
            workers=Workers(chosen.device),
            tell=_teller(),
            positions=chosen.positions,
        )


def _report(found: list[Contender], chosen: argparse.Namespace) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    more, error_of = difference(found[0], found[1])
    held_out = found[0].accuracy.judged[0]
    known = f"{error_of:.3f}" if math.isfinite(error_of) else "an unknown number of"
    sys.stdout.write(
        f"{table(found)}\non {held_out} positions of held-out answers the layer's chains give "
        f"{more:+.3f} +- {known} tokens per pass against the heads'\n"
    )
    shorter, longer = sorted(one.seconds for one in found)
    if chosen.steps is None and longer > (1 + UNEQUAL) * shorter:
        sys.stdout.write(
            "the times are not equal: something else kept the machine busy meanwhile; try again "
            "on a quiet one, or give --steps for as many of both\n"
        )
    if chosen.json is not None:
        values = {
            "found": [one.to_dict() for one in found],
            "difference": round(more, 4),
            "standard_error": round(error_of, 4) if math.isfinite(error_of) else None,
            "settings": vars(chosen),
        }
        with replacing(Path(chosen.json)) as place:
            place.write_text(json.dumps(values, indent=1) + "\n", "utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("base", metavar="BASE.gguf")
    parser.add_argument("--answers", required=True, help="the folder of captured answers")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each training; 10")
    parser.add_argument("--steps", type=int, help="of each training, instead of --minutes")
    parser.add_argument("--depths", type=int, default=CHAIN, help="that are trained; 3")
    parser.add_argument("--rank", type=int, default=256, help="of the heads; 256")
    for name in ("ffn", "attention-heads", "kv-heads", "window"):
        parser.add_argument(f"--{name}", type=int, help="of the layer")
    parser.add_argument("--draft-vocab", type=int, default=8192)
    parser.add_argument("--loss", choices=LOSSES, default="mixed")
    parser.add_argument("--batch", type=int, default=32, help="of each step, in 16 positions; 32")
    parser.add_argument("--rate", type=float, default=3e-3, help="of learning; 0.003")
    parser.add_argument("--layer-rate", type=float, default=LAYER_RATE, help="the layer's; 0.001")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measurements", type=int, default=MEASUREMENTS, help="on the way; 8")
    parser.add_argument("--positions", type=int, default=POSITIONS, help="to measure; 32768")
    parser.add_argument("-t", "--threads", type=int, help="of torch")
    parser.add_argument("--device", help="such as cpu or cuda:0")
    parser.add_argument("--output", metavar="FOLDER", help="where weights and curves stay")
    parser.add_argument("--json", metavar="FILE")
    chosen = parser.parse_args()
    if chosen.threads is not None and chosen.threads < 1:
        parser.error(f"--threads is {chosen.threads}; 1 or more are allowed")
    return chosen


def _contenders(chosen: argparse.Namespace) -> list[TrainSettings]:
    heads = TrainSettings(
        num_heads=chosen.depths,
        rank=chosen.rank,
        draft_vocab=chosen.draft_vocab,
        loss=chosen.loss,
        stretches=chosen.batch,
        steps=chosen.steps,
        minutes=chosen.minutes if chosen.steps is None else None,
        rate=chosen.rate,
        seed=chosen.seed,
        measurements=chosen.measurements,
    )
    layer = replace(
        heads,
        architecture="layer",
        rate=chosen.layer_rate,
        **{name: getattr(chosen, name) for name in LAYER_SETTINGS},
    )
    return [heads, layer]


def _teller() -> Tell:
    """Writes one line over and over on a terminal, elsewhere one for each measurement."""
    last: Accuracy | None = None

    def tell(architecture: str, progress: Progress) -> None:
        nonlocal last
        accuracy = progress.accuracy
        worth = f", {accuracy.chain(CHAIN):.3f} tokens/pass" if accuracy is not None else ""
        line = (
            f"{architecture}: step {progress.step} of {progress.steps}, loss {progress.loss:.3f}"
            f"{worth}"
        )
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{line}   ")
        elif accuracy is not None and accuracy is not last:
            sys.stderr.write(f"{line}\n")
        last = accuracy

    return tell


if __name__ == "__main__":
    main()

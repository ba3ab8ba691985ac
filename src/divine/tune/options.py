"""TrainSettings: everything that decides what training gives, checked. Knows no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from divine.checks import check_integer, check_number
from divine.errors import UsageError
from divine.heads import Definition, HeadsDefinition, LayerDefinition
from divine.heads.checks import ARCHITECTURES, Architecture
from divine.heads.layer import HEAD_DIM

Form = Literal["best", "paper"]
FORMS: tuple[Form, ...] = ("best", "paper")
# Settings that only one of the architectures has.
HEADS_SETTINGS = ("form", "rank", "shared", "activation")
LAYER_SETTINGS = ("ffn", "attention_heads", "kv_heads", "window")
LAYER_RATE = 1e-3  # a good rate for a layer: its matrices are of full rank


@dataclass(frozen=True)
class TrainSettings:
    """How heads are trained.

    architecture  "mtp", recurrent heads, of which form, rank, shared and activation speak, or
                  "layer", a transformer layer; its settings are None where it has its usual ones
    num_heads     depths that are trained
    form          "best" (what trained best in little time) or "paper"
    draft_vocab   tokens that may be drafted; 0: all
    loss          hard (the token), soft (the base's own distribution) or mixed
    tokens        of answers to train on, the first of the folder; None: all
    stretches     of `length` positions in a batch
    steps         None: as many as fit `minutes`, or else `epochs` passes over the answers
    rate          of the matrices, at its highest; gains learn half as fast. LAYER_RATE for a layer
    held_out      share of the answers that is measured and not trained on
    measurements  in a run, the one at its end included
    """

    architecture: Architecture = "mtp"
    form: Form = "best"
    num_heads: int = 4
    rank: int = 256
    shared: bool = False
    activation: Literal["none", "silu", "gelu"] | None = None  # None: as the form has it
    ffn: int | None = None
    attention_heads: int | None = None
    kv_heads: int | None = None
    window: int | None = None
    draft_vocab: int = 8192
    loss: Literal["hard", "soft", "mixed"] = "mixed"
    gamma: float = 0.9
    tokens: int | None = None
    length: int = 16
    stretches: int = 32
    steps: int | None = None
    minutes: float | None = None
    epochs: float = 2.0
    rate: float = 3e-3
    warmup: int = 20
    decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    held_out: float = 0.03
    measurements: int = 20

    def __post_init__(self) -> None:
        """Raises UsageError for values that are not allowed."""
        words = {"architecture": ARCHITECTURES, "form": FORMS, "loss": ("hard", "soft", "mixed")}
        for name, allowed in words.items():
            if getattr(self, name) not in allowed:
                raise UsageError(
                    f"{name} is {getattr(self, name)!r}; allowed are {', '.join(allowed)}"
                )
        lowest = {"draft_vocab": 0, "length": 1, "stretches": 1, "warmup": 0, "measurements": 1}
        for name, low in lowest.items():
            check_integer(name, getattr(self, name), low, None)
        for name in ("steps", "tokens"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, None)
        if self.minutes is not None:
            check_number("minutes", self.minutes, 0.01, 1e6)
            if self.steps is not None:
                raise UsageError(
                    f"minutes is {self.minutes}, and steps is given, too; one of them says when to "
                    "end"
                )
        check_number("epochs", self.epochs, 1e-6, 1e6)
        check_number("rate", self.rate, 0, 10, above=True)
        check_number("decay", self.decay, 0, 1)
        check_number("clip", self.clip, 1e-6, 1e6)
        check_number("held_out", self.held_out, 0, 0.5)
        check_integer("seed", self.seed, 0, 2**31 - 1)
        if self.architecture != "layer":
            for name in LAYER_SETTINGS:
                if getattr(self, name) is not None:
                    raise UsageError(f"{name} is a setting of the architecture layer only")
        kv_heads = self.kv_heads
        known = isinstance(kv_heads, int) and kv_heads > 0
        self.definition(HEAD_DIM * (kv_heads or 1) if known else 1, 1e-5, 0)  # of any such width

    def definition(self, dim: int, eps: float, draft_vocab: int) -> Definition:
        """The heads for a base of width `dim`. Raises UsageError."""
        common: dict[str, Any] = {"eps": eps, "draft_vocab": draft_vocab}
        common["discount_gamma"] = self.gamma
        if self.architecture == "layer":
            names = {name: name.removeprefix("attention_") for name in LAYER_SETTINGS}
            given = {field: getattr(self, name) for name, field in names.items()}
            common |= {name: value for name, value in given.items() if value is not None}
            return LayerDefinition.for_width(dim, depths=self.num_heads, **common)
        common["shared"] = self.shared
        if self.activation is not None:
            common["activation"] = self.activation
        if self.form == "best":
            return HeadsDefinition.best(self.num_heads, self.rank, dim, **common)
        paper = asdict(HeadsDefinition.paper(self.num_heads, self.rank, dim))
        return HeadsDefinition(**{**paper, **common})

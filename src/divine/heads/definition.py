"""What drafting heads are: their settings, tensors and shapes, as data.

A HeadsDefinition says exactly how a level of drafting is computed from the base's hidden state and
a token; reference.py is that computation in NumPy, program.py the same for the backends. It is
written to and read from GGUF keys (`divine.speculative.*`) and JSON. Knows no weights and no files.

Sources: the recurrent residual heads of the Divine-MTP paper, the form that trained best under a
short budget, and the files of the package divine-mtp 0.1.0 are settings of one definition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from divine.checks import check_integer, check_number
from divine.errors import FormatError, UnsupportedError, UsageError
from divine.gguf import Metadata, MetaValue, typed
from divine.heads.checks import (
    ARCHITECTURES,
    DRAFT_VOCAB,
    PREFIX,
    TENSOR_PREFIX,
    VERSION,
    check_shapes,
    fields_of,
    plain,
    trained_numbers,
)
from divine.program.program import FINAL_TAP

Architecture: TypeAlias = Literal["mtp"]
HeadActivation: TypeAlias = Literal["none", "silu", "gelu"]
Start: TypeAlias = Literal["hidden", "unit"]
Carry: TypeAlias = Literal["sum", "unit", "gained"]

_MOST = {"num_heads": 64, "rank": 1 << 16, "dim": 1 << 20}
_PUBLISHED_EPS = 1e-5


@dataclass(frozen=True)
class HeadsDefinition:
    """How drafting heads compute.

    Let h be the base's last hidden state after its final norm at position t, E the base's embedding
    table, W its output matrix, y_i the token at position i and rms(x) = x / sqrt(mean(x^2) + eps).
    For k = 1 .. num_heads, with the tensors of head k (numbered from 0 in their names):

        z_0 = h                          start "hidden"
              h / g_final                start "unit": without the final norm's gain (0 where it is)
        e   = E[y_{t+k}], or rms of it   embedding_norm
        u   = proj_up . act(proj_down . [z_{k-1} ; e] + proj_down_bias)
        s   = r * z_{k-1} + scale * u    r: the vector `residual`, 1 without residual_weight
        n   = rms(s)
        o_k = n * norm                   logits of y_{t+k+1} = W . o_k
        z_k = s                          carry "sum"
              n                          carry "unit"
              o_k                        carry "gained"

    So head 1 takes the token that the base has just chosen and predicts the one after it. With
    `shared` all depths use the tensors of head 0. Depths beyond num_heads use the last head.
    `gelu` is the tanh approximation.
    """

    num_heads: int
    rank: int  # r, rows of proj_down
    dim: int  # d, width of the base
    architecture: Architecture = "mtp"
    shared: bool = False
    activation: HeadActivation = "silu"
    bias: bool = True
    residual_weight: bool = True
    embedding_norm: bool = True
    start: Start = "unit"
    carry: Carry = "unit"
    scale: float = 1.0
    eps: float = 1e-5
    discount_gamma: float = 0.9  # of the training loss; computes nothing
    draft_vocab: int = 0  # tokens of the draft vocabulary's list; 0: there is none, all are drafted

    def __post_init__(self) -> None:
        """Raises UsageError for a setting that is not allowed."""
        for name, most in _MOST.items():
            check_integer(name, getattr(self, name), 1, most)
        check_integer("draft_vocab", self.draft_vocab, 0, 2**31 - 1)
        for name, kind in _WORDS.items():
            allowed, value = get_args(kind), getattr(self, name)
            if value not in allowed:
                words = ", ".join(allowed)
                raise UsageError(f"{name} is {value!r}; allowed are {words}")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} is {getattr(self, name)!r}; true or false is allowed")
        for name, low, high in (("scale", 0, 1e6), ("eps", 0, 1), ("discount_gamma", 0, 1)):
            check_number(name, getattr(self, name), low, high, above=True)

    @classmethod
    def paper(cls, num_heads: int, rank: int, dim: int, *, eps: float = 1e-5) -> HeadsDefinition:
        """s_0 = h; s_k = RMSNorm(W_up W_down [s_{k-1} ; E] + s_{k-1}); logits W s_k."""
        return cls(num_heads, rank, dim, eps=eps, start="hidden", carry="gained", **_BARE)

    @classmethod
    def best(cls, num_heads: int, rank: int, dim: int, **settings: Any) -> HeadsDefinition:
        """The form that trained best in little time (the defaults, with scale 1.7)."""
        return cls(num_heads, rank, dim, **{"scale": 1.7, **settings})

    @classmethod
    def published(
        cls, num_heads: int, rank: int, dim: int, *, eps: float = _PUBLISHED_EPS
    ) -> HeadsDefinition:
        """That of the package divine-mtp 0.1.0: GELU between, and a recurrence without a norm."""
        settings = {**_BARE, "activation": "gelu"}
        return cls(num_heads, rank, dim, eps=eps, start="hidden", carry="sum", **settings)

    @property
    def taps(self) -> tuple[str, ...]:
        """The hidden states of the base that the heads need."""
        return (FINAL_TAP,)

    @property
    def sets(self) -> int:
        """How many sets of tensors there are."""
        return 1 if self.shared else self.num_heads

    def set_of(self, depth: int) -> int:
        """The number of the set of tensors that predicts at a depth, from 1."""
        return min(depth, self.sets) - 1

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names of all tensors with their shapes in NumPy order, [out, in] for matrices."""
        shapes: dict[str, tuple[int, ...]] = {}
        for number in range(self.sets):
            shapes[tensor_name(number, "proj_down.weight")] = (self.rank, 2 * self.dim)
            if self.bias:
                shapes[tensor_name(number, "proj_down.bias")] = (self.rank,)
            shapes[tensor_name(number, "proj_up.weight")] = (self.dim, self.rank)
            if self.residual_weight:
                shapes[tensor_name(number, "residual.weight")] = (self.dim,)
            shapes[tensor_name(number, "norm.weight")] = (self.dim,)
        if self.draft_vocab:
            shapes[DRAFT_VOCAB] = (self.draft_vocab,)
        return shapes

    @property
    def parameters(self) -> int:
        """Trained numbers; the draft vocabulary is none."""
        return trained_numbers(self.tensor_shapes())

    @property
    def depths(self) -> int:
        """How deep they are trained to draft."""
        return self.num_heads

    @property
    def summary(self) -> str:
        """In a few words."""
        return f"{self.num_heads} heads, rank {self.rank}"

    def check_shapes(self, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
        """Raises FormatError naming the first tensor that is missing, unknown or ill-shaped.

        `shapes`: the divine.mtp.* tensors of `where`, a file's name.
        """
        owned = f"there are {self.sets} sets of tensors, numbered from 0"
        what = f"rank {self.rank}, width {self.dim}"
        check_shapes(self.tensor_shapes(), shapes, where, what, owned)

    def to_keys(self) -> dict[str, MetaValue]:
        """GGUF metadata; the first five are the paper's own keys."""
        return {
            PREFIX + "architecture": self.architecture,
            PREFIX + "num_heads": typed("u32", self.num_heads),
            PREFIX + "projection_dim": typed("u32", self.rank),
            PREFIX + "discount_gamma": typed("f32", self.discount_gamma),
            PREFIX + "shared_lm_head": True,
            PREFIX + "version": typed("u32", VERSION),
            PREFIX + "hidden_dim": typed("u32", self.dim),
            PREFIX + "shared_heads": self.shared,
            PREFIX + "activation": self.activation,
            PREFIX + "bias": self.bias,
            PREFIX + "residual_weight": self.residual_weight,
            PREFIX + "embedding_norm": self.embedding_norm,
            PREFIX + "start": self.start,
            PREFIX + "carry": self.carry,
            PREFIX + "scale": typed("f64", self.scale),
            PREFIX + "eps": typed("f64", self.eps),
            PREFIX + "draft_vocab": typed("u32", self.draft_vocab),
        }

    @classmethod
    def from_keys(cls, metadata: Metadata, dim: int, where: str) -> HeadsDefinition:
        """The definition in a GGUF's metadata.

        `dim`: the width that the tensors have, for files with the paper's five keys only, which are
        taken for those of divine-mtp 0.1.0. Raises FormatError, or UnsupportedError for a newer
        version, another architecture or an output matrix of the heads' own.
        """
        architecture = metadata.str(PREFIX + "architecture")
        if architecture not in get_args(Architecture):
            raise UnsupportedError(
                f"{where}: the drafting heads are of architecture {architecture!r}; known are "
                f"{', '.join(ARCHITECTURES)}"
            )
        version = metadata.int(PREFIX + "version", 0, minimum=0)
        if version > VERSION:
            raise UnsupportedError(
                f"{where}: the drafting heads are of version {version}; this Divine knows up to "
                f"{VERSION}"
            )
        if not metadata.bool(PREFIX + "shared_lm_head", True):
            raise UnsupportedError(
                f"{where}: the drafting heads have an output matrix of their own "
                f"({PREFIX}shared_lm_head is false); only the base's is supported"
            )
        common: dict[str, Any] = {
            "num_heads": metadata.int(PREFIX + "num_heads"),
            "rank": metadata.int(PREFIX + "projection_dim"),
        }
        try:
            if not version:
                return cls.published(**common, dim=dim)
            return cls(
                **common,
                dim=metadata.int(PREFIX + "hidden_dim"),
                shared=metadata.bool(PREFIX + "shared_heads"),
                activation=metadata.str(PREFIX + "activation"),  # type: ignore[arg-type]
                bias=metadata.bool(PREFIX + "bias"),
                residual_weight=metadata.bool(PREFIX + "residual_weight"),
                embedding_norm=metadata.bool(PREFIX + "embedding_norm"),
                start=metadata.str(PREFIX + "start"),  # type: ignore[arg-type]
                carry=metadata.str(PREFIX + "carry"),  # type: ignore[arg-type]
                scale=metadata.float(PREFIX + "scale"),
                eps=metadata.float(PREFIX + "eps"),
                discount_gamma=plain(metadata.float(PREFIX + "discount_gamma", 0.9)),
                draft_vocab=metadata.int(PREFIX + "draft_vocab", 0),
            )
        except UsageError as error:
            raise FormatError(f"{where}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the fields by name, and the version of their meaning."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str) -> HeadsDefinition:
        """From to_dict(); raises FormatError for unknown or missing fields and wrong values."""
        known = {field.name for field in dataclasses.fields(cls)}
        fields = fields_of(values, known, {"num_heads", "rank", "dim"}, where)
        try:
            return cls(**fields)
        except UsageError as error:
            raise FormatError(f"{where}: {error}") from None


def tensor_name(number: int, part: str) -> str:
    """The name of a tensor of head `number`, from 0: part is such as "proj_down.weight"."""
    return f"{TENSOR_PREFIX}{number}.{part}"


_BARE: dict[str, Any] = {
    "activation": "none",
    "bias": False,
    "residual_weight": False,
    "embedding_norm": False,
}
_WORDS: dict[str, Any] = {
    "architecture": Architecture,
    "activation": HeadActivation,
    "start": Start,
    "carry": Carry,
}
_FLAGS = ("shared", "bias", "residual_weight", "embedding_norm")

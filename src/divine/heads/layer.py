"""The second architecture of drafting heads, as data: one transformer layer on the base's states.

A LayerDefinition says exactly how a row is computed; layer_reference.py is that computation in
NumPy. One layer serves all depths and remembers a sequence's earlier rows, as the draft models of
EAGLE-3 (Li et al. 2025) do; the recurrent heads of definition.py remember nothing. Knows no weights
and no files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from divine.checks import check_integer, check_number
from divine.errors import FormatError, UsageError
from divine.gguf import Metadata, MetaValue, typed
from divine.heads.checks import (
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

HEAD_DIM = 64

_MOST = {
    "dim": 1 << 20,
    "depths": 64,
    "heads": 1 << 12,
    "kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "ffn": 1 << 22,
    "window": 1 << 20,
}

_KEYS = {  # GGUF key -> field
    "attention_heads": "heads",
    "kv_heads": "kv_heads",
    "head_dim": "head_dim",
    "ffn_dim": "ffn",
    "window": "window",
}


@dataclass(frozen=True)
class LayerDefinition:
    """How a drafting layer computes.

    Let h be the base's last hidden state after its final norm at position t, E the base's embedding
    table, W its output matrix, y_i the token at position i and rms(x) = x / sqrt(mean(x^2) + eps).
    Row p of a sequence belongs to the token y_{p+1} and the state z behind it:

        z   = h / g_final at p           taps ("final",): without the final norm's gain
              rms(taps . [rms(a) ; ...]) several taps a, b, ... of the base, in their order
              n of row p - 1             where the base has not been: the layer's own state
        e   = rms(E[y_{p+1}])
        x   = fuse . [z ; e]
        a   = attn_output . attention(rms(x) * attn_norm)
        m   = rms(x + a) * ffn_norm
        s   = residual * z + a + ffn_down . (silu(ffn_gate . m) * (ffn_up . m))
        n   = rms(s)
        o   = n * norm                   logits of y_{p+2} = W . o

    So what goes by the branches is the state alone, as with recurrent heads, and the token comes in
    through them. Attention is causal over the sequence's rows, at most `window` of them with the
    row itself, with grouped queries, and turned by rope: pairs (i, i + head_dim / 2) by the row's
    position times rope_theta^(-2i / head_dim); scores are divided by sqrt(head_dim). Rows are those
    of the answer: the prompt has none but its last.
    """

    dim: int  # d, width of the base
    heads: int  # of queries
    kv_heads: int
    head_dim: int
    ffn: int  # rows of ffn_gate
    depths: int = 3  # how many rows in a row it is trained to go on its own states, the first on h
    architecture: Literal["layer"] = "layer"
    taps: tuple[str, ...] = (FINAL_TAP,)
    window: int = 64
    rope_theta: float = 10000.0
    eps: float = 1e-5
    discount_gamma: float = 0.9  # of the training loss; computes nothing
    draft_vocab: int = 0  # tokens of the draft vocabulary's list; 0: there is none, all are drafted

    def __post_init__(self) -> None:
        """Raises UsageError for a setting that is not allowed."""
        for name, most in _MOST.items():
            check_integer(name, getattr(self, name), 1, most)
        check_integer("draft_vocab", self.draft_vocab, 0, 2**31 - 1)
        for name, high in (("rope_theta", 1e9), ("eps", 1.0), ("discount_gamma", 1.0)):
            check_number(name, getattr(self, name), 0, high, above=True)
        if self.architecture != "layer":
            raise UsageError(f"architecture is {self.architecture!r}; layer is allowed")
        if self.heads % self.kv_heads:
            raise UsageError(
                f"kv_heads is {self.kv_heads}; a divisor of heads, {self.heads}, is allowed"
            )
        if self.head_dim % 2:
            raise UsageError(f"head_dim is {self.head_dim}; an even number is allowed")
        if self.window < self.depths:
            raise UsageError(f"window is {self.window}; at least depths, {self.depths}, is allowed")
        if not self.taps or not all(self.taps):
            raise UsageError(f"taps are {self.taps!r}; names of taps are allowed")

    @classmethod
    def for_width(cls, dim: int, **settings: Any) -> LayerDefinition:
        """A layer for a base of width `dim`; `settings`: fields that should not be the usual."""
        heads = settings.pop("heads", None) or max(1, dim // HEAD_DIM)
        usual = {"kv_heads": heads, "head_dim": HEAD_DIM, "ffn": 2 * dim}
        return cls(dim, heads, **{**usual, **settings})

    @property
    def start(self) -> Literal["unit"]:
        """As of recurrent heads: the final norm's gain is taken out."""
        return "unit"

    @property
    def sets(self) -> int:
        """How many sets of tensors there are: one for all depths."""
        return 1

    @property
    def fused(self) -> bool:
        """Whether the base's states go through a matrix of their own."""
        return self.taps != (FINAL_TAP,)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names of all tensors with their shapes in NumPy order, [out, in] for matrices."""
        d, queries, keys = self.dim, self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {}
        if self.fused:
            shapes["taps.weight"] = (d, len(self.taps) * d)
        shapes |= {
            "fuse.weight": (d, 2 * d),
            "residual.weight": (d,),
            "attn_norm.weight": (d,),
            "attn_q.weight": (queries, d),
            "attn_k.weight": (keys, d),
            "attn_v.weight": (keys, d),
            "attn_output.weight": (d, queries),
            "ffn_norm.weight": (d,),
            "ffn_gate.weight": (self.ffn, d),
            "ffn_up.weight": (self.ffn, d),
            "ffn_down.weight": (d, self.ffn),
            "norm.weight": (d,),
        }
        named = {layer_tensor(part): shape for part, shape in shapes.items()}
        if self.draft_vocab:
            named[DRAFT_VOCAB] = (self.draft_vocab,)
        return named

    @property
    def parameters(self) -> int:
        """Trained numbers; the draft vocabulary is none."""
        return trained_numbers(self.tensor_shapes())

    @property
    def summary(self) -> str:
        """In a few words."""
        return f"a layer of {self.heads}/{self.kv_heads} heads, ffn {self.ffn}"

    def check_shapes(self, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
        """Raises FormatError naming the first tensor that is missing, unknown or ill-shaped.

        `shapes`: the divine.mtp.* tensors of `where`, a file's name.
        """
        what, owned = f"{self.summary}, width {self.dim}", "they are a layer"
        check_shapes(self.tensor_shapes(), shapes, where, what, owned)

    def to_keys(self) -> dict[str, MetaValue]:
        """GGUF metadata."""
        return {
            PREFIX + "architecture": self.architecture,
            PREFIX + "num_heads": typed("u32", self.depths),
            PREFIX + "discount_gamma": typed("f32", self.discount_gamma),
            PREFIX + "shared_lm_head": True,
            PREFIX + "version": typed("u32", VERSION),
            PREFIX + "hidden_dim": typed("u32", self.dim),
            PREFIX + "draft_vocab": typed("u32", self.draft_vocab),
            PREFIX + "eps": typed("f64", self.eps),
            PREFIX + "rope_theta": typed("f64", self.rope_theta),
            PREFIX + "taps": typed("[string]", self.taps),
            **{PREFIX + key: typed("u32", getattr(self, field)) for key, field in _KEYS.items()},
        }

    @classmethod
    def from_keys(cls, metadata: Metadata, where: str) -> LayerDefinition:
        """The definition in a GGUF's metadata, of a version that is known. Raises FormatError."""
        sizes: dict[str, Any] = {field: metadata.int(PREFIX + key) for key, field in _KEYS.items()}
        try:
            return cls(
                dim=metadata.int(PREFIX + "hidden_dim"),
                depths=metadata.int(PREFIX + "num_heads"),
                taps=tuple(metadata.strings(PREFIX + "taps")),
                rope_theta=metadata.float(PREFIX + "rope_theta"),
                eps=metadata.float(PREFIX + "eps"),
                discount_gamma=plain(metadata.float(PREFIX + "discount_gamma", 0.9)),
                draft_vocab=metadata.int(PREFIX + "draft_vocab", 0),
                **sizes,
            )
        except UsageError as error:
            raise FormatError(f"{where}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the fields by name, and the version of their meaning."""
        return {"version": VERSION, **dataclasses.asdict(self), "taps": list(self.taps)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str) -> LayerDefinition:
        """From to_dict(); raises FormatError for unknown or missing fields and wrong values."""
        known = {field.name for field in dataclasses.fields(cls)}
        needed = {"architecture", "dim", "heads", "kv_heads", "head_dim", "ffn"}
        fields = fields_of(values, known, needed, where)
        taps = fields.get("taps", [FINAL_TAP])
        names = isinstance(taps, list) and all(isinstance(tap, str) for tap in taps)
        fields["taps"] = tuple(taps) if names else ()
        try:
            return cls(**fields)
        except UsageError as error:
            raise FormatError(f"{where}: {error}") from None


def layer_tensor(part: str) -> str:
    """The name of a tensor of the layer: part is such as "fuse.weight"."""
    return f"{TENSOR_PREFIX}layer.{part}"

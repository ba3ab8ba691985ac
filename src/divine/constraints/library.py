"""The grammar library (llguidance), loaded when it is first needed, and a tokenizer in its terms.

Building the table of a large vocabulary takes about a second; it is made once for each tokenizer
and forgotten with it. Knows no schemas and no sampling.
"""

from __future__ import annotations

import threading
from importlib import import_module
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary, ref

from divine.errors import UnsupportedError
from divine.text import Tokenizer

_tables: WeakKeyDictionary[Tokenizer, Any] = WeakKeyDictionary()
_making = threading.Lock()

# What one grammar may take while an answer is written: a mask stays a matter of milliseconds and
# the lexer's tables a matter of some 50 MB, whoever wrote the grammar.
LIMITS = {"max_lexer_states": 30_000, "step_max_items": 20_000, "max_items_in_row": 1000}


def library() -> Any:
    """The module llguidance; raises UnsupportedError saying how to install it."""
    try:
        return import_module("llguidance")
    except ImportError:
        raise UnsupportedError(
            "constrained output needs the package llguidance; install it with "
            "pip install 'divine-llm[json]'"
        ) from None


def limits() -> Any:
    """The library's bounds on one grammar; its messages then quote nothing of an answer."""
    return library().LLParserLimits(verbose_errors=False, **LIMITS)


def vocabulary_table(tokenizer: Tokenizer) -> Any:
    """The library's view of a tokenizer: an LLTokenizer."""
    with _making:
        if tokenizer not in _tables:
            _tables[tokenizer] = _make(tokenizer)
        return _tables[tokenizer]


class _Wrapped:
    """What the library asks of a tokenizer; the table must not keep its own key alive."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts = [tokenizer.token_bytes(id_) for id_ in range(tokenizer.vocabulary)]
        self.special_token_ids = [id_ for id_, text in enumerate(texts) if not text]
        # Named by number: a grammar from outside must not be able to ask for control tokens.
        self.tokens = [text or b"<|%d|>" % id_ for id_, text in enumerate(texts)]
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = min(_ends(tokenizer))
        self._tokenizer = ref(tokenizer)

    def __call__(self, text: bytes | str) -> list[int]:
        """Token ids of forced text, as far as the vocabulary can write it."""
        tokenizer = self._tokenizer()
        assert tokenizer is not None
        ids = tokenizer.encode_answer(text if isinstance(text, str) else text.decode())
        return list(takewhile(tokenizer.token_bytes, ids))


def _make(tokenizer: Tokenizer) -> Any:
    llguidance = library()
    slices = llguidance.LLTokenizer.json_slices()
    wrapped = llguidance.TokenizerWrapper(_Wrapped(tokenizer))
    return llguidance.LLTokenizer(wrapped, tokenizer.vocabulary, _ends(tokenizer), slices)


def _ends(tokenizer: Tokenizer) -> list[int]:
    ends = sorted(tokenizer.end_ids)
    if not ends:
        raise UnsupportedError(
            "constrained output needs a model with a token that ends an answer; this one has none"
        )
    return ends

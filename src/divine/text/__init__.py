"""Text and tokens: tokenizers from GGUF metadata, incremental decoding, chat templates."""

from __future__ import annotations

from divine.text.chat import encode_chat
from divine.text.incremental import IncrementalDecoder
from divine.text.messages import check_messages
from divine.text.template import ChatTemplate
from divine.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "IncrementalDecoder", "Tokenizer", "check_messages", "encode_chat"]

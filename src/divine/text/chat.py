"""A chat to token ids, such that no text in a message can act as a special token.

Content that holds the text of one ("<|im_end|>") must not close its own turn. So each occurrence is
broken by a sentinel before the template is rendered; in the rendered text only the template's own
special tokens are left whole; what lies between them is tokenized as ordinary text, without the
sentinels. In what the model itself said, user-defined tokens (<think>, <tool_call>) stay tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from divine.errors import UsageError
from divine.text.messages import Message, check_messages, check_tools, map_texts
from divine.text.special import SpecialSplitter
from divine.text.template import ChatTemplate
from divine.text.tokenizer import Tokenizer, check_unicode

# Noncharacters, never to be used in exchanged text; U+FDD0 is the template module's own mark.
_SENTINELS = [chr(code) for code in range(0xFDD1, 0xFDF0)]


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of the rendered chat, with one BOS if the file wants one or the template writes it.

    Options as in ChatTemplate.render. Raises TemplateError and UsageError.
    """
    checked, checked_tools = check_messages(messages), check_tools(tools)
    texts: list[str] = []

    def collect(text: str) -> str:
        check_unicode(text)
        texts.append(text)
        return text

    map_texts([checked, checked_tools, extra], collect, "messages")
    controls, markers = tokenizer.controls, tokenizer.markers
    # Nor may a token hold it: protecting a text from that one would never end.
    sentinel = _unused_sentinel([*texts, "".join(markers.texts)])

    def protect(value: Any, splitter: SpecialSplitter) -> Any:
        return map_texts(value, lambda text: splitter.protect(text, sentinel), "messages")

    def protect_message(message: Message) -> Message:
        role = message["role"]  # one of a few words; templates compare it
        splitter = controls if role == "assistant" else markers
        return {**protect(message, splitter), "role": role}

    rendered = template.render(
        [protect_message(one) for one in checked],
        tools=protect(checked_tools, markers),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        extra=protect(extra, markers),
    )
    escaped = f"\\u{ord(sentinel):04x}"  # as tojson(ensure_ascii=True) writes it
    parts = (
        part if isinstance(part, int) else part.replace(sentinel, "").replace(escaped, "")
        for part in markers.split(rendered)
    )
    ids = tokenizer.encode_parts(parts)
    while tokenizer.bos_id is not None and ids[:2] == [tokenizer.bos_id] * 2:
        del ids[0]
    return ids


def _unused_sentinel(texts: list[str]) -> str:
    for sentinel in _SENTINELS:
        marks = (sentinel, f"\\u{ord(sentinel):04x}")
        if not any(mark in text for text in texts for mark in marks):
            return sentinel
    raise UsageError(
        "messages and special tokens use every noncharacter from U+FDD1 to U+FDEF; leave one out"
    )

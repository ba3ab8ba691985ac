"""Cutting text into words before merging: the regular expressions behind `tokenizer.ggml.pre`.

Each name stands for one or more passes; a pass cuts every piece of the pass before it into matches
and what lies between them. ASCII text goes through Python's own `re`, ten times as fast and equal
by construction (classes spelled out); other text through HF `tokenizers`, whose Unicode tables do
not depend on the Python version. The patterns are facts of the models' own tokenizer.json files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from divine.errors import UnsupportedError

if TYPE_CHECKING:
    from tokenizers import pre_tokenizers

# Inside brackets only, so that one table can spell them out for ASCII.
_ASCII_CLASSES = {
    r"\p{L}": "A-Za-z",
    r"\p{Lu}": "A-Z",
    r"\p{Ll}": "a-z",
    r"\p{Lt}": "",
    r"\p{Lm}": "",
    r"\p{Lo}": "",
    r"\p{M}": "",
    r"\p{N}": "0-9",
    r"\p{P}": r"!-#%-*,-/:;?@\[-\]_{}",
    r"\p{S}": r"$+<->\^`|~",
    r"\s": r"\t-\r ",
}
_CLASS = re.compile(r"\\p\{\w+\}|\\s")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"[\s]*[\r\n]+|[\s]+(?![^\s])|[\s]+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|[\s]+(?![^\s])|[\s]+"


def _gpt4(digits: str, letters: str = r"\p{L}") -> str:
    """The family of cl100k: contractions in any case, limited digits, line ends on symbols."""
    symbols = rf" ?[^\s{letters}\p{{N}}]+[\r\n]*"
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|[\p{{N}}]{digits}|{symbols}|{_SPACES}"
    )


def _gpt4o(digits: str, suffix: str) -> str:
    """The family of o200k: words also end where lower case turns to upper case."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"
        rf"|[\p{{N}}]{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_LLAMA3 = _gpt4("{1,3}")
_DIGITS_THEN_GPT2 = (r"[\p{N}]", _GPT2)
_DEEPSEEK_V3 = (
    r"[\p{N}]{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
# Cased letters of Unicode's bicameral scripts, as DeepSeek-LLM lists them.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    "\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_HAN_AND_HANGUL = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"[\s]?[{_CASED}]+",
    r"[\s]?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"(?<![\s])[\s]+$",  # the lookbehind only spares trying a run at each of its spaces
    _HAN_AND_HANGUL,
    r"[\p{N}]+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"[\s]?[\p{L}]+", r"[\s]?[\p{P}]+", _HAN_AND_HANGUL, r"[\p{N}]")
_DEFAULT = (r"[\p{P}$+<=>\^~|]+", _GPT2, r"[\p{N}]+", "[0-9][0-9][0-9]")
_FALCON = (r"[\p{P}$+<=>\^~|`]+", _GPT2, "[0-9][0-9][0-9]")


@dataclass(frozen=True)
class PreTokenizer:
    """One way to cut text into words, and what goes with it in files that do not say."""

    passes: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is taken whole
    add_bos: bool = False  # when the file has no add_bos_token

    def split(self, text: str) -> list[str]:
        """The words of the text; joined they are the text again."""
        if not text.isascii():
            return [word for word, _ in self._unicode.pre_tokenize_str(text)]
        words = [text]
        for pattern in self._ascii:
            words = [part for word in words for part in pattern.split(word) if part]
        return words

    @cached_property
    def _ascii(self) -> list[re.Pattern[str]]:
        return [
            re.compile(f"({_CLASS.sub(lambda match: _ASCII_CLASSES[match[0]], one)})")
            for one in self.passes
        ]

    @cached_property
    def _unicode(self) -> pre_tokenizers.PreTokenizer:
        from tokenizers import Regex, pre_tokenizers  # 0.1 s that many prompts do not need

        return pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(_as_oniguruma(one)), "isolated") for one in self.passes]
        )


def _as_oniguruma(pattern: str) -> str:
    """HF's regex engine takes characters as they are where Python takes an escape with u."""
    return re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), pattern)


def _table() -> dict[str, PreTokenizer]:
    plain = {
        "default": _DEFAULT,
        "falcon": _FALCON,
        "deepseek-llm": _DEEPSEEK_LLM,
        "deepseek-coder": _DEEPSEEK_CODER,
        "qwen35": (_gpt4("", r"\p{L}\p{M}"),),
    }
    groups = {
        "deepseek-v3 hunyuan-dense joyai-llm": PreTokenizer(_DEEPSEEK_V3),
        "smollm refact codeshell starcoder command-r exaone minerva-7b": PreTokenizer(
            _DIGITS_THEN_GPT2
        ),
        "gpt2 gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat mellum modern-bert "
        "a.x-4.0": PreTokenizer((_GPT2,)),
        "qwen2 deepseek-r1-qwen stablelm2 hunyuan solar-open kormo f2llmv2 megrez": PreTokenizer(
            (_gpt4(""),)
        ),
        "dbrx smaug-bpe chatglm-bpe": PreTokenizer((_LLAMA3,)),
        "glm4 glm5": PreTokenizer((_LLAMA3,), ignore_merges=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0": PreTokenizer(
            (_LLAMA3,), ignore_merges=True, add_bos=True
        ),
        "tekken": PreTokenizer((_gpt4o("", ""),), ignore_merges=True, add_bos=True),
        "gpt-4o llama4 kanana2": PreTokenizer((_gpt4o("{1,3}", _CONTRACTIONS + "?"),)),
    }
    table = {name: PreTokenizer(passes) for name, passes in plain.items()}
    return table | {name: value for names, value in groups.items() for name in names.split()}


PRE_TOKENIZERS = _table()


def pre_tokenizer(name: str, file: str) -> PreTokenizer:
    """The pre-tokenizer of that name. Raises UnsupportedError with the list of known ones."""
    if name not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"{file}: the pre-tokenizer {name[:80]!r} (tokenizer.ggml.pre) is not supported; "
            f"known are {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return PRE_TOKENIZERS[name]

"""Colours of drafted tokens: on terminals only, and the text stays the text."""

from __future__ import annotations

import sys

import pytest

from divine.api import Chunk, Span
from divine.cli.drafts import DraftColours

OWN, NGRAM, MODEL = (), ("ngram",), ("model",)
CHUNKS = [
    Chunk("Hello wor", [1, 2], [Span("Hello", OWN), Span(" wor", NGRAM)]),
    Chunk("ld, again", [3, 4], [Span("ld,", NGRAM), Span(" again", MODEL)]),
    Chunk(" and\x1b[2J", [5, 6], [Span(" and", ("ngram", "model")), Span("\x1b[2J", OWN)]),
    Chunk("", [7], []),
]
PLAIN = "Hello world, again and"


@pytest.fixture
def show(capsys, monkeypatch):
    """Write the chunks and the legend; what reached standard output and standard error."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def run(*, out: bool, err: bool, chunks=CHUNKS, wanted: bool = True) -> tuple[str, str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: out)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: err)
        colours = DraftColours(wanted=wanted)
        for chunk in chunks:
            colours.write(chunk)
        colours.legend()
        colours.legend()  # a second time there is nothing new to say
        return tuple(capsys.readouterr())

    return run


def test_tokens_have_the_colour_of_their_drafter(show):
    out, err = show(out=True, err=True)
    assert out == (
        "Hello\x1b[32m wor\x1b[0m\x1b[32mld,\x1b[0m\x1b[34m again\x1b[0m"
        "\x1b[32;4m and\x1b[0m\u241b[2J"  # the model's own escape does nothing
    )
    assert err == (
        "[drafted by \x1b[32mngram\x1b[0m, \x1b[34mmodel\x1b[0m, "
        "underlined if others had guessed it, too; the rest by nobody]\n"
    )


def test_neighbours_of_one_drafter_are_one_piece(show):
    chunk = Chunk("abc", [1, 2, 3], [Span("a", NGRAM), Span("b", NGRAM), Span("c", OWN)])
    assert show(out=True, err=True, chunks=[chunk])[0] == "\x1b[32mab\x1b[0mc"


def test_a_legend_in_a_file_has_no_colours(show):
    out, err = show(out=True, err=False)
    assert "\x1b[32m" in out
    assert err == (
        "[drafted by ngram, model, underlined if others had guessed it, too; the rest by nobody]\n"
    )


def test_without_a_terminal_text_is_plain(show):
    out, err = show(out=False, err=True)
    assert out == PLAIN + "\x1b[2J"
    assert err == ""


def test_unless_asked_for_there_are_no_colours(show):
    out, err = show(out=True, err=True, wanted=False)
    assert out == PLAIN + "\u241b[2J"
    assert err == ""


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_whoever_wants_no_colours_gets_none(show, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    out, err = show(out=True, err=True)
    assert out == PLAIN + "\u241b[2J"
    assert err == ""


def test_an_empty_no_color_means_nothing(show, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "")
    assert "\x1b[32m" in show(out=True, err=True)[0]


def test_nothing_drafted_needs_no_legend(show):
    out, err = show(out=True, err=True, chunks=[Chunk("a\nb", [1], [Span("a\nb", OWN)])])
    assert (out, err) == ("a\nb", "")


def test_drafters_for_experiments_have_a_colour(show):
    chunk = Chunk("0", [], [Span("0", ("synthetic:0.5",))])
    assert show(out=True, err=True, chunks=[chunk])[0] == "\x1b[32m0\x1b[0m"

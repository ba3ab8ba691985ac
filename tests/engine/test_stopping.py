"""Stop strings: nothing leaks, nothing is lost, whatever the pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divine.engine.stopping import StopStrings
from divine.errors import UsageError


def feed(stops, pieces):
    watcher, shown = StopStrings(stops), []
    for piece in pieces:
        text, stopped = watcher.push(piece)
        shown.append(text)
        if stopped:
            return "".join(shown), True
    shown.append(watcher.finish())
    return "".join(shown), False


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "stopped"),
    [
        (["O P Q"], ["L M N", " O", " P", " Q", " R"], "L M N ", True),
        (["\n"], ["What", "?\n", "more"], "What?", True),
        (["Alice:", "Alice"], ["Bob: hi ", "Alice", ":"], "Bob: hi ", True),
        (["Alice:", "Alice"], ["x Alice: y"], "x ", True),
        (["Mars X"], ["on Mars", " we", " live"], "on Mars we live", False),
        (["Mars X"], ["on Mars", " "], "on Mars ", False),
        (["l"], ["Hello"], "He", True),
        (["🦙"], ["a", "🦙", "b"], "a", True),
        (["aab"], ["a", "a", "a", "b"], "a", True),
        (["ab", "b"], ["a", "b"], "", True),
        ([], ["a", "b"], "ab", False),
        ("end", ["the e", "nd"], "the ", True),
    ],
)
def test_text_ends_just_before_the_earliest_stop(stops, pieces, text, stopped):
    assert feed(stops, pieces) == (text, stopped)


@given(
    st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("ab\n", max_size=3), max_size=12),
)
def test_pieces_do_not_matter_and_nothing_is_lost(stops, pieces):
    text, stopped = feed(stops, pieces)
    whole = "".join(pieces)
    by_letter = feed(stops, list(whole))
    assert whole.startswith(text)
    assert stopped == by_letter[1] == any(stop in whole for stop in stops)
    if stopped:
        assert not any(stop in text for stop in stops)
        assert any(whole[len(text) :].startswith(stop) for stop in stops)
    else:
        assert text == whole


def test_text_that_cannot_become_a_stop_is_not_held_back():
    watcher = StopStrings(["\n\nUser:"])
    assert watcher.push("Hello") == ("Hello", False)
    assert watcher.push("\n") == ("", False)
    assert watcher.push("there") == ("\nthere", False)


@pytest.mark.parametrize("stops", ["", [""], ["a", ""], [5], [None]])
def test_empty_and_odd_stops_are_refused(stops):
    with pytest.raises(UsageError, match="stop"):
        StopStrings(stops)

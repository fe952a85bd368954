# SPDX-License-Identifier: Apache-2.0
"""Stop strings: where a text ends depends on the text, not on the pieces in which it comes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qeff_zoo.runtime.text.stop_strings import StopStrings

LETTERS = "abA\n"
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)


def by_definition(text: str, stops: list[str]) -> tuple[str, bool]:
    """Read character by character until a stop string is there; the longest if there are several."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(pieces=st.lists(st.text(LETTERS, max_size=5), max_size=12), stops=STOPS)
@example(pieces=["xab", "cd"], stops=["abcd", "bc"])
@example(pieces=["abab", "ab", "aA"], stops=["ababaA"])
def test_text_ends_before_the_first_stop_string(pieces: list[str], stops: list[str]) -> None:
    expected, found = by_definition("".join(pieces), stops)
    watcher = StopStrings(stops)
    shown = ""
    for piece in pieces:
        shown += watcher.push(piece)
        assert expected.startswith(shown)  # nothing of a stop string is ever shown
        if watcher.found:
            break
    assert watcher.found == found
    assert shown + watcher.finish() == expected


@pytest.mark.parametrize(("text", "held"), [("so", ""), ("so\n", "\n"), ("so\n\nU", "\n\nU")])
def test_only_what_may_become_one_is_held_back(text: str, held: str) -> None:
    watcher = StopStrings(["\n\nUser:"])
    assert watcher.push(text) == text.removesuffix(held)
    assert watcher.finish() == held

# SPDX-License-Identifier: Apache-2.0
"""Negation of regular expressions, for a library without look-around: expressions of all texts that do not match.

Those of some forms have one: texts, alone or as beginnings, and what contains a character or a pair of it.
"""

import json
import re
from collections.abc import Sequence

#: One character: itself, an escape that is the same in a class, or a class.
_ATOM = r"(?:[^\\.^$*+?()\[\]{}|/]|\\[dDsSwWnrtf]|\\[^\w]|\[(?:[^\\\[\]]|\\.)+\])"
_TEXT = r"(?:[^\\.^$*+?()\[\]{}|]|\\[^\w])*"
_SEVERAL = rf"{_TEXT}(?:\|{_TEXT})*"
#: A character in any place, or twice in a row; only such characters; texts as beginnings, or whole.
_ANYWHERE = re.compile(rf"(?:\.\*\??)?({_ATOM})")
_TWICE = re.compile(rf"(?:\.\*\??)?({_ATOM})(?:\1|\{{2\}})")
_ONLY = re.compile(rf"({_ATOM})\*\$")
_BEGINNINGS = re.compile(rf"\((?:\?:)?(?P<group>{_SEVERAL})\)|(?P<texts>{_SEVERAL})")
_WHOLE = re.compile(rf"\((?:\?:)?(?P<group>{_SEVERAL})\)\$|(?P<texts>{_TEXT})\$")


def without_match(pattern: str) -> str | None:
    """Return an expression of texts that have no match of another one; None if its form has none."""
    if not pattern.startswith("^"):
        return _without_any(pattern)
    is_several = "|" in pattern and not pattern.startswith(
        "^("
    )  # of which the first alone is at the beginning
    return None if is_several else without_beginning(pattern[1:])


def without_beginning(pattern: str) -> str | None:
    """Return an expression of texts whose beginnings do not match; None for one of a form without it.

    Args:
        pattern: Expression of beginnings, as in negative look-ahead.
    """
    if pattern.startswith(".*") and (negated := _without_any(pattern)) is not None:
        return negated
    if match := _ONLY.fullmatch(pattern):
        return _others(match[1])
    for form in (_BEGINNINGS, _WHOLE):
        if match := form.fullmatch(pattern):
            given = re.split(r"(?<!\\)\|", match["group"] or match["texts"] or "")
            texts = [re.sub(r"\\(.)", r"\1", text) for text in given]
            return pattern_without(texts) if form is _WHOLE else _without_beginnings(texts)
    return None


def _without_any(pattern: str) -> str | None:
    if match := _ANYWHERE.fullmatch(pattern):
        return f"^{_others(match[1])}*$"
    if match := _TWICE.fullmatch(pattern):
        return f"^({match[1]}?{_others(match[1])})*{match[1]}?$"
    return None


def _others(atom: str) -> str:
    """Return the class of all other characters than those of an atom."""
    if atom.startswith("[^"):
        return f"[{atom[2:-1]}]"
    return f"[^{atom[1:-1] if atom.startswith('[') else _in_class(atom)}]"


def _in_class(atom: str) -> str:
    return atom if atom.startswith("\\") else _escaped(atom)


def pattern_without(texts: Sequence[str]) -> str:
    """Return a regular expression of all texts but some."""
    return f"^{_rest_without(sorted({*texts}))}$"


def _rest_without(texts: Sequence[str]) -> str:
    """Return the expression of all ends of a text but some."""
    if not texts:
        return r"[\s\S]*"
    by_first: dict[str, list[str]] = {}
    for text in filter(None, texts):
        by_first.setdefault(text[0], []).append(text[1:])
    alternatives = [] if "" in texts else [""]
    if by_first:
        others = "".join(map(_escaped, by_first))
        alternatives.append(rf"[^{others}][\s\S]*")
        alternatives += [
            f"{_escaped(name)}{_rest_without(ends)}" for name, ends in by_first.items()
        ]
    else:
        alternatives.append(r"[\s\S]+")
    return f"({'|'.join(alternatives)})"


def _without_beginnings(texts: Sequence[str]) -> str | None:
    """Return a regular expression of all texts that begin with none of some; None if all texts begin with one."""
    if "" in texts:
        return None
    return f"^{_rest_without_beginnings(sorted({*texts}))}"


def _rest_without_beginnings(texts: Sequence[str]) -> str:
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[0], []).append(text[1:])
    others = "".join(map(_escaped, by_first))
    alternatives = [rf"[^{others}][\s\S]*", "$"]
    for one, ends in by_first.items():
        if "" not in ends:
            alternatives.append(f"{_escaped(one)}{_rest_without_beginnings(ends)}")
    return f"({'|'.join(alternatives)})"


def _escaped(character: str) -> str:
    """Return a character as ECMAScript and Rust write it, in a class or outside."""
    if character.isalnum() or character in " _":
        return character
    code = json.dumps(character)[1:-1]
    if code.startswith("\\u") and len(code) > 6:  # a surrogate pair
        return character
    return code if code.startswith("\\") and code[1] in "nrtf" else f"\\x{{{ord(character):x}}}"

# SPDX-License-Identifier: Apache-2.0
"""Limit of how much the rules of a tokenizer.json lengthen a text, computed before any rule runs.

A rule that doubles a text, forty times over, exhausts the memory and ends the process. Input: the content of a
tokenizer.json. Output: for each stage, the maximum number of characters for one.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

#: Maximum number of characters for one: ﷺ in NFKC has 18, NFC and GPT-2's bytes have a few.
MOST = 1000
#: Maximum number of characters of all added tokens, which are normalized when a file is read.
MOST_ADDED = 100_000_000
_MODEL = b'"model"'
_NO_NUMBER = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*[^-0-9 \t\r\n]")  # as a token of that name has
#: Members of a tokenizer.json with rules, or with texts that rules change, and the JSON that follows their names.
_RULES = {
    **{
        f'"{name}"'.encode(): _NO_NUMBER
        for name in ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    },
    b"\\u00": re.compile(b"[4-7]"),
}
_ASCII = "".join(map(chr, range(128)))
_PARTS = ("normalizers", "pretokenizers", "processors", "decoders")
#: Characters that each rule makes of one, by type.
_FACTORS = {
    "NFC": 4, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 6,
    "ByteLevel": 4, "WordPiece": 2, "BPEDecoder": 2, "CTC": 2,
}  # fmt: skip
#: Types that map each ASCII character to one: itself, or its lower case; for `ByteLevel`, if it is printable.
_OF_ASCII = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "BertNormalizer", "ByteLevel")
#: Types whose repetition changes nothing, unless a rule between them writes new characters.
_NORMAL_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


class _Weights:
    """Number of characters that the following rules make of one, by character; `other` for those without an entry."""

    def __init__(self) -> None:
        self.other = 1.0
        self.own: dict[str, float] = {}

    @property
    def most(self) -> float:
        """Maximum of all weights."""
        return max(self.other, *self.own.values(), 1.0)

    def of(self, text: str) -> float:
        """Return the number of characters for a text."""
        return sum(self.own.get(char, self.other) for char in text)

    def multiply(self, factor: float, kept: str = "") -> None:
        """Prepend a rule that multiplies characters by a factor, except for kept ones."""
        own = {char: max(self.of(char), self.of(char.lower())) for char in kept}
        self.other, self.own = factor * self.most, own

    def insert(self, text: str) -> None:
        """Prepend a rule that may insert a text before each character and at the end."""
        more = self.of(text)
        self.other += more
        self.own = {char: weight + more for char, weight in self.own.items()}

    def replace(self, old: str, new: str) -> None:
        """Prepend a rule that replaces a text by another, whose growth its characters share."""
        share = self.of(new) / len(old)
        for char in set(old):
            self.own[char] = max(self.own.get(char, self.other), share)


def excess(text: str | bytes) -> str:
    """Return the fault of a tokenizer that may make more than `MOST` characters of one; "" if there is none.

    Args:
        text: Content of the tokenizer.json; text that is no JSON is left to the library that reads it.
    """
    try:
        content = _rules(text.encode() if isinstance(text, str) else text)
    except (RecursionError, ValueError):
        return ""
    if not isinstance(content, dict):
        return ""
    stages = growth(content)
    tokens = content.get("added_tokens")
    read = _weights(_flat(content.get("normalizer")))
    added = sum(
        read.of(str(token.get("content"))) for token in tokens or () if isinstance(token, dict)
    )
    if added > MOST_ADDED:
        return f"its added tokens may have more than {MOST_ADDED:,} characters when they are normalized"
    return next(
        (
            f"its {stage} may make more than {MOST:,} characters of one"
            for stage, most in stages.items()
            if most > MOST
        ),
        "",
    )


def _rules(text: bytes) -> Any:
    """Parse a tokenizer.json without its vocabulary, which would take most of the time.

    Raises:
        ValueError: The text is no JSON.
    """
    # An integer may have more digits than Python takes.
    parse = partial(json.loads, parse_int=float)
    at = text.find(_MODEL)
    if at >= 0 and not _has_rules(text, at):
        with suppress(ValueError):  # where another member is called so
            return parse(text[:at] + _MODEL + b":0}")
    return parse(text)


def _has_rules(text: bytes, start: int) -> bool:
    """Return whether a part of JSON may have rules: a rule's name, or an escaped letter, which may be part of one."""
    for name, more in _RULES.items():
        at = start
        while (at := text.find(name, at)) >= 0:
            at += len(name)
            if more.match(text, at):
                return True
    return False


def growth(content: Mapping[str, Any]) -> dict[str, float]:
    """Return the maximum number of characters or tokens for one character, by stage of a tokenizer.

    Args:
        content: Parsed content of the tokenizer.json.
    """
    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    normalizer, splitter, template, decoder = (_flat(content.get(name)) for name in names)
    stages = {"normalizer": [*normalizer, *splitter], names[2]: template, names[3]: decoder}
    return {stage: _weights(rules).most for stage, rules in stages.items()}


def _flat(rule: Any) -> list[Mapping[str, Any]]:
    """Return the single rules of a stage, in order."""
    if not isinstance(rule, Mapping):
        return []
    parts = next((rule[key] for key in _PARTS if isinstance(rule.get(key), list)), None)
    return [rule] if parts is None else [one for part in parts for one in _flat(part)]


def _weights(rules: list[Mapping[str, Any]]) -> _Weights:
    weights, is_normal = _Weights(), False
    factors = []
    for rule in rules:
        kind = rule.get("type")
        again = is_normal and kind in _NORMAL_FORMS
        factors.append(1 if again else _FACTORS.get(str(kind), 1))
        writes = "content" in rule or "prepend" in rule or "precompiled_charsmap" in rule
        is_normal = (is_normal or kind in ("NFKC", "NFKD")) and not writes
    for rule, factor in zip(reversed(rules), reversed(factors), strict=True):
        kind = str(rule.get("type"))
        if factor > 1:
            characters = _ASCII[33:127] if kind == "ByteLevel" else _ASCII
            weights.multiply(factor, characters if kind in _OF_ASCII else "")
        elif "content" in rule:
            pattern = rule.get("pattern")
            text = pattern.get("String") if isinstance(pattern, Mapping) else pattern
            if isinstance(text, str) and text:
                weights.replace(text, str(rule["content"]))
            else:  # a regular expression, which may match nothing anywhere
                weights.insert(str(rule["content"]))
        elif "prepend" in rule:
            weights.insert(str(rule["prepend"]))
        elif "precompiled_charsmap" in rule:
            weights.multiply(_longest(rule["precompiled_charsmap"]))
        elif isinstance(rule.get("single"), list):
            weights.multiply(_repeats(rule))
        if weights.most > MOST:
            break
    return weights


def _longest(charsmap: object) -> int:
    """Return the length of the longest text that SentencePiece's table of normalized characters writes."""
    try:
        table = base64.b64decode(str(charsmap), validate=False)
    except (binascii.Error, ValueError):
        return 1  # tokenizers refuses it
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1, *(len(text.decode(errors="replace")) for text in texts.split(b"\0")))


def _repeats(template: Mapping[str, Any]) -> int:
    """Return how often a template repeats a text."""
    written = [
        [part for part in pieces if isinstance(part, Mapping) and "Sequence" in part]
        for pieces in (template.get("single"), template.get("pair"))
        if isinstance(pieces, list)
    ]
    return max(1, *map(len, written))

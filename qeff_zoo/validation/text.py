# SPDX-License-Identifier: Apache-2.0
"""Whether a package reads and writes text as transformers does: tokens, decoded text and chat template, to the bit.

In: a package, and what `qeff_zoo.validation.reference.text` answers for its checkpoint. Out: the checks of a stage of
its own. A canary is a corpus that is not quite the same, which a check must notice.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.errors import GenerationError, PackageError
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import source_in
from qeff_zoo.runtime.chat_template import ChatTemplate
from qeff_zoo.runtime.tokenizer import Tokenizer
from qeff_zoo.tasks import find
from qeff_zoo.validation.parity import Check

_STAGE = "text"
_QUOTED = 160  # characters of what disagrees, around the first difference


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One thing that a tokenizer does, on a corpus.

    Args:
        metric: Compared quantity.
        questions: The corpus.
        expected: transformers' answers.
        act: The package's answer to one question.
        damages: Deliberate damages to a question, by name.
    """

    metric: str
    questions: Sequence[Any]
    expected: Sequence[Any]
    act: Callable[[Any], Any]
    damages: Mapping[str, Callable[[Any], Any]]

    def agreement(self, damage: Callable[[Any], Any] | None = None) -> float:
        """Return the share of answers that are the same."""
        pairs = zip(self.questions, self.expected, strict=True)
        same = [bool(self.act(damage(one) if damage else one) == answer) for one, answer in pairs]
        return sum(same) / len(same)

    def first(self) -> tuple[Any, Any, Any] | None:
        """Return the first question whose answers differ, with the package's and transformers' answer."""
        for one, expected in zip(self.questions, self.expected, strict=True):
            if (got := self.act(one)) != expected:
                return one, got, expected
        return None


def request_of(package: Package) -> dict[str, Any] | None:
    """Return the text request to the reference; None for a package without a tokenizer.

    Args:
        package: Any.
    """
    if Tokenizer.find(package.path) is None:
        return None
    task = find(package.task)
    return {
        "model_id": source_in(package.manifest).get("model_id"),
        "parts": bool({"vision", "audio"} & task.parts.keys()),
        "writes": task.answers == "logits" or task.reads == "audio",
    }


def judge(package: Package, answer: Mapping[str, Any] | None, level: str) -> list[Check]:
    """Return the checks of a package's text; none for a package without a tokenizer.

    Args:
        package: Any.
        answer: Answer of `reference.text`.
        level: Level of the validation.
    """
    if answer is None:
        return []
    against = {
        "reference": answer["class"],
        "revision": source_in(package.manifest).get("revision"),
        "transformers": answer["transformers"],
        "dtype": "text",
        "patched": False,
    }
    found = comparisons(package.path, answer)
    return [check_of(one, level, against) for one in found if one.questions]


def comparisons(folder: Path, answer: Mapping[str, Any]) -> list[Comparison]:
    """Return what a package does with the corpus, beside transformers' answers.

    Args:
        folder: Folder of the package.
        answer: Answer of `reference.text`.
    """
    tokenizer, template = Tokenizer.find(folder), ChatTemplate.find(folder)
    assert tokenizer

    def encode(one: str) -> list[list[int] | None]:
        try:
            return [tokenizer.encode(one), tokenizer.encode(one, special_tokens=False)]
        except (GenerationError, PackageError):  # no token for a part of it, or a pattern gave up
            return [None, None]

    def cut(question: tuple[str, str | None]) -> list[list[int] | None]:
        first, second = question
        text = first if second is None else (first, second)
        try:
            (read,) = tokenizer.encode_all([text], answer["cut_length"])
        except (GenerationError, PackageError):
            return [None, None]
        return [read.ids, read.type_ids]

    def decode(ids: Sequence[int]) -> list[str]:
        both = []
        for tokenizer.shows_special in (True, False):
            both.append(tokenizer.decode(ids))
        return both

    def render(messages: Sequence[Mapping[str, Any]]) -> str | None:
        try:
            return template.render(messages) if template else None
        except GenerationError:
            return None

    texts, short, decoded, chats = (answer[key] for key in ("texts", "cut", "decoded", "chats"))
    return [
        Comparison(
            metric="same_token_ids",
            questions=[one["text"] for one in texts],
            expected=[[one["ids"], one["plain"]] for one in texts],
            act=encode,
            damages={
                "a space more before every text": lambda one: f" {one}",
                "every text without its last character": lambda one: one[:-1],
            },
        ),
        Comparison(
            metric="same_cut_texts",
            questions=[(one["text"], one["pair"]) for one in short],
            expected=[[one["ids"], one["types"]] for one in short],
            act=cut,
            damages={"every text without its ends": lambda one: (one[0][1:-1], one[1])},
        ),
        Comparison(
            metric="same_decoded_texts",
            questions=[one["ids"] for one in decoded],
            expected=[[one["all"], one["shown"]] for one in decoded],
            act=decode,
            damages={"every text without its last token": lambda one: one[:-1]},
        ),
        Comparison(
            metric="same_rendered_chats",
            questions=[one["messages"] for one in chats],
            expected=[one["rendered"] for one in chats],
            act=render,
            damages={"every first message twice": lambda one: [one[0], *one]},
        ),
    ]


def check_of(comparison: Comparison, level: str, against: Mapping[str, Any]) -> Check:
    """Return the check of a comparison, with a canary.

    Args:
        comparison: The comparison.
        level: Level of the validation.
        against: Description of the reference.
    """
    value = comparison.agreement()
    check: Check = {
        "level": level,
        "stage": _STAGE,
        "metric": comparison.metric,
        "value": round(value, 6),
        "op": ">=",
        "threshold": 1.0,
        "threshold_from": "exact",
        "positions": len(comparison.questions),
        "passed": value == 1.0,
        "against": dict(against),
    }
    for mutation, damage in comparison.damages.items():
        caught = comparison.agreement(damage)
        if caught < 1.0:
            canary = {"mutation": mutation, "value": round(caught, 6), "failed": True}
            check["canary"] = canary
            break
    if different := comparison.first():
        check["note"] = _difference(*different, against["reference"])
    return check


def _difference(question: Any, got: Any, expected: Any, name: str) -> str:
    """Describe the first different answer, with both texts where they part."""
    ours, reference = (json.dumps(one, ensure_ascii=False) for one in (got, expected))
    pairs = enumerate(zip(ours, reference, strict=False))
    parted = next((place for place, (one, other) in pairs if one != other), 0)
    start = max(0, parted - _QUOTED // 4)
    here, there = (one[start : start + _QUOTED] for one in (ours, reference))
    quoted = json.dumps(question, ensure_ascii=False)
    quoted = quoted if len(quoted) <= _QUOTED else f"{quoted[:_QUOTED]}…"
    return f"of {quoted} the package makes …{here}, {name} makes …{there}"

# SPDX-License-Identifier: Apache-2.0
"""Whether a package reads and writes text as transformers does: tokens, decoded text and chat template, to the bit.

In: a package, and what `qeff_zoo.validation.reference.text` answers for its checkpoint. Out: the checks of a stage of
its own. A canary is a corpus that is not quite the same, which a check must notice.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qeff_zoo.contract import find
from qeff_zoo.errors import GenerationError, PackageError
from qeff_zoo.package import Package
from qeff_zoo.package.files import read_json
from qeff_zoo.package.manifest import source_in
from qeff_zoo.runtime.garbage import uncollected
from qeff_zoo.runtime.text.chat_template import ChatOptions, ChatTemplate, special_tokens
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.validation.content.exact import ExactComparison
from qeff_zoo.validation.content.tokenizer import sections
from qeff_zoo.validation.judgement.parity import Check

_STAGE = "text"


def request_of(package: Package) -> dict[str, Any] | None:
    """Return the text request to the reference; None for a package without a tokenizer.

    Args:
        package: Any.
    """
    if not Tokenizer.is_in(package.path):
        return None
    task = find(package.task)
    return {
        "model_id": source_in(package.manifest).get("model_id"),
        "parts": bool({"vision", "audio"} & task.parts.keys()),
        "writes": task.generates or task.reads == "audio",
    }


@uncollected()
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
    compared = comparisons(package.path, answer)
    return [one.check(_STAGE, level, against) for one in compared if one.questions]


def comparisons(folder: Path, answer: Mapping[str, Any]) -> list[ExactComparison]:
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

    def render_with(question: Mapping[str, Any]) -> str | None:
        options = ChatOptions(tools=question["tools"], variables=question["variables"])
        try:
            return template.render(question["messages"], options) if template else None
        except GenerationError:
            return None

    texts, short, decoded, chats, options = (
        answer[key] for key in ("texts", "cut", "decoded", "chats", "options")
    )
    # Conversations that transformers refuses are rendered in another order of roles.
    chats, options = (
        [one for one in each if one["rendered"] is not None] for each in (chats, options)
    )
    return [
        *_of_files(folder, tokenizer, answer),
        ExactComparison(
            metric="same_token_ids",
            questions=[text["text"] for text in texts],
            expected=[[text["ids"], text["plain"]] for text in texts],
            act=encode,
            damages={
                "a space more before every text": lambda one: f" {one}",
                "every text without its last character": lambda one: one[:-1],
            },
        ),
        ExactComparison(
            metric="same_cut_texts",
            questions=[(one["text"], one["pair"]) for one in short],
            expected=[[one["ids"], one["types"]] for one in short],
            act=cut,
            damages={"every text without its ends": lambda one: (one[0][1:-1], one[1])},
        ),
        ExactComparison(
            metric="same_decoded_texts",
            questions=[one["ids"] for one in decoded],
            expected=[[one["all"], one["shown"]] for one in decoded],
            act=decode,
            damages={"every text without its last token": lambda one: one[:-1]},
        ),
        ExactComparison(
            metric="same_rendered_chats",
            questions=[chat["messages"] for chat in chats],
            expected=[chat["rendered"] for chat in chats],
            act=render,
            damages={"every first message twice": lambda one: [one[0], *one]},
        ),
        ExactComparison(
            metric="same_rendered_tools",
            questions=options,
            expected=[option["rendered"] for option in options],
            act=render_with,
            damages={
                "every tool without its description": _plain_tools,
                "every first message twice": lambda one: {
                    **one,
                    "messages": [one["messages"][0], *one["messages"]],
                },
            },
        ),
    ]


def _of_files(
    folder: Path, tokenizer: Tokenizer, answer: Mapping[str, Any]
) -> Iterator[ExactComparison]:
    """Yield comparisons of all that a package's tokenizer and its settings have, whatever texts reach."""
    expected, settings = answer["content"], answer["settings"]
    content = sections(json.loads(tokenizer.json)) if expected else {}
    digests = {
        exchanged: {
            name: value.exchanged if exchanged else value.right for name, value in content.items()
        }
        for exchanged in (False, True)
    }
    yield ExactComparison(
        metric="same_tokenizer_content",
        questions=[(name, False) for name in {**expected, **content}],
        expected=[expected.get(name) for name in {**expected, **content}],
        act=lambda one: digests[one[1]].get(one[0]),
        damages={"two entries of every part exchanged": lambda one: (one[0], True)},
    )
    known = {**read_json(folder / "tokenizer_config.json"), **special_tokens(folder)}
    yield ExactComparison(
        metric="same_tokenizer_settings",
        questions=[*settings],
        expected=[*settings.values()],
        act=known.get,
        damages={"every setting missing": lambda one: f"no {one}"},
    )


def _plain_tools(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question whose tools have no description."""
    tools = [
        {**tool, "function": {**tool["function"], "description": ""}} for tool in question["tools"]
    ]
    return {**question, "tools": tools}

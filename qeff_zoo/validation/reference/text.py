# SPDX-License-Identifier: Apache-2.0
"""Part of the reference: transformers' own tokenizer, on a corpus that published tokenizers read in different ways.

In: a checkpoint's folder. Out, in JSON values: the texts with their token ids, token ids with their texts, and
conversations as the chat template renders them.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import transformers
from transformers import TokenizersBackend

from qeff_zoo.checkpoint import text
from qeff_zoo.errors import is_panic

_TEXTS = (
    *("", " ", "\n", "a", "Hello world", " Hello world", "  Hello   world  ", "Hello world\n"),
    *(
        "hello",
        "HELLO World",
        "tab\tand\r\nreturn\n\n\n  indented",
        "don't, we 're here . Right ? ' s",
    ),
    "The harbour was quiet before the storm; fishermen (all 12 of them) pulled their boats up.",
    "def merge(left, right):\n    while left and right:\n        yield left.pop(0)  # 1.5e-3 != 0x1F\n",
    "12345 67890 3.14159 1,000,000 2024-11-27T09:45 ½ ² ٣ Ⅻ",
    "naïve café Ångström ÀÉÎõü straße İstanbul \u0131i ŒŸ",
    "cafe\u0301 e\u0301\u0323 o\u0308 \u0915\u094d\u0937 \u1112\u1161\u11ab ﬁ ﬀ \uff21\uff11 ㎞ \u212b",
    "天空很蓝。孩子们在河边放风筝。山の上に小さな神社があります。カタカナ 한국어 문장입니다.",
    "Вечером играла музыка. Καλημέρα κόσμε. שלום עולם كان البحر هادئا नमस्ते दुनिया สวัสดีชาวโลก",
    "🌊🚢 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 ☺️ \U0001f9ff",
    "\u200b\u200d\ufeff\u00a0\u2009\u2028\u0085\x00\x07 ▁low ▁ Ġthing ##ing </w> @@ <0x0A> �",
    "https://example.org/a_b?c=d&e=%20#f user@mail.example snake_case CamelCase kebab-case !!!??…—“”",
    "a" * 40 + " " + "Donaudampfschifffahrtsgesellschaft" * 4 + " " + "xyzzy" * 30,
    " ".join(f"word{number}" for number in range(60)) + " " * 20 + "." * 20,
)
_CHATS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "Which way is the harbour?"),),
    (
        ("system", "Answer in one line."),
        ("user", " Two spaces \n"),
        ("assistant", "Left."),
        ("user", "And é🌊?"),
    ),
    (
        ("user", "One"),
        ("assistant", " Two "),
        ("user", "Three"),
        ("assistant", "Four"),
        ("user", "Five"),
    ),
)
_ADDED = 12  # added tokens that are read one by one, from each end of their list
_DRAWN, _LENGTH = 48, 24  # sequences of ids that are decoded, and ids of each
_CUT = 9  # tokens of texts and pairs that are cut


def answer(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what transformers makes of the corpus; None for a package that has no tokenizer.

    Args:
        request: `checkpoint`, its folder; of `text`, `model_id`, `parts`, whether messages are lists of parts, and
            `writes`, whether the model writes text, so that tokens are decoded.
    """
    corpus = request.get("text")
    if corpus is None:
        return None
    folder = Path(request["checkpoint"])
    tokenizer = text.load(folder, folder.name, corpus["model_id"])
    special = _special_tokens(tokenizer)
    chats = _chats(tokenizer, folder, special, parts=corpus["parts"])
    texts = [
        *_TEXTS,
        *_with_tokens(tokenizer, special),
        *(one["rendered"] for one in chats if one["rendered"]),
    ]
    read = [
        {"text": one, "ids": _ids(tokenizer, one), "plain": _ids(tokenizer, one, special=False)}
        for one in texts
    ]
    written = [one["ids"] or [] for one in read] + _drawn(tokenizer, special)
    if not corpus["writes"]:
        written = []
    return {
        "class": type(tokenizer).__name__,
        "transformers": transformers.__version__,
        "texts": read,
        "cut_length": _CUT,
        "cut": [_cut(tokenizer, *pair) for pair in _pairs() if text.has_backend(tokenizer)],
        "decoded": [_decoded(tokenizer, ids) for ids in written],
        "chats": chats,
    }


def _special_tokens(tokenizer: Any) -> list[str]:
    """Return the added tokens of a tokenizer, special ones among them, by their ids."""
    added = sorted(tokenizer.added_tokens_decoder.items())
    return [str(token.content) for _, token in added]


def _with_tokens(tokenizer: Any, special: Sequence[str]) -> list[str]:
    """Return texts with added tokens between words, spaces and each other."""
    named = [*tokenizer.special_tokens_map.values()]
    some = dict.fromkeys([*named, *special[:_ADDED], *special[-_ADDED:]])
    each = [f"{one}Hello {one} world{one}\n{one}" for one in some]
    return [*each, "".join(special), " ".join(special), *(f" {one}" for one in named)]


class _Unread:
    """Suppresses what `tokenizers` raises of a text that it cannot read: nothing narrower than `Exception`."""

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Return whether the error is of that kind, or a pattern gave up."""
        return kind is Exception or is_panic(kind)


def _ids(tokenizer: Any, one: str, *, special: bool = True) -> list[int] | None:
    """Return the tokens of a text; None if there is no token for a part of it."""
    found = None
    with _Unread():
        found = list(tokenizer(one, add_special_tokens=special)["input_ids"])
    return found


def _pairs() -> list[tuple[str, str | None]]:
    """Return texts, and pairs of texts, that are longer than `_CUT` tokens."""
    long = [one for one in _TEXTS if len(one) > 3 * _CUT][:6]
    return [
        *((one, None) for one in long),
        *zip(long, reversed(long), strict=True),
        (long[0], "a b"),
    ]


def _cut(tokenizer: Any, first: str, second: str | None) -> dict[str, Any]:
    """Return a text or a pair as cut to `_CUT` tokens."""
    ids = types = None
    with _Unread():
        read = tokenizer(first, second, truncation=True, max_length=_CUT)
        ids = list(read["input_ids"])
        types = list(read.get("token_type_ids", [0] * len(ids)))
    return {"text": first, "pair": second, "ids": ids, "types": types}


def _drawn(tokenizer: Any, special: Sequence[str]) -> list[list[int]]:
    """Return token ids in any order, added tokens among them but not at the beginning."""
    draw = random.Random(0)
    added = tokenizer.convert_tokens_to_ids([*special[:_ADDED], *special[-_ADDED:]])
    every = range(tokenizer.vocab_size)
    if not every:  # all of its tokens are added ones
        return []
    found = [draw.choices(every, k=_LENGTH) for _ in range(_DRAWN)]
    for number, ids in enumerate(found if added else ()):
        for place in range(1 + number % 4, _LENGTH, 5):
            ids[place] = draw.choice(added)
    return found


def _decoded(tokenizer: Any, ids: Sequence[int]) -> dict[str, Any]:
    """Return token ids as text, with special tokens and without."""
    # What a class does besides, such as joining the repeated tokens of CTC, is a session's part here.
    decode = TokenizersBackend._decode if text.has_backend(tokenizer) else type(tokenizer)._decode
    both = (decode(tokenizer, list(ids), skip_special_tokens=skip) for skip in (False, True))
    return dict(zip(("ids", "all", "shown"), (list(ids), *both), strict=True))


def _chats(
    tokenizer: Any, folder: Path, special: Sequence[str], *, parts: bool
) -> list[dict[str, Any]]:
    """Return conversations, each with the prompt that the template renders, or None; none if it renders none."""
    template = text.template_of(tokenizer, folder, media=parts)
    if template is None:
        return []
    marked = (("user", f"{''.join(special[:2])}Hello {''.join(special[-1:])}!"),)
    found = []
    for chat in (*_CHATS, marked):
        plain = [{"role": role, "content": content} for role, content in chat]
        in_parts = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in plain]
        written = _rendered(tokenizer, template, in_parts if parts else plain)
        if not parts and written is not None and not _has_message(written, chat):
            # A template that reads lists of parts alone writes nothing of a text.
            other = _rendered(tokenizer, template, in_parts)
            written = other if other and _has_message(other, chat) else written
        found.append({"messages": in_parts if parts else plain, "rendered": written})
    return found if any(one["rendered"] for one in found) else []


def _has_message(written: str, chat: Sequence[tuple[str, str]]) -> bool:
    """Return whether a prompt has a message of the conversation."""
    return any(content.strip() in written for _, content in chat)


def _rendered(tokenizer: Any, template: str, messages: Sequence[Mapping[str, Any]]) -> str | None:
    try:
        return str(
            tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=True
            )
        )
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        jinja2.TemplateError,
    ):
        return None

# SPDX-License-Identifier: Apache-2.0
"""Part of the reference: transformers' own tokenizer, on a corpus that published tokenizers read in different ways.

In: a checkpoint's folder. Out, in JSON values: the texts with their token ids, token ids with their texts, and
conversations as the chat template renders them.
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import tokenizers
import transformers
from transformers import TokenizersBackend

from qeff_zoo.checkpoint import text
from qeff_zoo.errors import is_panic
from qeff_zoo.runtime.garbage import uncollected
from qeff_zoo.validation.content.tokenizer import SETTINGS, sections

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
_TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "get_tide",
            "description": 'Height of the water, in "metres" & more.',
            "parameters": {
                "type": "object",
                "properties": {
                    "harbour": {"type": "string", "description": "Its name", "enum": ["é", "<b>"]},
                    "hours": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["harbour"],
            },
            "return": {"type": "number"},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "wait",
            "description": "Do nothing.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
)
_CALL = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "get_tide", "arguments": {"harbour": "é", "hours": [1, 2]}},
}
_QUESTION = {"role": "user", "content": "How high is it?"}
_SYSTEM = {"role": "system", "content": "Be brief."}
_CALLED: tuple[dict[str, Any], ...] = (
    _SYSTEM,
    _QUESTION,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call12345", "name": "get_tide", "content": '{"height": 2.5}'},
    {"role": "assistant", "content": "2.5 m."},
    {"role": "user", "content": "And now?"},
)
_REASONED: tuple[dict[str, Any], ...] = (
    _QUESTION,
    {"role": "assistant", "content": "2.5 m.", "reasoning_content": "The moon is full."},
    {"role": "user", "content": "And now?"},
)
#: Messages, whether tools are offered, and variables of the template.
_OPTIONS: tuple[tuple[Sequence[dict[str, Any]], bool, dict[str, Any]], ...] = (
    ((_QUESTION,), True, {}),
    ((_SYSTEM, _QUESTION), True, {}),
    (_CALLED, True, {}),
    (_CALLED[1:4], True, {}),
    (_CALLED[1:], False, {}),
    (_REASONED, False, {}),
    (_REASONED[:1], False, {"enable_thinking": False, "thinking": False}),
    (_REASONED[:1], False, {"enable_thinking": True, "thinking": True}),
    (_REASONED, True, {"enable_thinking": True, "thinking": True}),
)
_ADDED = 12  # added tokens that are read one by one, from each end of their list
_DRAWN, _LENGTH = 48, 24  # sequences of ids that are decoded, and ids of each
_CUT = 9  # tokens of texts and pairs that are cut


@uncollected()
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
    special, content = _special_tokens(tokenizer), _content(tokenizer)  # before any call sets it
    chats = _chats(tokenizer, folder, special, parts=corpus["parts"])
    texts = [
        *_TEXTS,
        *_with_tokens(tokenizer, special),
        *(chat["rendered"] for chat in chats if chat["rendered"]),
    ]
    read = [
        {
            "text": string,
            "ids": _ids(tokenizer, string),
            "plain": _ids(tokenizer, string, special=False),
        }
        for string in texts
    ]
    written = [one["ids"] or [] for one in read] + _drawn(tokenizer, special)
    if not corpus["writes"]:
        written = []
    return {
        "class": type(tokenizer).__name__,
        "transformers": transformers.__version__,
        "content": content,
        "settings": _settings(tokenizer),
        "texts": read,
        "cut_length": _CUT,
        "cut": [_cut(tokenizer, *pair) for pair in _pairs() if text.has_backend(tokenizer)],
        "decoded": [_decoded(tokenizer, ids) for ids in written],
        "chats": chats,
        "options": _with_options(tokenizer, folder) if chats and not corpus["parts"] else [],
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
    return [*each, "".join(special), " ".join(special), *(f" {name}" for name in named)]


def _content(tokenizer: Any) -> dict[str, str]:
    """Return the digests of a backend's sections; nothing of a tokenizer that is Python code.

    A token that decoding skips is a special one, whatever its flag.
    """
    if not text.has_backend(tokenizer):
        return {}
    backend = tokenizer.backend_tokenizer
    content = json.loads(backend.to_str())
    if (
        content["model"].get("type") == "Unigram"
    ):  # the library reads some scores as their neighbours
        content = json.loads(tokenizers.Tokenizer.from_str(json.dumps(content)).to_str())
    for token in content["added_tokens"]:
        both = (
            TokenizersBackend._decode(tokenizer, [token["id"]], skip_special_tokens=skip)
            for skip in (False, True)
        )
        shown, hidden = both
        token["special"] = token["special"] or (bool(shown) and not hidden)
    return {name: section.right for name, section in sections(content).items()}


def _settings(tokenizer: Any) -> dict[str, Any]:
    """Return the special tokens of a tokenizer by name, and the settings of its class."""
    tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    settings = {name: getattr(tokenizer, name, None) for name in SETTINGS}
    return {**tokens, **json.loads(json.dumps(settings))}


class _Unread:
    """Suppresses what `tokenizers` raises of a text that it cannot read: nothing narrower than `Exception`."""

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Return whether the error is of that kind, or a pattern gave up."""
        return kind is Exception or is_panic(kind)


def _ids(tokenizer: Any, one: str, *, special: bool = True) -> list[int] | None:
    """Return the tokens of a text; None if there is no token for a part of it."""
    ids = None
    with _Unread():
        ids = list(tokenizer(one, add_special_tokens=special)["input_ids"])
    return ids


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
    sequences = [draw.choices(every, k=_LENGTH) for _ in range(_DRAWN)]
    for number, ids in enumerate(sequences if added else ()):
        for index in range(1 + number % 4, _LENGTH, 5):
            ids[index] = draw.choice(added)
    return sequences


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
    chats = []
    for chat in (*_CHATS, marked):
        plain = [{"role": role, "content": content} for role, content in chat]
        in_parts = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in plain]
        written = _rendered(tokenizer, template, in_parts if parts else plain)
        if not parts and written is not None and not _has_message(written, chat):
            # A template that reads lists of parts alone writes nothing of a text.
            other = _rendered(tokenizer, template, in_parts)
            written = other if other and _has_message(other, chat) else written
        chats.append({"messages": in_parts if parts else plain, "rendered": written})
    return chats if any(one["rendered"] for one in chats) else []


def _with_options(tokenizer: Any, folder: Path) -> list[dict[str, Any]]:
    """Return conversations with tools, calls of them, reasoning and variables, each with its prompt, or None."""
    template = text.template_of(tokenizer, folder, media=False)
    named = tokenizer.chat_template
    of_tools = named.get("tool_use") if isinstance(named, dict) else None
    chats = []
    for messages, offers, variables in _OPTIONS:
        tools = [*_TOOLS] if offers else None
        chosen = of_tools if tools and of_tools else template
        written = _rendered(tokenizer, str(chosen), messages, tools=tools, **variables)
        options = {"tools": tools or [], "variables": variables}
        chats.append({"messages": [*messages], **options, "rendered": written})
    return chats


def _has_message(written: str, chat: Sequence[tuple[str, str]]) -> bool:
    """Return whether a prompt has a message of the conversation."""
    return any(content.strip() in written for _, content in chat)


def _rendered(
    tokenizer: Any, template: str, messages: Sequence[Mapping[str, Any]], **options: Any
) -> str | None:
    try:
        return str(
            tokenizer.apply_chat_template(
                messages,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=True,
                **options,
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

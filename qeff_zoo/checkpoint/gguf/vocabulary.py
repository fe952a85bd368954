# SPDX-License-Identifier: Apache-2.0
"""Vocabulary in a GGUF file's metadata, with llama.cpp's rules by token text.

Source: https://github.com/ggml-org/llama.cpp, src/llama-vocab.cpp
"""

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.files import some
from qeff_zoo.checkpoint.gguf.index import read_gguf
from qeff_zoo.errors import CheckpointError, UnsupportedModelError

_PREFIX = "tokenizer.ggml."
_TEXTS = (f"{_PREFIX}tokens", f"{_PREFIX}merges")
#: Values of `token_type`. All others are ordinary tokens.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4


@cache
def known() -> Mapping[str, Any]:
    """Return pretokenizers.json."""
    path = Path(__file__).with_name("pretokenizers.json")
    facts: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Metadata of a tokenizer.

    Args:
        name: File name, for messages.
        fields: Metadata without the prefix "tokenizer.ggml.".
        tokens: Texts by id.
        types: Values of `token_type` by id.
    """

    name: str
    fields: Mapping[str, Any]
    tokens: list[str]
    types: list[int]

    @property
    def ids(self) -> dict[str, int]:
        """Ids by text."""
        return {token: number for number, token in enumerate(self.tokens)}

    @property
    def scores(self) -> list[float]:
        """Scores by id; 0 in a file without scores."""
        scores = self.fields.get("scores")
        count = len(self.tokens)
        if scores is None:
            return [0.0] * count
        if not isinstance(scores, array) or len(scores) < count:
            raise self.wrong("scores", f"scores of {count} tokens")
        return [float(score) for score in scores[:count]]

    @property
    def facts(self) -> Mapping[str, Any]:
        """Assumptions of llama.cpp for this `tokenizer.ggml.model`."""
        facts: Mapping[str, Any] = known()["models"][self.fields["model"]]
        return facts

    @property
    def pre(self) -> Mapping[str, Any]:
        """Pre-tokenizer of BPE; empty for other kinds.

        Raises:
            UnsupportedModelError: The name is unknown.
        """
        if self.facts["kind"] != "merges":
            return {}
        name, names = self.fields.get("pre") or "default", known()["names"]
        if name not in names:
            raise UnsupportedModelError(
                f"{self.name!r} cuts text by the pre-tokenizer {name!r}, which is unknown. Expected one of "
                f"{some(list(names), 12)}. Name the checkpoint that it was made from with --config-from."
            )
        settings: Mapping[str, Any] = names[name]
        return settings

    def special(self, which: str) -> int | None:
        """Return the id of a special token, or llama.cpp's default.

        Args:
            which: llama.cpp's name, such as "bos".
        """
        number = self.fields.get(f"{which}_token_id")
        known_here = type(number) is int and 0 <= number < len(self.tokens)
        token = number if known_here else self.facts["special"].get(which)
        return token if token is not None and token < len(self.tokens) else None

    def flag(self, key: str, default: bool) -> bool:
        """Return a setting."""
        return bool(self.fields.get(key, default))

    def wrong(self, key: str, expected: str) -> CheckpointError:
        """Return the error of inconsistent metadata."""
        return CheckpointError(
            f"{self.name!r} has no usable {_PREFIX}{key}. Expected {expected}. Get the file again from its source, or "
            "name the checkpoint that it was made from with --config-from."
        )


def read_vocabulary(path: Path) -> tuple[Vocabulary, str | None]:
    """Read a file's vocabulary and chat template.

    Args:
        path: The file, or the first of several.

    Raises:
        CheckpointError: The metadata are inconsistent.
        UnsupportedModelError: The tokenizer model is unknown.
    """
    metadata = read_gguf(path, _TEXTS).metadata
    fields = {
        key.removeprefix(_PREFIX): value
        for key, value in metadata.items()
        if key.startswith(_PREFIX)
    }
    fields["general.name"] = metadata.get("general.name", "")
    model, models = fields.get("model"), known()["models"]
    if model not in models:
        raise UnsupportedModelError(
            f"{path.name!r} has a tokenizer {model!r}. Expected one of {', '.join(map(repr, models))}. Name the "
            "checkpoint that it was made from with --config-from."
        )
    tokens, types = fields.get("tokens"), fields.get("token_type")
    vocabulary = Vocabulary(name=path.name, fields=fields, tokens=[], types=[])
    if not isinstance(tokens, list) or not tokens:
        raise vocabulary.wrong("tokens", "the texts of all tokens")
    if types is not None and (not isinstance(types, array) or len(types) < len(tokens)):
        raise vocabulary.wrong("token_type", f"types of {len(tokens)} tokens")
    tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(tokens)]
    if len(set(tokens)) < len(tokens):
        raise vocabulary.wrong("tokens", "each token once")
    types = list(types[: len(tokens)]) if types is not None else [1] * len(tokens)
    vocabulary = Vocabulary(name=path.name, fields=fields, tokens=tokens, types=types)
    _correct(vocabulary)
    template = metadata.get("tokenizer.chat_template")
    return vocabulary, template if isinstance(template, str) else None


def _correct(vocabulary: Vocabulary) -> None:
    """Correct the types of tokens with well-known texts, as llama.cpp does."""
    facts, ids = known(), vocabulary.ids
    for text in (*facts["ends"], *facts["infill ends"], *facts["infill"]):
        if text in ids:
            vocabulary.types[ids[text]] = CONTROL
    for text in facts["shown"]:
        if text in ids:
            vocabulary.types[ids[text]] = USER_DEFINED
    if _is_harmony(ids):
        vocabulary.types[ids["<|end|>"]] = USER_DEFINED


def _is_harmony(ids: Mapping[str, int]) -> bool:
    """Return whether "<|end|>" ends a message, and other tokens end the whole response."""
    both = [{"<|return|>", "<|flush|>"} & ids.keys(), {"<|call|>", "<|calls|>"} & ids.keys()]
    return "<|end|>" in ids and all(both)


def ends_of(vocabulary: Vocabulary, eos: int | None) -> tuple[int, ...]:
    """Return the ids of tokens that end a generation, EOS first.

    Args:
        vocabulary: Vocabulary of the file.
        eos: Id of EOS; None without one.
    """
    facts, ids = known(), vocabulary.ids
    texts = [text for text in (*facts["ends"], *facts["infill ends"]) if text in ids]
    if _is_harmony(ids) and "<|end|>" in texts:
        texts.remove("<|end|>")
    fields = [vocabulary.special(which) for which in ("eot", "eom")]
    numbers = [eos, *(ids[text] for text in texts), *fields]
    return tuple(dict.fromkeys(number for number in numbers if number is not None))

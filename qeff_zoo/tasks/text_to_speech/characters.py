# SPDX-License-Identifier: Apache-2.0
"""Tokens of texts for VITS models, equal to those of transformers' VitsTokenizer: a token for each character.

Without transformers. Romanization needs package `uroman`, phonemes need package `phonemizer`; texts that need a missing
one are refused.
"""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json

#: Files of a package that the tokens depend on.
_VOCABULARY, _SETTINGS = "vocab.json", "tokenizer_config.json"
_NAMES, _ADDED = "special_tokens_map.json", "added_tokens.json"
#: Settings that name special tokens.
_SPECIAL = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_SPECIAL_LISTS = ("additional_special_tokens", "extra_special_tokens")
#: Settings of VitsTokenizer, and their defaults.
_DEFAULTS: Mapping[str, Any] = {
    "add_blank": True,
    "normalize": True,
    "phonemize": True,
    "is_uroman": False,
    "language": None,
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "split_special_tokens": False,
}


@dataclass(frozen=True, kw_only=True)
class AddedToken:
    """Token that is found in a text before its characters are read; VITS has its padding token among them.

    Args:
        number: Token id.
        lstrip: Whether it takes the spaces before it.
        rstrip: Whether it takes the spaces after it.
    """

    number: int
    lstrip: bool = False
    rstrip: bool = False


class Characters:
    """Tokenizer of a package.

    Args:
        vocabulary: Token ids by character.
        settings: Content of tokenizer_config.json.
        added: Content of added_tokens.json.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        settings: Mapping[str, Any],
        added: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.vocabulary = dict(vocabulary)
        self.settings = {**_DEFAULTS, **settings}
        self._added = _added_tokens(self.vocabulary, self.settings, added)
        #: Texts that stay as they are, by their first character, in the order of the vocabulary.
        self._kept: dict[str, list[str]] = {}
        for word in filter(None, (*self.vocabulary, *self._added)):
            self._kept.setdefault(word[0], []).append(word)
        longest_first = sorted(self._added, key=len, reverse=True)
        self._splits = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    @classmethod
    def find(cls, folder: Path) -> "Characters | None":
        """Return the tokenizer of a package; None for a package without a vocabulary."""
        if not (folder / _VOCABULARY).is_file():
            return None
        settings = {**read_json(folder / _NAMES), **read_json(folder / _SETTINGS)}
        return cls(read_json(folder / _VOCABULARY), settings, read_json(folder / _ADDED))

    @property
    def reads_plain_text(self) -> bool:
        """Whether texts become tokens without a further package."""
        return not self.settings["phonemize"] and not self.settings["is_uroman"]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with blanks between characters; none if no character is in the vocabulary.

        Raises:
            GenerationError: The text needs a package that is not installed, or has an unknown character.
        """
        tokens = list[int]()
        for piece in self._pieces(self._prepared(text)):
            token = self._added.get(piece)
            tokens += self._spelled(piece) if token is None else [token.number]
        return tokens

    def _pieces(self, text: str) -> list[str]:
        """Return the added tokens of a text, and the texts between them."""
        if self.settings["split_special_tokens"]:
            return [text] if text else []
        pieces = self._splits.split(text)
        for index in range(1, len(pieces), 2):
            token = self._added[pieces[index]]
            if token.lstrip:
                pieces[index - 1] = pieces[index - 1].rstrip()
            if token.rstrip:
                pieces[index + 1] = pieces[index + 1].lstrip()
        return [*filter(None, pieces)]

    def _spelled(self, piece: str) -> list[int]:
        """Return the tokens of a text without added tokens."""
        unknown = next((one for one in piece if one not in self.vocabulary), None)
        if unknown is not None:
            raise GenerationError(
                f"The text has the character {unknown!r}, which the model has no token for; expected characters of its "
                "vocabulary. Spell it out, or leave it out."
            )
        numbers = [self.vocabulary[one] for one in piece]
        if not self.settings["add_blank"]:
            return numbers
        tokens = [0] * (2 * len(numbers) + 1)
        tokens[1::2] = numbers
        return tokens

    def _prepared(self, text: str) -> str:
        """Return the characters of a text that become tokens."""
        settings = self.settings
        if settings["normalize"]:
            text = self._lowered(text)
        if settings["language"] == "ron":
            text = text.replace("\u021b", "\u0163")  # t with a comma below, and with a cedilla
        if settings["is_uroman"] and not text.isascii():
            text = _romanized(text)
        if settings["phonemize"]:
            return _phonemes(text)
        if settings["normalize"]:
            return "".join(one for one in text if one in self.vocabulary).strip()
        return text

    def _lowered(self, text: str) -> str:
        """Return a text in lower case, but for entries of the vocabulary."""
        parts, index = list[str](), 0
        while index < len(text):
            words = self._kept.get(text[index], ())
            word = next((one for one in words if text.startswith(one, index)), None)
            parts.append(text[index].lower() if word is None else word)
            index += len(word or text[index])
        return "".join(parts)


def _added_tokens(
    vocabulary: Mapping[str, int], settings: Mapping[str, Any], added: Mapping[str, int]
) -> dict[str, AddedToken]:
    """Return the added tokens: those of files, then special tokens that are none of them."""
    numbers = {**vocabulary, **added}
    tokens: dict[str, AddedToken] = {}
    for number, one in (settings.get("added_tokens_decoder") or {}).items():
        tokens[one["content"]] = _token(int(number), one)
    for content, number in added.items():
        tokens.setdefault(content, AddedToken(number=number))
    lists = [settings.get(name) or () for name in _SPECIAL_LISTS]
    for one in (
        *(settings.get(name) for name in _SPECIAL),
        *(one for every in lists for one in every),
    ):
        content = one["content"] if isinstance(one, Mapping) else one
        if content and content not in tokens:
            number = numbers.get(content, max((*numbers.values(), -1)) + 1)
            numbers[content] = number
            tokens[content] = _token(number, one if isinstance(one, Mapping) else {})
    return tokens


def _token(number: int, settings: Mapping[str, Any]) -> AddedToken:
    return AddedToken(
        number=number,
        lstrip=bool(settings.get("lstrip")),
        rstrip=bool(settings.get("rstrip")),
    )


def _package(name: str, purpose: str) -> Any:
    """Return a package that texts need."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise GenerationError(
            f"The text needs {purpose}, and package {name!r} is not installed; expected it. Run `pip install {name}`."
        ) from error


def _romanized(text: str) -> str:
    return str(_romanizer().romanize_string(text))


@cache
def _romanizer() -> Any:
    """Return the romanizer, whose tables take seconds to read."""
    uroman = _package(
        "uroman", "romanization for this model (`is_uroman` in tokenizer_config.json)"
    )
    return uroman.Uroman()


def _phonemes(text: str) -> str:
    phonemizer = _package(
        "phonemizer", "phonemes for this model (`phonemize` in tokenizer_config.json)"
    )
    phonemes = phonemizer.phonemize(
        text,
        language="en-us",
        backend="espeak",
        strip=True,
        preserve_punctuation=True,
        with_stress=True,
    )
    return re.sub(r"\s+", " ", str(phonemes))

# SPDX-License-Identifier: Apache-2.0
"""CTC decoding: labels of frames -> text and words with times.

Repeated labels of consecutive frames are one label; the blank, which is the tokenizer's padding token, separates two
equal labels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from qeff_zoo.errors import PackageError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.text.tokenizer import Tokenizer

_BEGINS_WORD = "\N{LOWER ONE EIGHTH BLOCK}"  # in pieces of SentencePiece


@dataclass(frozen=True)
class Place:
    """A word and its frames: `start` up to `end`."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class _Run:
    """A label, and the consecutive frames that have it."""

    label: int
    start: int
    end: int


def _runs(labels: Sequence[int], blank: int) -> Iterator[_Run]:
    start = 0
    for label, group in groupby(labels):
        end = start + sum(1 for _ in group)
        if label != blank:
            yield _Run(label, start, end)
        start = end


class CharacterLabels:
    """Labels that are characters, by vocab.json.

    Args:
        vocab: Labels by character.
        settings: Settings of tokenizer_config.json.
    """

    def __init__(self, vocab: dict[str, int], settings: dict[str, Any]) -> None:
        blank = _content(settings.get("pad_token"), "<pad>")
        if blank not in vocab:
            raise PackageError(
                f"vocab.json has no {blank!r}, which is the blank of CTC. Expected one. Build the package again."
            )
        self.blank = vocab[blank]
        delimiter = _content(settings.get("word_delimiter_token"), "|")
        self._space = str(settings.get("replace_word_delimiter_char", " "))
        self._lower = bool(settings.get("do_lower_case"))
        self._characters = {label: character for character, label in vocab.items()}
        self._characters |= {
            label: self._space for name, label in vocab.items() if name == delimiter
        }
        self._unknown = _content(settings.get("unk_token"), "<unk>")

    def read(self, labels: Sequence[int]) -> tuple[str, list[Place]]:
        """Return the text and its words."""
        characters = [
            Place(self._character(run.label), run.start, run.end)
            for run in _runs(labels, self.blank)
        ]
        words = []
        for is_space, group in groupby(characters, lambda one: one.text == self._space):
            members = list(group)
            if not is_space:
                text = "".join(member.text for member in members)
                words.append(Place(text, members[0].start, members[-1].end))
        return "".join(one.text for one in characters).strip(), words

    def _character(self, label: int) -> str:
        character = self._characters.get(label, self._unknown)
        return character.lower() if self._lower else character


class PieceLabels:
    """Labels that are word pieces, by tokenizer.json.

    Args:
        tokenizer: Tokenizer of the package.
        blank: Label of the blank.
    """

    def __init__(self, tokenizer: Tokenizer, blank: int) -> None:
        self._tokenizer, self.blank = tokenizer, blank

    def read(self, labels: Sequence[int]) -> tuple[str, list[Place]]:
        """Return the text and its words."""
        runs = list(_runs(labels, self.blank))
        words: list[list[_Run]] = []
        for run in runs:
            if not words or self._tokenizer.name(run.label).startswith(_BEGINS_WORD):
                words.append([])
            words[-1].append(run)
        characters = [
            Place(
                self._tokenizer.decode([run.label for run in word]).strip(),
                word[0].start,
                word[-1].end,
            )
            for word in words
        ]
        text = self._tokenizer.decode([run.label for run in runs]).strip()
        return text, [place for place in characters if place.text]


def find(folder: Path) -> CharacterLabels | PieceLabels | None:
    """Return the decoder of a package's labels; None if it has no vocabulary.

    Args:
        folder: Folder of the package.

    Raises:
        PackageError: The vocabulary is damaged, or has several languages without a selected one.
    """
    settings = read_json(folder / "tokenizer_config.json")
    if tokenizer := Tokenizer.find(folder):
        blank = tokenizer.token_id(_content(settings.get("pad_token"), "<pad>"))
        config = read_json(folder / "config.json")
        return PieceLabels(tokenizer, int(config["pad_token_id"]) if blank is None else blank)
    vocab = read_json(folder / "vocab.json")
    language = settings.get("target_lang")
    if language is not None:
        vocab = vocab.get(language, {})
    if any(not isinstance(label, int) for label in vocab.values()):
        raise PackageError(
            f"vocab.json of {str(folder)!r} has a vocabulary for each of {len(vocab)} languages, and no language is "
            "chosen. Expected `target_lang` in tokenizer_config.json. Set it in the checkpoint, and build again."
        )
    specials = read_json(folder / "special_tokens_map.json")
    return CharacterLabels(vocab, {**specials, **settings}) if vocab else None


def _content(token: Any, default: str) -> str:
    """Return a token's text, which has two formats in files."""
    return str(token["content"] if isinstance(token, dict) else token or default)

# SPDX-License-Identifier: Apache-2.0
"""Conversion of texts, pairs or token ids to inputs of encoder programs; unsupported inputs are rejected."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, TypeGuard

from qeff_zoo.checkpoint.sentence_transformers.settings import SentenceSettings
from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.text.pair_template import PairTemplate
from qeff_zoo.runtime.text.tokenizer import Encoded, Tokenizer

#: Text, or token ids.
Text: TypeAlias = str | Sequence[int]
#: Text, token ids, or a pair of texts.
Texts: TypeAlias = Text | tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class TextReader:
    """Tokenization of texts. Thread-safe.

    Args:
        folder: Folder of the package.
        task: Hub pipeline tag.
        tokenizer: Tokenizer of the package; None without one.
        max_length: Number of tokens to which texts are truncated.
        longest: Maximum number of tokens in a text for the program; at least `max_length`.
        vocab_size: Vocabulary of the model; 0 if only its tokenizer has it.
        takes_pairs: Whether pairs of texts are supported.
        prompt: Text that precedes every text, and the first of a pair; not a list of token ids.
        counts_prompt: Whether the tokens of the prompt are counted, see `Encoded.prompt_tokens`.
        side: Side on which texts are truncated; None for the tokenizer's.
        special_tokens: Whether the tokenizer's special tokens are added.
        template: Chat template that writes texts and pairs; None for texts as they are.
    """

    folder: Path
    task: str
    tokenizer: Tokenizer | None
    max_length: int
    longest: int
    vocab_size: int
    takes_pairs: bool = False
    prompt: str = ""
    counts_prompt: bool = False
    side: Literal["left", "right"] | None = None
    special_tokens: bool = True
    template: PairTemplate | None = None

    @classmethod
    def of_package(
        cls,
        folder: Path,
        settings: SentenceSettings,
        *,
        task: str,
        longest: int,
        takes_pairs: bool = False,
        counts_prompt: bool = False,
    ) -> "TextReader":
        """Return the reader of a package.

        Args:
            folder: Folder of the package.
            settings: Settings of sentence-transformers.
            task: See the class, as the other arguments.
            longest: Maximum number of tokens.
            takes_pairs: Whether pairs of texts are supported.
            counts_prompt: Whether the tokens of the prompt are counted.
        """
        tokenizer = Tokenizer.find(folder)
        if tokenizer and settings.lowercase:
            tokenizer.use_lowercase()
        return cls(
            folder=folder,
            task=task,
            tokenizer=tokenizer,
            max_length=min(settings.max_length, longest),
            longest=longest,
            vocab_size=int(read_json(folder / "config.json").get("vocab_size", 0)),
            takes_pairs=takes_pairs,
            counts_prompt=counts_prompt,
            special_tokens=settings.special_tokens,
        )

    def read(self, texts: Sequence[Texts]) -> list[Encoded]:
        """Return the tokens of texts.

        Args:
            texts: Texts and pairs, truncated to `max_length` tokens; or token ids, which are not.

        Raises:
            GenerationError: If a list of token ids is empty, too long, or not of this vocabulary; or if a pair is
                given, which the task does not support.
        """
        if not texts:
            raise GenerationError(
                "There is nothing to read in []; expected at least one text. Give one."
            )
        words = [text for text in texts if _is_text(text)]
        if words and self.tokenizer is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no tokenizer.json and cannot take the text "
                f"{str(words[0])[:40]!r}; expected token ids. Give a list of them."
            )
        read = iter(self._tokenize(words))
        encoded = [
            next(read) if _is_text(text) else Encoded.of_ids([int(token) for token in text])
            for text in texts
        ]
        for one in encoded:
            self._check(one.ids)
        return encoded

    def _tokenize(self, texts: Sequence[str | tuple[str, str]]) -> list[Encoded]:
        for pair in (text for text in texts if not isinstance(text, str)):
            if not self.takes_pairs or len(pair) != 2:
                taken = "one text or two" if self.takes_pairs else "one text"
                raise GenerationError(
                    f"The texts {pair!r} cannot be read together; expected {taken} at a time, as {self.task} takes "
                    f"them. Give the others by themselves."
                )
        if self.tokenizer is None or not texts:
            return []
        if self.template is not None:
            return self.template.encode(
                self.tokenizer, texts, self.prompt, self.max_length, self.side
            )
        length = self._prompt_length() if self.counts_prompt and self.prompt else 0
        encoded = self._encode_all(
            [_with_prompt(self.prompt, text) for text in texts] if self.prompt else texts
        )
        return (
            [replace(encoding, prompt_tokens=length) for encoding in encoded] if length else encoded
        )

    def _encode_all(self, texts: Sequence[str | tuple[str, str]]) -> list[Encoded]:
        assert self.tokenizer
        return self.tokenizer.encode_all(
            texts, self.max_length, self.side, special_tokens=self.special_tokens
        )

    def _prompt_length(self) -> int:
        """Return the number of tokens of the prompt by itself, without a special token at its end."""
        assert self.tokenizer
        (alone,) = self._encode_all([self.prompt])
        ends = bool(alone.ids) and alone.ids[-1] in self.tokenizer.named
        return len(alone.ids) - ends

    def _check(self, tokens: Sequence[int]) -> None:
        if not 0 < len(tokens) <= self.longest:
            raise GenerationError(
                f"A text has {len(tokens):,} tokens; expected 1 to {self.longest:,}, the package's "
                "longest sequence. Change it, or build the package with a longer one."
            )
        size = self.vocab_size or (self.tokenizer.vocab_size if self.tokenizer else 0)
        foreign = next((token for token in tokens if not 0 <= token < size), None)
        if foreign is not None:
            raise GenerationError(
                f"Token id {foreign!r} is not of this model; expected 0 to {size - 1:,}."
                " Encode the text with the package's own tokenizer."
            )


def _with_prompt(prompt: str, text: str | tuple[str, str]) -> str | tuple[str, str]:
    return prompt + text if isinstance(text, str) else (prompt + text[0], text[1])


def _is_text(text: Texts) -> TypeGuard[str | tuple[str, str]]:
    return isinstance(text, str) or any(isinstance(part, str) for part in text)

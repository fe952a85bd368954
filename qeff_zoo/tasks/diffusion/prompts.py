# SPDX-License-Identifier: Apache-2.0
"""Tokens of prompts, padded to the length that a text encoder was trained with, as diffusers' pipelines do it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError, PackageError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.tokenizer import Tokenizer

_END = "</w>"  # of a word, in CLIP's vocabulary
_SHOWN = 200  # characters of the text that a warning names


class Prompts:
    """Tokenizer of one text encoder.

    Args:
        folder: Folder of the tokenizer.
        length: Number of tokens of every prompt; None for that of the tokenizer's settings.
        config: Configuration of the text encoder, whose positions limit the length.
        clean: Function that returns a prompt as the tokenizer reads it.
        padded: Whether prompts are padded to the length, which is otherwise their largest.

    Raises:
        PackageError: There is no tokenizer, or it has no padding token.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        length: int | None = None,
        *,
        clean: Callable[[str], str] = lambda text: text,
        padded: bool = True,
    ) -> None:
        tokenizer = Tokenizer.find(folder)
        settings = read_json(folder / "tokenizer_config.json")
        padding = tokenizer and tokenizer.token_named(None, ["pad_token"])
        if tokenizer is None or padding is None:
            raise PackageError(
                f"{str(folder)!r} has no tokenizer with a padding token; expected one. Build or pull the package again."
            )
        self._tokenizer, self._padding = tokenizer, padding
        self._clean, self._padded = clean, padded
        positions = int(config.get("max_position_embeddings") or 1 << 20)
        #: Largest number of tokens of a prompt, and that of a padded one.
        self.length = min(length or int(settings.get("model_max_length") or positions), positions)

    def encode(self, text: str, warn: Callable[[str], object]) -> Array:
        """Return the tokens of a prompt, int64 (1, tokens).

        Args:
            text: The prompt.
            warn: Function that gets a sentence with the lost part of a text that is too long.

        Raises:
            GenerationError: The prompt is no text.
        """
        if not isinstance(text, str):
            raise GenerationError(
                f"A prompt is {text!r:.100}; expected a text. Give a string, such as 'a cat'."
            )
        text = self._clean(text)
        (found,) = self._tokenizer.encode_all([text], self.length, "right")
        if found.cut:
            whole = self._tokenizer.encode(text)
            lost = self._tokenizer.decode(whole[self.length - 1 : -1]).replace(_END, " ").strip()
            shown = f"{lost[:_SHOWN]}…" if len(lost) > _SHOWN else lost
            warn(
                f"The prompt has {len(whole):,} tokens, and the text encoder reads {self.length}; lost at its end: "
                f"{shown!r}. Shorten the prompt."
            )
        missing = self.length - len(found.ids) if self._padded else 0
        return np.array([[*found.ids, *[self._padding] * missing]], np.int64)

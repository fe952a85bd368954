# SPDX-License-Identifier: Apache-2.0
"""Base class of sessions with an encoder of images and one of texts: texts in, outputs of the text encoder out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.text.texts import Text, TextReader
from qeff_zoo.runtime.text.tokenizer import Encoded, Tokenizer
from qeff_zoo.tasks.images.session import ImageSession


class TextImageSession(ImageSession):
    """An opened package with an image encoder and a text encoder.

    Args:
        folder: The package.
        program: Opened image encoder of the package.
        encoder: Opened text encoder of the package.
        **given: Arguments of `ImageSession`.
    """

    #: Default id of the padding token in the family's configuration.
    padding: ClassVar[int]

    def __init__(self, folder: Path, program: Program, *, encoder: Program, **given: Any) -> None:
        super().__init__(folder, program, **given)
        self._encoder = encoder
        self.tokenizer = Tokenizer.find(folder)
        #: Maximum number of tokens; longer texts are truncated.
        self.max_length = int(encoder.inputs["input_ids"].shape[1])
        config = self.config.get("text_config") or {}
        self.vocab_size = int(config.get("vocab_size", 0))
        token = config.get("pad_token_id")
        self._padding = self.padding if token is None else int(token)
        self._reader = TextReader(
            folder=folder,
            task=self.task,
            tokenizer=self.tokenizer,
            max_length=self.max_length,
            longest=self.max_length,
            vocab_size=self.vocab_size,
        )

    def read(self, texts: Sequence[Text]) -> list[Encoded]:
        """Tokenize texts. Thread-safe."""
        return self._reader.read(texts)

    def run_texts(self, rows: Sequence[Sequence[int]]) -> dict[str, Array]:
        """Run one call of texts, as many as a specialization has rows; return all outputs of the graph."""
        tokens = np.full((len(rows), self.max_length), self._padding, np.int64)
        for row, ids in zip(tokens, rows, strict=True):
            row[: len(ids)] = ids
        return dict(self._encoder.run({"input_ids": tokens}))

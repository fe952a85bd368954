# SPDX-License-Identifier: Apache-2.0
"""Reference for embeddings of prompts with images: the last hidden states of transformers' base model.

Only the reference process imports this.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qeff_zoo.tasks.text_generation.reference import DecoderReference
from qeff_zoo.validation.reference.runs import Array, padded, tick
from qeff_zoo.validation.reference.sentence_modules import normalizes


class EmbeddingReference(DecoderReference):
    """Embeddings of the beginnings of texts with images.

    Args:
        model: Hugging Face base model.
        request: Request with `checkpoint`, `sequences`, `positions`, and in `settings` the options that differ from the
            checkpoint's.
        arrays: Images in the sequences, see `Media`.
    """

    #: A fault is noticed by predictions of tokens.
    reads_tokens_alone = False

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().__init__(model, request, arrays)
        folder = Path(request["checkpoint"])
        self._normalize = request["settings"].get("normalize", normalizes(folder))

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        if len(numbers) > 1 and not self._media.together:
            return [row for number in numbers for row in self._run([number], length)]
        inputs = padded([self._beginning(number, length) for number in numbers])
        states = self._call(numbers, inputs, use_cache=False).last_hidden_state.float()
        tick()
        if self._normalize:
            states = states / torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        embeddings = []
        for row, number in enumerate(numbers):
            wanted = [at for at in self._positions[number] if length is None or at < length]
            embeddings.append(np.asarray(states[row, wanted].numpy()))
        return embeddings

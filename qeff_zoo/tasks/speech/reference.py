# SPDX-License-Identifier: Apache-2.0
"""Reference for transcription: logits of labels for each audio frame, or of tokens, from transformers' models.

Only the reference process imports this.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from qeff_zoo.tasks.encoder_decoder.reference import Text2TextReference
from qeff_zoo.validation.reference.runs import Answers, tick

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class CtcReference(Answers):
    """Outputs for audio: labels' logits of every frame.

    Args:
        model: Hugging Face model.
        request: Unused.
        arrays: Arrays `audio.number`, (samples,) or feature frames (frames, bins).
    """

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().__init__(_recordings(arrays), model)
        self._model = model

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        # One call each: in a batch, Hugging Face's models mix the end of the audio with its padding.
        return [self._read(self._sequences[number]) for number in numbers]

    def _read(self, audio: Array) -> Array:
        given = torch.from_numpy(audio)[None].to(self._model.dtype)
        logits = self._model(**{self._model.main_input_name: given}).logits[0]
        tick()
        array: Array = logits.float().numpy()
        return array


class SpeechReference(Text2TextReference):
    """Outputs for audio: logits of the decoder's tokens.

    Args:
        model: Hugging Face model.
        request: Request with `sequences` and `positions`.
        arrays: Arrays `audio.number` of each sequence, as the model takes it.
    """

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().__init__(model, {**request, "sources": []}, arrays)
        self._recordings = _recordings(arrays)

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        # One call each for audio of different lengths: in a batch, the end of one is mixed with its padding.
        alike = len({len(recording) for recording in self._recordings}) == 1
        groups = [numbers] if alike else [[number] for number in numbers]
        return [one for group in groups for one in super(SpeechReference, self)._run(group, length)]

    def _given(self, numbers: list[int]) -> Mapping[str, Tensor]:
        audio = torch.from_numpy(np.stack([self._recordings[number] for number in numbers]))
        return {self._model.main_input_name: audio.to(self._model.dtype)}


def _recordings(arrays: Mapping[str, Array]) -> list[Array]:
    return [array for name, array in arrays.items() if name.startswith("audio.")]

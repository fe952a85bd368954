# SPDX-License-Identifier: Apache-2.0
"""transformers' models that speak: durations, priors and samples of texts, of the noise that a package had.

Only the reference process imports this.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoTokenizer

from qeff_zoo.validation.reference.runs import Answers, tick
from qeff_zoo.validation.trial.points import evenly_spaced

Array = np.ndarray[Any, np.dtype[Any]]

_COUNT = 1 << 14  # compared values of a row
_ARRAYS = 3  # of a text: noise of durations, noise of frames, and options


class SpeechReference(Answers):
    """Outputs for texts: logarithms of durations, priors and samples, (3, values).

    Args:
        model: Hugging Face model.
        request: Request with `sequences`.
        arrays: Arrays `audio.number`: for each text its noise, its speaking rate and its speaker.
    """

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().__init__(_sequences(request), model)
        self._model = model
        given = [array for name, array in arrays.items() if name.startswith("audio.")]
        self._given = [given[at : at + _ARRAYS] for at in range(0, len(given), _ARRAYS)]

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        # One call each: in a batch, the vocoder mixes the end of a text with its padding.
        return [self._speak(number) for number in numbers]

    def _speak(self, number: int) -> Array:
        durations, frames, (rate, speaker) = self._given[number]
        noted: list[Any] = []
        handles = [
            module.register_forward_hook(lambda _, args, output: noted.append(output))
            for module in (self._model.text_encoder, self._model.duration_predictor)
        ]
        several = self._model.config.num_speakers > 1
        try:
            with GivenNoise(durations.T[None], frames):
                spoken = self._model(
                    input_ids=torch.tensor([self._sequences[number]]),
                    speaking_rate=float(rate),
                    **({"speaker_id": int(speaker)} if several else {}),
                )
        finally:
            for handle in handles:
                handle.remove()
        tick()
        encoded, log_durations = noted
        both = torch.stack([encoded.prior_means[0], encoded.prior_log_variances[0]])
        rows = (log_durations, both, spoken.waveform)
        values = [row.flatten()[evenly_spaced(row.numel(), _COUNT)].float().numpy() for row in rows]
        return np.stack(values)


def _sequences(request: Mapping[str, Any]) -> list[list[int]]:
    """Return token ids: those of the request, and at the end those of its texts by transformers' tokenizer."""
    sequences, texts = request["sequences"], request.get("texts") or []
    if not texts:
        return list(sequences)
    tokenizer = AutoTokenizer.from_pretrained(request["checkpoint"], trust_remote_code=False)
    read = [tokenizer("".join(map(chr, text))).input_ids for text in texts]
    return [*sequences[: len(sequences) - len(texts)], *read]


class GivenNoise(TorchFunctionMode):
    """Noise of a model in place of PyTorch's random numbers.

    Args:
        durations: Result of `torch.randn`, (1, 2, tokens).
        frames: Result of `torch.randn_like` for frames, (frames, width).
    """

    def __init__(self, durations: Array, frames: Array) -> None:
        super().__init__()
        self._durations, self._frames = torch.from_numpy(durations.copy()), frames

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch, or return noise."""
        if func is torch.randn:
            return self._durations[:, :, torch.arange(args[2]) % self._durations.shape[2]]
        if func is torch.randn_like:
            (like,) = args
            indices = np.arange(like.shape[2]) % len(self._frames)  # of a damaged model, more
            return torch.from_numpy(self._frames[indices].T[None].copy()).to(like)
        return func(*args, **(kwargs or {}))

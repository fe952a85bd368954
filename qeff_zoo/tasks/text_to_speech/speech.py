# SPDX-License-Identifier: Apache-2.0
"""Spoken texts: their samples, and the options of a voice."""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array

#: Slowest and fastest factor of the speaking rate, as in OpenAI's API.
SPEEDS = (0.25, 4.0)


@dataclass(frozen=True, kw_only=True)
class Speech:
    """A spoken text; its fields are the keys of transformers' pipeline.

    Args:
        audio: Samples, float32 (samples,).
        sampling_rate: Samples per second.
    """

    audio: Array
    sampling_rate: int

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.audio) / self.sampling_rate

    @classmethod
    def joined(cls, parts: Sequence["Speech"]) -> "Speech":
        """Return parts of a text as one."""
        audio = np.concatenate([part.audio for part in parts])
        return cls(audio=audio, sampling_rate=parts[0].sampling_rate)


@dataclass(frozen=True, kw_only=True)
class SpeechOptions:
    """Options of spoken texts.

    Args:
        speaker: Number of the speaker.
        speaking_rate: Factor of the speed of speech.
        noise_scale: Factor of the noise of frames.
        noise_scale_duration: Factor of the noise of durations.
        seed: Seed of the noise; equal seeds give equal samples.
    """

    speaker: int = 0
    speaking_rate: float = 1.0
    noise_scale: float = 0.667
    noise_scale_duration: float = 0.8
    seed: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any], **chosen: Any) -> "SpeechOptions":
        """Return options: chosen values, else those of a configuration, and a random seed.

        Args:
            config: Content of config.json.
            **chosen: Fields of the class, None for the default; and `speed`, a factor of the speaking rate.

        Raises:
            GenerationError: A value is not one of the model.
        """
        speed = chosen.pop("speed", None)
        given = {name: value for name, value in chosen.items() if value is not None}
        usual = {
            name: float(config[name])
            for name in ("speaking_rate", "noise_scale", "noise_scale_duration")
            if config.get(name) is not None
        }
        options = cls(**{"seed": secrets.randbits(32), **usual, **given})
        speakers = int(config.get("num_speakers") or 1)
        if not _is_integer(options.speaker) or not 0 <= options.speaker < speakers:
            raise GenerationError(
                f"The speaker is {options.speaker!r}; expected a number from 0 to {speakers - 1:,}, as the model has "
                f"{speakers:,}. Choose one of these."
            )
        rate = options.speaking_rate
        if speed is not None:
            if not _is_number(speed) or not SPEEDS[0] <= speed <= SPEEDS[1]:
                raise GenerationError(
                    f"The speed is {speed!r}; expected a number from {SPEEDS[0]:g} to {SPEEDS[1]:g}. Choose one."
                )
            rate = rate * speed
        if not _is_number(rate) or rate <= 0:
            raise GenerationError(
                f"The speaking rate is {rate!r}; expected a number above 0. Choose one, such as 1."
            )
        for name in ("noise_scale", "noise_scale_duration"):
            if not _is_number(value := getattr(options, name)) or value < 0:
                raise GenerationError(
                    f"The option {name} is {value!r}; expected a number of at least 0. Choose one, such as 0.667."
                )
        if not _is_integer(options.seed) or options.seed < 0:
            raise GenerationError(
                f"The seed is {options.seed!r}; expected an integer of at least 0. Choose one, or leave it out."
            )
        return cls(**{**vars(options), "speaking_rate": rate})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

# SPDX-License-Identifier: Apache-2.0
"""Fixed recordings for the validation of packages: a voice of pulses through changing resonances, pauses, and noise."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from qeff_zoo.media.features import Features
from qeff_zoo.runtime.program import Array

_SYLLABLE = 0.18  # seconds
_RESONANCES = (
    (730, 1090, 2440),
    (270, 2290, 3010),
    (300, 870, 2240),
    (530, 1840, 2480),
)  # of vowels
_WIDTH = 90.0  # of a resonance, in hertz


class Encoder(Protocol):
    """A session whose encoder reads audio: its features, and the name and the axes of its input."""

    features: Features

    @property
    def input_name(self) -> str:
        """Name of the input."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Values of a frame of features; nothing of samples."""


def draw(lengths: Sequence[int], session: Encoder) -> list[Array]:
    """Return one input per length, always the same ones.

    Args:
        lengths: Lengths of a call: samples, or frames of features.
        session: Session whose features are computed.
    """
    inputs = session.features
    if inputs.name != session.input_name:  # no settings, as of tiny models
        shape = session.input_shape
        return [
            np.random.default_rng(number).standard_normal((length, *shape)).astype(np.float32)
            for number, length in enumerate(lengths)
        ]
    least = [(length - 1) * inputs.step + inputs.least for length in lengths]
    return [
        inputs.compute(voice(samples, inputs.rate, number)) for number, samples in enumerate(least)
    ]


def voice(samples: int, rate: int, number: int) -> Array:
    """Return float32 (samples,): syllables of another speaker for each number."""
    random = np.random.default_rng(number)
    time = np.arange(samples) / rate
    pitch = 100 + 25 * number % 80 + 12 * np.sin(2 * np.pi * 2.1 * time + number)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    syllable = (time / _SYLLABLE).astype(int)
    chosen = random.integers(0, len(_RESONANCES) + 1, syllable[-1] + 1)  # the last is a pause
    peaks = np.array([*_RESONANCES, (0, 0, 0)], float)[chosen[syllable]]  # (samples, 3)
    audio = np.zeros(samples)
    for harmonic in range(1, 30):
        near = 1 / (1 + ((harmonic * pitch[:, None] - peaks) / _WIDTH) ** 2)
        audio += near.sum(1) * np.sin(harmonic * phase)
    speaks = chosen[syllable] < len(_RESONANCES)
    whole: Array = 0.1 * audio * speaks + 0.01 * random.standard_normal(samples)
    return whole.astype(np.float32)

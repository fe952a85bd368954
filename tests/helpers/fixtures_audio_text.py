# SPDX-License-Identifier: Apache-2.0
"""What several tests of audio text and others use."""

import wave
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


RATE = 16_000


def recording(seed: int, seconds: float = 0.7) -> Array:
    """Draw a recording: a tone and noise."""
    random, times = np.random.default_rng(seed), np.arange(int(seconds * RATE)) / RATE
    tone = np.sin(2 * np.pi * random.uniform(100, 4000) * times)
    return (0.3 * tone + 0.1 * random.standard_normal(len(times))).astype(np.float32)


def recorded(path: Path, samples: Array) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build a package of a speech model, and write down what is said in recordings, with the times of words or segments.

python examples/speech.py CHECKPOINT [RECORDING …]   # as openai/whisper-tiny speech.wav; else a tone is read
"""

import sys
import tempfile
import wave
from pathlib import Path

import numpy as np

import qeff_zoo

RATE = 16_000


def make_tone(path: Path) -> Path:
    """Write a second of a tone, which is no speech but can be read."""
    samples = 0.3 * np.sin(2 * np.pi * 220 * np.arange(RATE) / RATE)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def main() -> None:
    """Do it."""
    checkpoint, *recordings = sys.argv[1:]
    package = qeff_zoo.build(checkpoint)
    session = qeff_zoo.load(package)
    print(f"{package.name}: validated {package.validated}")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(one) for one in recordings] or [make_tone(Path(folder, "tone.wav"))]
        for path, found in zip(paths, session.transcribe(paths), strict=True):
            print(f"{path.name}, {found.seconds:.1f} s: {found.text}")
            for part in found.words or found.segments:  # CTC tells words, Whisper segments
                print(f"  {part.start:6.2f} {part.end:6.2f}  {part.text}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build a package of a speech model, and write down what is said in recordings, with the times of words or segments.

python examples/speech.py CHECKPOINT [RECORDING …]   # as openai/whisper-tiny a.wav; else the one beside this file
"""

import sys
from pathlib import Path

import qeff_zoo

RECORDING = Path(__file__).parent / "speech.wav"


def main() -> None:
    """Do it."""
    if not sys.argv[1:]:
        sys.exit(__doc__)
    checkpoint, *recordings = sys.argv[1:]
    package = qeff_zoo.build(checkpoint)
    session = qeff_zoo.load(package)
    print(f"{package.name}: validated {package.validated}")
    paths = [Path(one) for one in recordings] or [RECORDING]
    for path, found in zip(paths, session.transcribe(paths), strict=True):
        print(f"{path.name}, {found.seconds:.1f} s: {found.text}")
        for part in found.words or found.segments:  # CTC returns words, Whisper segments
            print(f"  {part.start:6.2f} {part.end:6.2f}  {part.text}")


if __name__ == "__main__":
    main()

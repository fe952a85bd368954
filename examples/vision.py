#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ask a model that sees about a picture.

python examples/vision.py MODEL PICTURE QUESTION   # without, examples/tiny-vlm about a picture that it never saw
"""

import sys
from pathlib import Path

from qeff_zoo import QEFFAutoModelForImageTextToText

TINY = Path(__file__).parent / "tiny-vlm"
PICTURE = TINY / "pictures" / "two-yellow-crosses.png"


def main() -> None:
    """Do it."""
    tiny = not sys.argv[1:]
    name, picture, question = [str(TINY), str(PICTURE), "What is this?"] if tiny else sys.argv[1:]
    model = QEFFAutoModelForImageTextToText.from_pretrained(name)
    print("package:", model.compile(prefill_seq_len=32, ctx_len=256 if tiny else 2048))
    info = model.generate(prompts=[question], images=[picture], generation_len=16)
    print(f"{question} -> {info.generated_texts[0]!r}", info, sep="\n")


if __name__ == "__main__":
    main()

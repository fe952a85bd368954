#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ask a vision-language model about an image.

python examples/vision.py MODEL IMAGE QUESTION   # without, examples/tiny-vlm about an untrained image
"""

import sys
from pathlib import Path

from qeff_zoo import QEFFAutoModelForImageTextToText

TINY = Path(__file__).parent / "tiny-vlm"
IMAGE = TINY / "images" / "two-yellow-crosses.png"


def main() -> None:
    """Do it."""
    tiny = not sys.argv[1:]
    name, image, question = [str(TINY), str(IMAGE), "What is this?"] if tiny else sys.argv[1:]
    model = QEFFAutoModelForImageTextToText.from_pretrained(name)
    print("package:", model.compile(prefill_seq_len=32, ctx_len=256 if tiny else 2048))
    info = model.generate(prompts=[question], images=[image], generation_len=16)
    print(f"{question} -> {info.generated_texts[0]!r}", info, sep="\n")


if __name__ == "__main__":
    main()

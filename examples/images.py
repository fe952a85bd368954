#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Recognize images, and compare them.

python examples/images.py CHECKPOINT IMAGE IMAGE …   # without, a tiny ViT of random weights, and images made here
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import qeff_zoo


def make_vit(folder: Path) -> str:
    """Write a checkpoint as transformers does, and what its processor does with images."""
    from transformers import ViTConfig, ViTForImageClassification

    names = {0: "sky", 1: "sea", 2: "sand"}
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
    config = ViTConfig(num_attention_heads=4, image_size=64, patch_size=16, id2label=names, **sizes)
    ViTForImageClassification(config).save_pretrained(folder)
    processor = {"image_processor_type": "ViTImageProcessor", "size": 64}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return str(folder)


def draw_images(folder: Path) -> list[Path]:
    """Draw a sunset, write it as PNG and as JPEG, and the same upside down."""
    down, right = np.mgrid[0:120, 0:200]
    image = np.stack([255 - down, 60 + 0 * down, 40 + right // 2], axis=2).astype(np.uint8)
    paths = [folder / name for name in ("sunset.png", "sunset.jpg", "turned.png")]
    for path, pixels in zip(paths, (image, image, image[::-1]), strict=True):
        Image.fromarray(pixels).save(path)
    return paths


def main() -> None:
    """Do it."""
    with tempfile.TemporaryDirectory() as folder:
        model = sys.argv[1] if sys.argv[1:] else make_vit(Path(folder, "tiny-vit"))
        images = [Path(name) for name in sys.argv[2:]] or draw_images(Path(folder))
        package = qeff_zoo.build(model, task="image-classification", batch_size=len(images))
        answers = qeff_zoo.load(package).classify(images)
        for path, (best, *_) in zip(images, answers, strict=True):
            print(f"{path.name}: {best.label} {best.score:.3f}")
        # A checkpoint that was trained to classify has no pooler of its own.
        package = qeff_zoo.build(model, task="image-feature-extraction", pooling="cls")
        session = qeff_zoo.load(package)
        cosines = session.similarity(session.embed(images))
        for path, cosine in zip(images[1:], cosines[0, 1:], strict=True):
            print(f"cosine of {images[0].name} and {path.name}: {cosine:.3f}")


if __name__ == "__main__":
    main()

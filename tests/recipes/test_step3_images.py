# SPDX-License-Identifier: Apache-2.0
"""Step 3.7's parts of images, and how they are written, with transformers' own code for torchvision."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fixtures_media_recipes import mentioned
from torch.nn import functional as F  # noqa: N812
from transformers.models.step3p7.image_processing_step3p7 import Step3p7ImageProcessor
from transformers.models.step3p7.processing_step3p7 import Step3p7Processor

from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.multimodal.families.step3p7 import Step3p7
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded

SMALL = {"size": {"height": 56, "width": 56}, "patch_size": 28, "max_image_size": 150}
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class Reference(Step3p7ImageProcessor):  # type: ignore[misc]
    """torchvision is not installed, and three calls of it are spelled out."""

    def __init__(self) -> None:
        self.max_image_size = SMALL["max_image_size"]

    def pad(self, images: Any, pad_size: Any) -> Any:
        below, beside = (
            one - old
            for one, old in zip(
                (pad_size.height, pad_size.width), images[0].shape[-2:], strict=True
            )
        )
        return [F.pad(images[0], (0, beside, 0, below))]

    def resize(self, images: Any, size: Any, resample: Any) -> Any:
        new = (size.height, size.width)
        if images.shape[-2:] == new:
            return images
        return F.interpolate(images, new, mode="bilinear", align_corners=False, antialias=True)

    def rescale_and_normalize(self, images: Any, *_: Any) -> Any:
        mean, std = (torch.tensor(one)[:, None, None] * 255 for one in (MEAN, STD))
        return (images.float() - mean) / std


@pytest.mark.parametrize(
    "size",
    [(24, 40), (56, 56), (40, 56), (60, 57), (97, 31), (200, 40), (20, 120), (300, 170), (30, 9)],
)
def test_parts_are_those_of_transformers(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    settings = (True, 1 / 255, True, MEAN, STD, None, SimpleNamespace(height=56), 28, None, "pt")
    right = Reference()._preprocess([image], *settings)
    made = image_processor({"image_processor_type": "Step3p7ImageProcessor", **SMALL})([pixels])
    for name in made.keys() - {"grids"}:
        np.testing.assert_array_equal(made[name], np.asarray(right[name]), err_msg=name)
    assert made.keys() - {"grids"} == right.keys() - {"patch_newline_masks"}
    written = Step3p7Processor.replace_image_token(
        SimpleNamespace(image_feature_placeholder="PPPP", patch_feature_placeholder="P"), right, 0
    )
    count = int(made["num_local_patches"][0])
    config = {"vision_config": {"patch_size": 7}}
    layout = Step3p7().prompt_layout
    grid = layout.grid(1 + count, made, config)
    given_image = Encoded(
        digest=b"", features={"image_embeds": np.zeros((4 + count, 1))}, grid=grid
    )
    assert mentioned(layout, given_image) == written

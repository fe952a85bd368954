# SPDX-License-Identifier: Apache-2.0
"""What several tests of published and others use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import parity
import published_processors as published
import torch
from fixtures_media_recipes import session_of
from PIL import Image
from transformers import BatchFeature

from qeff_zoo.checkpoint import processors
from qeff_zoo.recipe import Tiny
from qeff_zoo.registry import recipe_for

CTX_LEN = 4096


#: (height, width) of images in prompts, and of others whose arrays alone are compared.
SIZES = (70, 140), (33, 33)


def image(size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    """Return noise of (height, width)."""
    channels = len(mode)
    pixels = np.random.default_rng(size[0]).integers(0, 256, (*size, channels), np.uint8)
    return Image.fromarray(pixels, mode)


def _tiles(height: int, width: int) -> dict[str, np.ndarray[Any, Any]]:
    """Llama 4's tiles: two side by side and the whole, or the whole alone."""
    columns = 2 if width > height else 1
    count = columns + (columns > 1)
    pixels = np.random.default_rng(height).standard_normal((count, 3, 336, 336), np.float32)
    return {"pixel_values": pixels, "aspect_ratios": np.array([[1, columns]])}


def _sequences(height: int, width: int) -> dict[str, np.ndarray[Any, Any]]:
    """LFM2-VL's sequences of patches: two tiles and a narrow whole, or that alone."""
    columns = 2 if width > height else 1
    shapes = np.array([*[[32, 32]] * (columns if columns > 1 else 0), [6, 8]])
    pixels = np.zeros((len(shapes), 1024, 768), np.float32)
    mask = np.zeros(pixels.shape[:2], np.int64)
    for row, (high, wide) in enumerate(shapes):
        noise = np.random.default_rng(row).standard_normal((high * wide, 768), np.float32)
        pixels[row, : high * wide], mask[row, : high * wide] = noise, 1
    return {
        "pixel_values": pixels, "spatial_shapes": shapes, "pixel_attention_mask": mask,
        "image_rows": np.array([1]), "image_cols": np.array([columns]), "image_sizes": np.array([[96, 128]]),
    }  # fmt: skip


#: What image processors of transformers return that need torchvision, which is not installed, by type.
RETURNED: Mapping[str, Callable[[int, int], dict[str, Any]]] = {
    "llama4": _tiles,
    "lfm2_vl": _sequences,
}


class Returning:
    """Stand-in for an image processor that needs torchvision."""

    model_input_names = ("pixel_values",)
    tile_size, downsample_factor, encoder_patch_size, use_thumbnail = 512, 2, 16, True

    def __init__(self, make: Callable[[int, int], dict[str, Any]]) -> None:
        self.make = make

    def fetch_images(self, images: Any) -> Any:
        return images

    def __call__(self, images: Any, **_: Any) -> BatchFeature:
        flat = [one for part in images for one in (part if isinstance(part, list) else [part])]
        made = [self.make(one.height, one.width) for one in flat]
        joined = {name: np.concatenate([one[name] for one in made]) for name in made[0]}
        return BatchFeature({name: torch.from_numpy(one) for name, one in joined.items()})


@dataclass(frozen=True)
class Opened:
    """A published type, made small: its facts, transformers' processor and model, and a session."""

    facts: Mapping[str, Any]
    processor: Any
    subject: parity.Subject
    session: Any

    @property
    def marker(self) -> str:
        return str(self.facts.get("marker") or self.processor.image_token)

    def shown(self, prompt: str) -> list[Image.Image]:
        return [image(size) for size in SIZES[: prompt.count(self.marker)]]

    def process(self, prompt: str, images: list[Image.Image]) -> Any:
        given = [images] if self.facts.get("nested") else images
        if self.facts.get("unmarked"):  # its processor puts the image first
            prompt = prompt.removeprefix(self.marker)
        options = self.facts.get("options", {})
        return self.processor(text=prompt, images=given, return_tensors="pt", **options)


def tiny_of(name: str) -> Tiny:
    facts = published.read(name)
    settings = {} if name in RETURNED else facts["preprocessor_config"]
    return Tiny(config=published.scaled(facts), ctx_len=CTX_LEN // 2, image_processor=settings)


@cache
def opened(name: str) -> Opened:
    facts = published.read(name)
    config = published.scaled(facts)
    recipe = recipe_for(config)
    subject = parity.Subject(config, recipe)
    folder = subject.folder / "checkpoint"
    published.write(facts, folder)
    processors.write(folder, folder)
    session = session_of(parity.Case(recipe=recipe, tiny=tiny_of(name)), subject)
    reference = processors.load(folder)
    session._processor = None
    if make := RETURNED.get(name):
        reference.image_processor = Returning(make)
        session.prepare = lambda one, **_: make(one.height, one.width)
    return Opened(facts, reference, subject, session)

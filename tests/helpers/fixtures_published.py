# SPDX-License-Identifier: Apache-2.0
"""What several tests of published and others use."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import parity
import published_processors as published
from fixtures_media_recipes import session_of
from PIL import Image
from spelled_torchvision import spelled_out

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

    def process(self, prompt: str, images: list[Image.Image], processor: Any = None) -> Any:
        """Return what transformers' processor makes of a prompt and images."""
        given = [images] if self.facts.get("nested") else images
        if self.facts.get("unmarked"):  # its processor puts the image first
            prompt = prompt.removeprefix(self.marker)
        options = self.facts.get("options", {})
        found = processor or self.processor
        return found(text=prompt, images=given, return_tensors="pt", **options)


def tiny_of(name: str) -> Tiny:
    facts = published.read(name)
    return Tiny(
        config=published.scaled(facts),
        ctx_len=CTX_LEN // 2,
        image_processor=facts["preprocessor_config"],
    )


@cache
def opened(name: str) -> Opened:
    """Return a published type; its processor is called within `spelled_out`."""
    facts = published.read(name)
    config = published.scaled(facts)
    recipe = recipe_for(config)
    subject = parity.Subject(config, recipe)
    folder = subject.folder / "checkpoint"
    published.write(facts, folder)
    with spelled_out():
        processors.write(folder, folder)
        reference = processors.load(folder)
    session = session_of(parity.Case(recipe=recipe, tiny=tiny_of(name)), subject)
    session._processor = None
    return Opened(facts, reference, subject, session)

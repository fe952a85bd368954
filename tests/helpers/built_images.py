# SPDX-License-Identifier: Apache-2.0
"""A tiny model that reads images, its package, and images of several sizes, for the tests of one task."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from PIL import Image

from qeff_zoo import contract, registry
from qeff_zoo.package import Package
from qeff_zoo.pipeline import build
from qeff_zoo.plan.request import Request
from qeff_zoo.store import Store
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.trial import sample_images

Built = TypeVar("Built", bound="BuiltModel")


class BuiltModel:
    """A tiny model, and its package for batches of 2. Subclasses add what transformers returns.

    Args:
        model_type: Type of the model.
        variant: Name of the tiny model; empty for the recipe's first.
        folder: Folder of the checkpoint and the store.
    """

    #: Width and height of the images.
    sizes: ClassVar[Sequence[tuple[int, int]]]
    #: Task of the tiny model; empty for the recipe's.
    task: ClassVar[str] = ""

    def __init__(self, model_type: str, variant: str, folder: Path) -> None:
        recipe = registry.find_recipe(model_type)
        recipe = contract.for_task(recipe, self.task) if self.task else recipe
        tiny = next(one for one in recipe.tiny if variant in (one.name, ""))
        self.checkpoint = tiny_models.make(recipe, tiny, folder / "checkpoint")
        self.complete()
        self.store = Store(folder / "store")
        self.package: Package = build(
            str(self.checkpoint), Request(batch_size=2), validate=False, store=self.store
        ).package
        self.images = [
            Image.fromarray(sample_images.draw(number, *size))
            for number, size in enumerate(self.sizes)
        ]

    def complete(self) -> None:
        """Add the files that a checkpoint has beside the tiny model's."""


def making(built: type[Built]) -> Any:
    """Return a fixture that builds a tiny model, by type and variant, once for a module.

    Args:
        built: Class of the tiny models.
    """

    @pytest.fixture(scope="module")
    def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Built]:
        @cache
        def cached(model_type: str, variant: str) -> Built:
            return built(model_type, variant, tmp_path_factory.mktemp(model_type))

        return cached

    return make

# SPDX-License-Identifier: Apache-2.0
"""Image encoders in a manifest, and what their declarations may have."""

from dataclasses import replace
from typing import Any

import pytest

from qeff_zoo.errors import PackageError
from qeff_zoo.multimodal.images import Images
from qeff_zoo.multimodal.manifest import entry_of, images_of
from qeff_zoo.registry import list_recipes

RECIPES = {recipe.model_type: recipe for recipe in list_recipes() if recipe.images}


@pytest.mark.parametrize("name", RECIPES)
def test_a_manifest_has_all_of_an_image_encoder(name: str) -> None:
    recipe = RECIPES[name]
    for images in filter(None, (recipe.images, *recipe.towers.values())):
        entry = entry_of(images)
        assert images_of(entry) == images
        assert images_of({**entry, "adapter": "."}) == replace(images, adapter=".")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "is of family ''; expected one of .*images"),
        ({"family": "os"}, "is of family 'os'; expected"),
        ({"family": "../images"}, "is of family '../images'; expected"),
        ({"family": 3}, "is of family 3; expected"),
        ({"family": "images", "nonsense": 1}, "has the values nonsense"),
        ({"family": "images", "token": ["a"]}, "has the values token"),
        ({"family": "images", "before": "a"}, "has the values before"),
    ],
)
def test_a_manifest_with_another_image_encoder_is_refused(
    entry: dict[str, Any], words: str
) -> None:
    with pytest.raises(PackageError, match=words):
        images_of(entry)


def test_an_image_encoder_without_values_is_one() -> None:
    found = entry_of(Images())
    assert found == {"family": "images", "token": "image_token_id", "axes": 1}

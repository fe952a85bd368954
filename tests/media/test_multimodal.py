# SPDX-License-Identifier: Apache-2.0
"""Image and audio encoders in a manifest, and what their declarations may have."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import transformers

import qeff_zoo
from qeff_zoo.errors import PackageError
from qeff_zoo.multimodal.images import Images
from qeff_zoo.multimodal.manifest import audio_of, entry_of, images_of
from qeff_zoo.registry import list_recipes

RECIPES = {recipe.model_type: recipe for recipe in list_recipes() if recipe.images}
AUDIO = {recipe.model_type: recipe.audio for recipe in list_recipes() if recipe.audio}


@pytest.mark.parametrize("name", RECIPES)
def test_a_manifest_has_all_of_an_image_encoder(name: str) -> None:
    recipe = RECIPES[name]
    for images in filter(None, (recipe.images, *recipe.vision_encoders.values())):
        entry = entry_of(images)
        assert images_of(entry) == images


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "is of family ''; expected one of .*images"),
        ({"family": "os"}, "is of family 'os'; expected"),
        ({"family": "../images"}, "is of family '../images'; expected"),
        ({"family": 3}, "is of family 3; expected"),
        ({"family": "audio_windows"}, "is of family 'audio_windows'; expected"),
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


@pytest.mark.parametrize("name", AUDIO)
def test_a_manifest_restores_an_audio_encoder(name: str) -> None:
    audio = AUDIO[name]
    changed = replace(audio, adapter=".")
    restored = audio_of(entry_of(changed))
    assert type(restored) is type(audio)
    assert restored == changed


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "is of family ''; expected one of audio_chunks, .*voxtral"),
        ({"family": "images"}, "is of family 'images'; expected"),
        ({"family": "audio"}, "is of family 'audio'; expected"),
        ({"family": "manifest"}, "is of family 'manifest'; expected"),
        ({"family": ["voxtral"]}, r"is of family \['voxtral'\]; expected"),
        ({"family": "voxtral", "joined": False}, "has the values joined"),
        ({"family": "audio_windows", "windows": "20"}, "has the values windows"),
    ],
)
def test_a_manifest_with_another_audio_encoder_is_rejected(
    entry: dict[str, Any], words: str
) -> None:
    with pytest.raises(PackageError, match=words):
        audio_of(entry)


@pytest.mark.parametrize("name", AUDIO)
def test_random_recordings_have_the_arrays_of_prepared_ones(name: str) -> None:
    """Validation's random recordings are what the package's own processor could return."""
    audio = AUDIO[name]
    first = next(audio.samples((8, 40)))
    assert {audio.features, audio.mask} - {""} <= first.keys()
    assert first[audio.features].ndim == 3
    if audio.mask:
        assert first[audio.mask].shape[0] == first[audio.features].shape[0]


#: Fields of the bases that fewer than three recipes set, with the reason. A family's own fields are its file's affair.
RARE = {
    "layers": "a checkpoint of Mllama's type may name them otherwise",
}


def test_a_field_that_one_recipe_sets_is_the_business_of_its_family() -> None:
    """A field that fewer than three recipes set belongs into a file of `multimodal/families/`."""
    users: dict[str, set[str]] = {}
    for recipe in list_recipes():
        for encoder in filter(
            None, (recipe.images, *recipe.vision_encoders.values(), recipe.audio)
        ):
            bases = [one for one in type(encoder).__mro__ if ".families." not in one.__module__]
            for field in fields(bases[0]):
                found = users.setdefault(field.name, set())
                if getattr(encoder, field.name) != field.default:
                    found.add(recipe.model_type)
    rare = {name for name, found in users.items() if len(found) < 3}
    new, gone = sorted(rare - RARE.keys()), sorted(RARE.keys() - rare)
    assert not new, f"Move {new} into a family, or say in RARE why not."
    assert not gone, f"Remove {gone} from RARE: enough recipes set them."


def test_images_of_a_recipe_have_nine_fields() -> None:
    assert len(fields(Images)) <= 9


CORE = {
    file: file.read_text(encoding="utf-8")
    for file in Path(qeff_zoo.__file__).parent.rglob("*.py")
    if file.parent.name != "families"
}


def test_the_core_imports_no_family() -> None:
    assert not [file for file, text in CORE.items() if "multimodal.families" in text]


@pytest.mark.parametrize("name", ["lfm3_vl", "minicpm_ocr", "nemotron_h_omni"])
def test_a_model_is_a_recipe_and_at_most_one_family_file(name: str) -> None:
    family = type(RECIPES[name].images)
    assert family.__module__.startswith("qeff_zoo.multimodal.families.")
    named = [file for file, text in CORE.items() if name in text or family.__name__ in text]
    assert not named


def test_minicpm_ocr_merges_as_transformers_without_a_downsample_mode() -> None:
    images = RECIPES["minicpm_ocr"].images
    assert images is not None
    whole = transformers.MiniCPMOcrConfig().to_dict()
    other = images.geometry({**whole, "downsample_mode": "16x"})
    del whole["downsample_mode"]
    assert images.geometry(whole).merge == 2
    assert other.merge == 4

# SPDX-License-Identifier: Apache-2.0
"""Pictures as a whole and slices of it, whose patches lie side by side and are merged within a tower: MiniCPM-V 4.6."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import parity
import pytest
import torch
from test_media_recipes import session_of
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor
from transformers.vision_utils import get_vision_nearest_position_ids

from qeff_zoo.auto.vision import _pictures
from qeff_zoo.errors import GenerationError
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.geometry import Tower
from qeff_zoo.runtime.image_text_to_text import ImageTextToTextSession
from qeff_zoo.validation.sample_media import noise

RECIPE = find_recipe("minicpmv4_6")
TINY = RECIPE.tiny[0]
TOKENS = {
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}


def opened(**changes: Any) -> tuple[ImageTextToTextSession, parity.Subject]:
    """Open what a package of the tiny model would have, of a config that says something else."""
    case = parity.Case(recipe=RECIPE, tiny=replace(TINY, config={**TINY.config, **changes}))
    subject = parity.Subject(case.config, RECIPE)
    session = session_of(case, subject)
    assert isinstance(session, ImageTextToTextSession)
    return session, subject


@pytest.mark.parametrize("side", [3, 7, 16, 32, 70])
def test_the_nearest_positions_are_those_of_transformers(side: int) -> None:
    tower = Tower(merge=4, inner=2, side=side, taps="nearest")
    for height, width in ((4, 4), (8, 12), (28, 36), (32, 32), (44, 24), (92, 8), (140, 100)):
        sizes = torch.tensor([[height, width]])
        expected = get_vision_nearest_position_ids(sizes, side).numpy()
        grid = (1, height, width)
        lines = replace(tower, lines=True)
        found = tower.describe(grid)["interp_indices"][:, 0]
        assert (found == lines.ordered(expected, grid)).all()


@pytest.mark.parametrize(
    ("changes", "merge"),
    [({"merger_times": 2}, 8), ({"downsample_mode": "4x"}, 2)],
)
def test_other_ways_to_merge_agree_with_hugging_face(changes: dict[str, Any], merge: int) -> None:
    """Of each, rows of a picture whose squares lie line by line."""
    session, subject = opened(**changes)
    assert session.reader.tower.merge == merge
    made = noise(session, (2, 3), np.random.default_rng(0))
    told = {name: torch.from_numpy(array) for name, array in made.items()}
    with torch.no_grad():
        (right,) = subject.hf.model.get_image_features(**told).pooler_output
    found = session.reader.look(made).features["image_embeds"]
    assert np.abs(found - right.numpy()).max() < 1e-5 * np.abs(right.numpy()).max()


@pytest.mark.parametrize("use_image_id", [True, False])
def test_prompts_are_written_as_by_transformers(use_image_id: bool) -> None:
    """Numbers of pictures, the whole of each, and its slices, as many as there are; and taken apart again."""
    session, subject = opened()
    folder = subject.folder / "checkpoint"
    words = {f"w{number}": number for number in range(257)}
    for number, word in enumerate(("0", "1", "\n", *TOKENS.values()), 6):
        words[word] = words.pop(f"w{number}")
    words["<pad>"] = words.pop("w200")
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer.add_special_tokens(["<pad>", *TOKENS.values()])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {**TINY.image_processor, "use_image_id": use_image_id}
    for name, content in (
        ("tokenizer_config", {"extra_special_tokens": TOKENS}),
        ("preprocessor_config", settings),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))
    case = parity.Case(recipe=RECIPE, tiny=TINY)
    session = session_of(case, subject)  # type: ignore[assignment]
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 256, (*size, 3), np.uint8) for size in ((60, 60), (20, 20))]
    made = [session.prepare(one) for one in pictures]
    assert [len(one["target_sizes"]) for one in made] == [5, 1]
    told = SimpleNamespace(
        **{**TOKENS, "image_token": "<pad>", "slice_mode": True},
    )
    written = [
        MiniCPMV4_6Processor.replace_image_token(
            told,
            {**one, "num_patches_per_image": [len(one["target_sizes"])]},
            0,
            image_token_divisor=16,
        )
        for one in made
    ]
    text = "w1 <pad> w2 <pad> w3"
    if use_image_id:
        written = MiniCPMV4_6Processor._prepend_local_ids(told, [text], written, "<pad>")
    first, second = written
    prompt = [*session.request(text, images=pictures).prompt]
    expected = f"w1 {first} w2 {second} w3"
    assert prompt == session.tokenizer.encode(expected, special_tokens=False)
    session._special = {}
    with pytest.raises(GenerationError, match=r"tokenizer_config.json.*'image_.*_token'"):
        session.request(text, images=pictures)
    together = {
        "pixel_values": np.concatenate([one["pixel_values"] for one in made], -1),
        "target_sizes": np.concatenate([one["target_sizes"] for one in made]),
    }
    apart = _pictures(together)
    rows = [session.reader.look(one).features["image_embeds"] for one in apart]
    whole = [session.reader.look(one).features["image_embeds"] for one in made]
    np.testing.assert_array_equal(np.concatenate(rows), np.concatenate(whole))
    assert session.request_written_out(prompt, apart).prompt == tuple(prompt)

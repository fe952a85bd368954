# SPDX-License-Identifier: Apache-2.0
"""Molmo of 2024, whose model and processor are code of its checkpoints: numbers that this code returns.

Logits and digests were stored from the code of allenai/Molmo-7B-D-0924, run once on the checkpoint of
`molmo_checkpoint` and on noise; `molmo_processor` describes its processor, and returned the same arrays.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import molmo_checkpoint
import numpy as np
import parity
import pytest
import torch
from fixtures_families_with_code import rewrite
from fixtures_media_recipes import session_of
from molmo_processor import MolmoProcessor
from PIL import Image
from transformers import AutoTokenizer

from qeff_zoo.checkpoint.files import read_config
from qeff_zoo.contract import IMAGE_TEXT_TO_TEXT
from qeff_zoo.errors import CheckpointError, GenerationError, MediaError, UnsupportedModelError
from qeff_zoo.media.image_processor import (
    image_processor,
    load_image_processor,
    read_image_processor,
)
from qeff_zoo.multimodal.families.molmo import Molmo
from qeff_zoo.qefficient import processor_outputs
from qeff_zoo.registry import find_recipe
from qeff_zoo.validation.reference.loading import count_parameters, load_model

RECIPE = find_recipe("molmo")
#: First logits of the last token: of a text, and of a question about an image.
STORED = {
    False: (
        [0.6223, -2.0245, -1.0422, 0.3651, -0.329, -1.2321, -0.3017, -2.929],
        [-1.1066, -0.642, -0.4854, 0.8362, -1.1509, -0.053, -1.3736, 1.2668],
    ),
    True: (
        [0.3024, -2.1076, 1.6513, -0.1913, 1.0117, -0.2687, 1.7854, -3.0006],
        [-1.8912, -0.4386, -1.3665, 2.0249, -0.8291, -1.3669, -1.7094, 0.0357],
    ),
}
#: Crops, tokens of the prompt, and digests of `image_input_idx` and `image_masks`, by height and width.
DIGESTS = {
    (354, 536): (5, 604, 1131361584, 1749693512),
    (200, 1000): (5, 628, 2317852165, 2590534780),
    (48, 48): (2, 340, 2139448031, 1170309523),
}
#: config.json of allenai/Molmo-7B-D-0924, from github.com/reubzdubz/Molmo7B_D_NF4Quant at edf464b without its
#: quantization; ids of its tokens in added_tokens.json; and the number of parameters that its code makes of it.
PUBLISHED = {
    "architectures": ["MolmoForCausalLM"], "attention_layer_norm": False, "clip_qkv": None, "embedding_size": 152064,
    "auto_map": {
        "AutoConfig": "config_molmo.MolmoConfig", "AutoModelForCausalLM": "modeling_molmo.MolmoForCausalLM",
    },
    "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 37888, "layer_norm_eps": 1e-06,
    "layer_norm_type": "rms", "max_position_embeddings": 4096, "model_type": "molmo", "norm_after": False,
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "qkv_bias": True,
    "rope_theta": 1000000.0, "tie_word_embeddings": False, "use_cache": True, "use_position_ids": True,
    "vocab_size": 152064, "weight_tying": False,
}  # fmt: skip
TOKENS = {
    "<|endoftext|>": 151643, "<im_start>": 152064, "<im_end>": 152065, "<im_patch>": 152066, "<im_col>": 152067,
    "<|image|>": 152068,
}  # fmt: skip
PARAMETERS = 8_021_025_280


def image_of(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Checkpoints in the forms of Molmo-7B-D and, True, of Molmo-7B-O."""
    folder = tmp_path_factory.mktemp("molmo")
    for olmo in STORED:
        molmo_checkpoint.write(folder / str(olmo), olmo=olmo)
    return {olmo: folder / str(olmo) for olmo in STORED}


@pytest.mark.parametrize("olmo", STORED)
def test_logits_are_those_of_the_published_code(forms: dict[bool, Path], olmo: bool) -> None:
    model = load_model({"checkpoint": str(forms[olmo])}, IMAGE_TEXT_TO_TEXT, None)
    processor = MolmoProcessor.from_pretrained(forms[olmo])
    given = processor.process("What?", [image_of(60, 90)])
    arrays = {
        name: torch.from_numpy(np.ascontiguousarray(value))
        for name, value in Molmo().arranged(given_arrays(given)).items()
    }
    with torch.no_grad():
        text = model(torch.tensor([[*b"Hello, world"]])).logits[0, -1, :8]
        shown = model(given["input_ids"][None].long(), **arrays).logits[0, -1, :8]
    for logits, stored in zip((text, shown), STORED[olmo], strict=True):
        # Stored with four decimals: half of the last one, and three times that for the noise of float32.
        torch.testing.assert_close(logits, torch.tensor(stored), rtol=0, atol=4 * 0.5e-4)


def test_the_published_config_makes_a_model_of_the_published_size(tmp_path: Path) -> None:
    for name, content in {"config": PUBLISHED, "added_tokens": TOKENS}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert count_parameters({"checkpoint": str(tmp_path)}, IMAGE_TEXT_TO_TEXT) == PARAMETERS
    config = read_config(tmp_path / "config.json")
    assert (config["image_patch_id"], config["text_config"]["eos_token_id"]) == (152066, 151643)
    processor = read_image_processor({"config.json": tmp_path / "config.json"})
    assert processor([image_of(354, 536)])["pixel_values"].shape == (5, 576, 588)


def given_arrays(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays of the published processor's image as the examples of its users name them."""
    arrays = {name: np.asarray(array)[None] for name, array in given.items() if name != "input_ids"}
    return {"pixel_values": arrays.pop("images"), **arrays}


@pytest.mark.parametrize("size", DIGESTS)
def test_the_described_processor_is_the_published_one(
    forms: dict[bool, Path], size: tuple[int, int]
) -> None:
    processor = MolmoProcessor(AutoTokenizer.from_pretrained(forms[False]))
    made = processor.process("What?", [image_of(*size)])
    places, shares = (made[name].numpy() for name in ("image_input_idx", "image_masks"))
    digests = (zlib.crc32(one.astype("<i4").tobytes()) for one in (places, (shares * 196).round()))
    assert (len(made["images"]), len(made["input_ids"]), *digests) == DIGESTS[size]


@pytest.mark.parametrize("size", [(60, 90), (200, 33), (300, 410), (5, 90), (48, 48), (354, 536)])
def test_images_are_those_of_the_described_processor(
    forms: dict[bool, Path], size: tuple[int, int]
) -> None:
    reference = MolmoProcessor.from_pretrained(forms[False]).process("", [image_of(*size)])
    right = Molmo().arranged(given_arrays(reference))
    made = load_image_processor(forms[False])([image_of(*size)])
    # Normalized pixels reach 2.7, where floats are 2.4e-7 apart; the authors resize in another order of operations.
    np.testing.assert_allclose(made.pop("pixel_values"), right["pixel_values"], atol=12 * 2.4e-7)
    assert made.pop("image_num_crops") == len(right["pixel_values"])
    assert right.keys() == {"pixel_values", *made}
    for name, array in made.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


@pytest.mark.parametrize("settings", [{"overlap_margins": [3, 2]}, {"size": 20}, {"patch_size": 5}])
def test_crops_that_cut_squares_are_refused(settings: dict[str, Any]) -> None:
    given = {"size": 24, "patch_size": 4, "overlap_margins": [2, 0], **settings}
    processor = image_processor({"image_processor_type": "MolmoImageProcessor", **given})
    with pytest.raises(CheckpointError, match=r"Expected .*Correct the processor's JSON"):
        processor([image_of(9, 9)])


def test_an_image_that_would_vanish_is_refused(forms: dict[bool, Path]) -> None:
    with pytest.raises(MediaError, match="too narrow"):
        load_image_processor(forms[False])([image_of(1, 900)])


@pytest.mark.parametrize(
    "changes",
    [
        {"auto_map": {"AutoConfig": "config_molmoe.MolmoConfig"}},
        {"clip_qkv": 8.0},
        {"layer_norm_type": "default"},
    ],
)
def test_other_code_is_refused(
    forms: dict[bool, Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((forms[False] / name).read_bytes())
    rewrite(tmp_path, **changes)
    with pytest.raises(UnsupportedModelError, match="Expected the code of Molmo-7B-D"):
        read_config(tmp_path / "config.json")


@pytest.fixture(scope="module")
def session() -> Any:
    """A package of the recipe with the tokenizer and the chat template of a checkpoint."""
    names = ("image_start_token_id", "image_end_token_id", "image_patch_id", "image_col_id")
    tokens = dict(zip(names, range(257, 261), strict=True))
    tiny = RECIPE.tiny[0]
    subject = parity.Subject({"model_type": "molmo", **tiny.config, **tokens}, RECIPE)
    folder = subject.folder / "checkpoint"
    molmo_checkpoint.write_texts(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(dict(tiny.image_processor)))
    return session_of(parity.Case(recipe=RECIPE, tiny=tiny), subject)


def test_chats_are_prompts_of_the_published_processor(session: Any) -> None:
    """An image comes before all text, and a space before "User:"."""
    reference = MolmoProcessor(session_tokenizer(session), 16, 4, 3, (2, 0))
    for images in ([image_of(30, 70)], []):
        made = session.request("What?", images=images, chat=True)
        assert [*made.prompt] == reference.process("What?", images or None)["input_ids"].tolist()
    shown = session.request("<|image|> User: What? Assistant:", images=[image_of(30, 70)])
    assert shown.prompt == session.request("What?", images=[image_of(30, 70)], chat=True).prompt


def test_tokens_of_an_image_are_counted_before_it_is_read(session: Any) -> None:
    made = session.request("<|image|>", images=[image_of(30, 70)])
    beginning = 1  # token of every prompt
    assert session.tokens_of([(70, 30)]) == [len(made.prompt) - beginning]


def session_tokenizer(session: Any) -> Any:
    return AutoTokenizer.from_pretrained(session.folder)


def test_the_published_processor_s_output_gives_the_same_answer(session: Any) -> None:
    image = image_of(30, 70)
    reference = MolmoProcessor(session_tokenizer(session), 16, 4, 3, (2, 0)).process(
        "What?", [image]
    )
    inputs = {"input_ids": reference["input_ids"][None], **given_arrays(reference)}
    ((tokens, parts),) = processor_outputs.prompts_of(session, inputs)
    (given,) = session.generate([session.request_written_out(tokens, parts, generation_len=5)])
    (own,) = session.generate(
        [session.request("What?", images=[image], chat=True, generation_len=5)]
    )
    assert given.token_ids == own.token_ids


def test_images_at_the_same_tokens_are_refused(session: Any) -> None:
    """As the published processor returns several."""
    reference = MolmoProcessor(session_tokenizer(session), 16, 4, 3, (2, 0))
    one = given_arrays(reference.process("What?", [image_of(30, 70)]))
    both = {name: np.concatenate([array, array], 1) for name, array in one.items()}
    with pytest.raises(MediaError, match="Call it with one image"):
        session.reader.look(both)


def test_tokens_of_images_are_not_for_users_to_write(session: Any) -> None:
    with pytest.raises(GenerationError, match=r"the tokens \[260\], which stand around images"):
        session.request("<|image|> a <im_col>", images=[image_of(9, 9)])

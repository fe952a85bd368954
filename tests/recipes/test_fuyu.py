# SPDX-License-Identifier: Apache-2.0
"""Fuyu's images and prompts, with transformers' own processor: patches, lines that end with a token, and the text."""

from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import torch
from fixtures_media_recipes import session_of
from PIL import Image
from tiny_checkpoint import plain_class
from tokenizers import AddedToken, Tokenizer, models, normalizers
from transformers import FuyuImageProcessorPil, FuyuProcessor, PreTrainedTokenizerFast

from qeff_zoo.errors import MediaError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.qefficient.processor_outputs import images_of
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.text import tokenizer as own
from qeff_zoo.tasks.multimodal.samples import noise

RECIPE = find_recipe("fuyu")
TINY = RECIPE.tiny[0]
SETTINGS = {key: TINY.image_processor[key] for key in ("size", "patch_size")}
#: Tokens of which none is special but the one that begins a text, as in Fuyu's vocabulary.
PIECES = ["<unk>", "|NEWLINE|", "<0x04>", "▁", *"abcdefg", "<0x0A>"]


class Patching(FuyuImageProcessorPil):
    """transformers' backend for Pillow, whose processor hands its patches' maker tensors, where that expects arrays."""

    def patchify_image(self, image: Any, patch_size: Any = None) -> Any:
        return torch.from_numpy(super().patchify_image(image.numpy(), patch_size))


def tokenizer() -> Tokenizer:
    pieces = [*PIECES, *(f"w{number}" for number in range(len(PIECES), 257))]
    pieces[200], pieces[201] = "|SPEAKER|", "<s>"
    made = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    return made


@pytest.fixture(scope="module")
def reference_output() -> FuyuProcessor:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), bos_token="<s>", pad_token="<unk>")
    return FuyuProcessor(Patching(**SETTINGS), fast)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("fuyu")
    case = parity.Case(recipe=RECIPE, tiny=TINY)
    made = session_of(case, parity.Subject(case.config, RECIPE))
    tokenizer().save(str(folder / "tokenizer.json"))
    plain_class(folder)
    made.tokenizer = made.names.tokenizer = own.Tokenizer.find(folder)
    return made


@pytest.mark.parametrize("size", [(24, 40), (17, 9), (50, 31), (23, 97), (8, 16), (3, 70)])
def test_patches_and_prompts_are_those_of_transformers(
    size: tuple[int, int], reference_output: FuyuProcessor, session: Any
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    expected = reference_output(
        images=Image.fromarray(pixels), text="ab c", return_legacy_image_output=False
    )
    made = session.prepare(pixels)
    np.testing.assert_array_equal(made["pixel_values"], expected["pixel_values"].numpy())
    request = session.request("|SPEAKER|ab c", images=[pixels], generation_len=1)
    assert list(request.prompt) == expected["input_ids"][0].tolist()
    (written,) = images_of({"pixel_values": expected["pixel_values"].numpy()})
    assert session.reader.look(written).rows == session.reader.look(made).rows


def test_a_prompt_without_images_is_unchanged(session: Any) -> None:
    made = session.request("ab c", generation_len=1)
    assert list(made.prompt) == session.tokenizer.encode("ab c")


def test_an_image_may_be_noise(session: Any) -> None:
    made = session.reader.look(noise(session, (2, 3), np.random.default_rng(0)))
    assert (made.rows, made.grid) == (6, (1, 2, 3))


def test_parts_of_patches_are_refused() -> None:
    process = image_processor({**TINY.image_processor, "do_pad": False})
    with pytest.raises(
        MediaError, match=r"40 x 23 pixels into patches of 8 x 8: `do_pad` is False"
    ):
        process([np.zeros((24, 41, 3), np.uint8)])

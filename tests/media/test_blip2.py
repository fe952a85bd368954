# SPDX-License-Identifier: Apache-2.0
"""BLIP-2, whose forward always asks for an image: prompts as by its own processor, tokens as by its own `generate`."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_checkpoint import plain_class
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    Blip2ForConditionalGeneration,
    Blip2Processor,
    BlipImageProcessorPil,
    PreTrainedTokenizerFast,
)

from qeff_zoo import pipeline
from qeff_zoo.errors import PlanError
from qeff_zoo.pipeline import make_plan
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.text import tokenizer as own
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.validation import tiny_models

pytestmark = pytest.mark.turns(3)

RECIPE = find_recipe("blip-2")
TINY = RECIPE.tiny[0]
#: A picture, and a text behind it, or nothing.
PROMPTS = ["<image>w3 w4 w5", "<image>", "<image> w9"]


def tokenizer(size: int = 257) -> Tokenizer:
    """Words, and a token that its own template writes before every text, as those of OPT do."""
    words = {f"w{number}": number for number in range(size)}
    words["</s>"] = words.pop("w2")
    words |= {"<image>": 200} if words.pop("w200", None) else {}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([one for one in ("</s>", "<image>") if one in words])
    made.post_processor = processors.TemplateProcessing("</s> $A", special_tokens=[("</s>", 2)])
    return made


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_models.make(RECIPE, TINY, tmp_path_factory.mktemp("blip_2") / "checkpoint")
    tokenizer().save(str(folder / "tokenizer.json"))
    plain_class(folder)
    # `generate` is the language model's within, which that file tells nothing.
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 77}))
    return folder


@pytest.fixture(scope="module")
def session(checkpoint: Path) -> Any:
    sizes = Request(batch_size=2, ctx_len=48, prefill_seq_len=4)
    store = Store(checkpoint.parent / "store")
    done = pipeline.build(str(checkpoint), sizes, validate=False, store=store)
    return open_session(done.package, threads=1)


@pytest.fixture(scope="module")
def reference_output() -> Blip2Processor:
    return processor(tokenizer())


def processor(words: Tokenizer) -> Blip2Processor:
    text = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="</s>", pad_token="w1", eos_token="</s>"
    )
    images = BlipImageProcessorPil(size=TINY.image_processor["size"])
    return Blip2Processor(images, text, num_query_tokens=TINY.config["num_query_tokens"])


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.sampled(2)
def test_prompts_and_tokens_are_those_of_transformers(
    prompt: str, session: Any, reference_output: Blip2Processor, checkpoint: Path
) -> None:
    pixels = np.random.default_rng(len(prompt)).integers(0, 256, (40, 31, 3), np.uint8)
    text = prompt.removeprefix("<image>")
    given = reference_output(images=Image.fromarray(pixels), text=text, return_tensors="pt")
    np.testing.assert_array_equal(session.prepare(pixels)["pixel_values"], given["pixel_values"])
    made = session.request(prompt, images=[pixels], generation_len=12)
    assert list(made.prompt) == given["input_ids"][0].tolist()
    model = Blip2ForConditionalGeneration.from_pretrained(checkpoint).eval()
    wanted = model.generate(**given, max_new_tokens=12, do_sample=False)[0].tolist()
    (answer,) = session.generate([made])
    assert [*made.prompt, *answer.token_ids] == wanted
    if not text:  # what `generate` begins with by itself
        alone = model.generate(given["pixel_values"], max_new_tokens=12, do_sample=False)
        assert alone[0].tolist() == wanted


def test_a_tokenizer_may_lack_the_image_token(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their processor adds it behind all others."""
    lacking = tokenizer(200)
    lacking.save(str(tmp_path / "tokenizer.json"))
    for part in (session, session.names):
        monkeypatch.setattr(part, "tokenizer", own.Tokenizer.find(tmp_path))
    tokens = session.media_tokens
    marker, mark = tokens._marker("<image>")  # as a session of such a package has them
    assert mark == "<image>"
    monkeypatch.setattr(tokens, "marker", marker)
    monkeypatch.setattr(tokens, "mark", mark)
    pixels = np.zeros((28, 28, 3), np.uint8)
    given = processor(lacking)(images=Image.fromarray(pixels), text="w3 w4")
    made = session.request(PROMPTS[0].removesuffix(" w5"), images=[pixels], generation_len=1)
    assert [list(made.prompt)] == given["input_ids"]


def test_an_output_ends_by_the_inner_language_model(session: Any, checkpoint: Path) -> None:
    model = Blip2ForConditionalGeneration.from_pretrained(checkpoint)
    assert session.eos_token_ids == {model.language_model.generation_config.eos_token_id}


def test_a_text_alone_is_the_language_models(session: Any, checkpoint: Path) -> None:
    model = Blip2ForConditionalGeneration.from_pretrained(checkpoint).language_model.eval()
    tokens = torch.tensor([[2, 3, 4]])
    (answer,) = session.generate([session.request([2, 3, 4], generation_len=12)])
    wanted = model.generate(tokens, max_new_tokens=12, do_sample=False)[0, 3:].tolist()
    assert answer.token_ids == wanted


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"text_config": {"model_type": "t5", "is_encoder_decoder": True, "eos_token_id": 1}},
            "is 't5', an encoder-decoder; expected a decoder",
        ),
        ({"image_token_index": None}, "has no image_token_id; expected the id of a token"),
        ({"text_config": {"model_type": "opt"}}, r"has no text_config\.eos_token_id; expected"),
    ],
    ids=["encoder-decoder", "no token", "no end"],
)
def test_what_cannot_be_written_is_refused(
    changes: dict[str, Any], why: str, checkpoint: Path, tmp_path: Path
) -> None:
    for name in ("model.safetensors", "preprocessor_config.json"):
        shutil.copy(checkpoint / name, tmp_path)
    config = json.loads((checkpoint / "config.json").read_bytes()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PlanError, match=why):
        make_plan(str(tmp_path), Request())

# SPDX-License-Identifier: Apache-2.0
"""Images that a text reads by cross-attention: as `generate` answers, whoever else is there, however it is asked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from rejecting import Oracle
from tiny_checkpoint import plain_class
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.mllama import processing_mllama as processing

import qeff_zoo
from qeff_zoo import pipeline
from qeff_zoo.cli import main
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.decoding.multimodal_spans import CrossAttentionImage, Views, arrange
from qeff_zoo.runtime.engine.speculation import Speculation
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.validation import tiny_models

pytestmark = pytest.mark.turns(3)

IMAGE, LENGTH = 257, 8
_SAME = [1, 5, *[30] * 17, IMAGE, 7, 8]
#: Tokens, and sizes of their pictures: more than there are rows, and some with the same beginning.
CASES: list[tuple[list[int], list[tuple[int, int]]]] = [
    ([1, 5, IMAGE, 6, 7, 8], [(24, 40)]),
    ([1, 5, *[30] * 17, 9, 7, 8], []),
    (_SAME, [(41, 23)]),
    (_SAME, [(30, 30)]),
    ([1, IMAGE, IMAGE, 8, 9], [(60, 20), (90, 100)]),
    ([IMAGE, 1, 3, IMAGE, *[11] * 9], [(41, 23), (30, 30)]),
    (_SAME, [(41, 23)]),
]


def drawn(size: tuple[int, int]) -> Any:
    return np.random.default_rng(sum(size)).integers(0, 256, (*size, 3), np.uint8)


def processed(prompts: list[tuple[list[int], list[tuple[int, int]]]]) -> dict[str, Any]:
    """Return what transformers' processor makes of prompts with images, of one length."""
    kind = transformers.MllamaImageProcessorPil(size={"height": 28, "width": 28})
    shown = [[Image.fromarray(drawn(size)) for size in sizes] for _, sizes in prompts]
    found = dict(kind(shown, return_tensors="pt"))
    tokens = [one for one, _ in prompts]
    places = [processing.get_cross_attention_token_mask(token, IMAGE) for token in tokens]
    found["cross_attention_mask"] = torch.from_numpy(
        processing.convert_sparse_cross_attention_mask_to_dense(
            places, found.pop("num_tiles"), kind.max_image_tiles, len(tokens[0])
        )
    )
    return {"input_ids": torch.tensor(tokens), **found}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, Path]:
    folder = tmp_path_factory.mktemp("viewing")
    recipe = find_recipe("mllama")
    checkpoint = tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint")
    words = {f"w{number}": number for number in range(IMAGE)} | {"<|image|>": IMAGE}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    plain_class(checkpoint)
    (checkpoint / "chat_template.jinja").write_text(
        "w1 w5 {% for part in messages[0].content %}"
        "{{ '<|image|> ' if part.type == 'image' else part.text }}{% endfor %}"
    )
    sizes = {"full_batch_size": 2, "max_num_images": 2, "num_speculative_tokens": (3,)}
    requested = Request(prefill_seq_len=16, ctx_len=64, **sizes)
    done = pipeline.build(str(checkpoint), requested, validate=False, store=Store(folder / "store"))
    return done.package, checkpoint


@pytest.fixture(scope="module")
def expected(built: tuple[Package, Path]) -> list[list[int]]:
    """Tokens that `generate` of the unpatched model gives each case by itself."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(built[1]).eval()
    found = []
    for tokens, sizes in CASES:
        given = processed([(tokens, sizes)]) if sizes else {"input_ids": torch.tensor([tokens])}
        whole = model.generate(
            **given, max_new_tokens=LENGTH, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        found.append(whole[0, len(tokens) :].tolist())
    return found


def answers(session: Any) -> list[list[int]]:
    shown = [[drawn(size) for size in sizes] for _, sizes in CASES]
    prompts = [tokens for tokens, _ in CASES]
    found = session.generate(prompts, images=shown, generation_len=LENGTH, ignore_eos=True)
    return [answer.token_ids for answer in found]


def test_answers_are_those_of_generate(
    built: tuple[Package, Path], expected: list[list[int]]
) -> None:
    """Of requests that share rows one after the other, of texts alone among them; also of known beginnings."""
    assert expected[2] != expected[3], "pictures make no difference"
    session = open_session(built[0], threads=1)
    assert answers(session) == expected
    assert session.metrics is not None
    assert session.metrics.encoded_images == 5
    assert answers(session) == expected
    assert session.metrics.encoded_images == 0
    assert session.metrics.reused_tokens == 16 * 4  # of `_SAME`, and of the text that is as long
    right = {tuple(tokens): answer for (tokens, _), answer in zip(CASES, expected, strict=True)}
    oracle = Oracle(right, frozenset(range(0, LENGTH, 5)))
    session.speculation = Speculation(most=3, drafter=lambda _: oracle)
    assert answers(session) == expected


def test_qefficients_class_and_the_command_answer_alike(
    built: tuple[Package, Path],
    expected: list[list[int]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = qeff_zoo.QEFFAutoModelForImageTextToText.from_pretrained(built[1])
    model.package = built[0]
    both = [(tokens, sizes) for tokens, sizes in (CASES[2], CASES[3])]
    info = model.generate(inputs=processed(both), generation_len=LENGTH)
    assert [found[:LENGTH] for found in info.generated_ids] == expected[2:4]
    Image.fromarray(drawn((24, 40))).save(tmp_path / "one.png")
    settings = ["run", str(built[0].path), "--image", str(tmp_path / "one.png"), "--json"]
    settings += ["--generation-len", str(LENGTH), "--prompt"]
    assert main([*settings, "w1 w5 <|image|> w6 w7 w8"]) == 0
    plain = json.loads(capsys.readouterr().out)["outputs"][0]
    assert plain["token_ids"] == expected[0]
    assert main([*settings, "w6 w7 w8", "--chat"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["token_ids"] == expected[0]


def test_unsupported_requests_with_cross_attention_are_refused(built: tuple[Package, Path]) -> None:
    session = open_session(built[0], threads=1)
    assert isinstance(session, ImageTextToTextSession)
    shown = [session.prepare(drawn((24, 40)))] * 3
    with pytest.raises(GenerationError, match=r"3 images; expected at most 2.*--max-num-images"):
        session.request([IMAGE, 1] * 3, images=shown)
    with pytest.raises(GenerationError, match="Token id 258 is not of this model"):
        session.request([1, 258])
    with pytest.raises(PlanError, match="by cross-attention, whose keys and values --target qaic"):
        pipeline.make_plan(str(built[1]), Request(target="qaic"))
    with pytest.raises(PlanError, match="by cross-attention, are not handed over"):
        pipeline.make_plan(str(built[1]), Request(decode_only=True))
    with pytest.raises(PlanError, match="--max-num-images is 0, expected at least 1"):
        pipeline.make_plan(str(built[1]), Request(max_num_images=0))


def test_tokens_attend_to_images_from_their_own_to_the_next() -> None:
    """As transformers' processor says, wherever images stand; and none where there is no image."""
    random = np.random.default_rng(0)
    for _ in range(50):
        tokens = random.integers(0, 2, 9).tolist()
        tiles = [int(random.integers(1, 5)) for _ in range(sum(tokens))]
        parts = [
            CrossAttentionImage(digest=b"", features={}, tiles=np.arange(4) < count)
            for count in tiles
        ]
        views = arrange(tokens, [1], parts)
        if not tiles:
            assert views is None
            continue
        assert isinstance(views, Views)
        places = processing.get_cross_attention_token_mask(tokens, 1)
        dense = processing.convert_sparse_cross_attention_mask_to_dense([places], [tiles], 4, 9)
        tile_mask = views.tile_mask(2, 9, 9)
        np.testing.assert_array_equal(tile_mask[:, : len(tiles)], dense[0, 2:])
        assert (tile_mask[:, len(tiles) :] == -1).all()
        behind = views.tile_mask(9, 11, 9)[:, : len(tiles)]  # as the last token of the prompt
        np.testing.assert_array_equal(behind, np.repeat(dense[0, -1:], 2, 0))

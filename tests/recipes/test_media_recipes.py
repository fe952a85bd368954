# SPDX-License-Identifier: Apache-2.0
"""Every recipe with images or audio: its two programs in PyTorch, run as a package's, against Hugging Face.

`test_images` compares graphs of representatives; where this fails, a recipe or a seam is wrong, not the trace.
"""

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import parity
import pytest
import selection
import tokenizers
import torch
import transformers
from fixtures_media_recipes import (
    CHUNK,
    CTX_LEN,
    check,
    expected,
    image_count_of,
    mentioned,
    session_of,
    shown_to,
)
from PIL import Image

from qeff_zoo import pipeline
from qeff_zoo.contract import (
    ANY_TO_ANY,
    AUDIO_TEXT_TO_TEXT,
    IMAGE_TEXT_TO_TEXT,
    find,
    for_task,
    tasks_of,
)
from qeff_zoo.errors import CheckpointError, ExportError, GenerationError, MediaError
from qeff_zoo.export import loader
from qeff_zoo.media.image_bounds import bounded
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.media.images import blank
from qeff_zoo.multimodal.encoding.vision_encoder import Vision
from qeff_zoo.multimodal.families.aya_vision import AyaVision
from qeff_zoo.multimodal.families.cohere2_vision import Cohere2Vision
from qeff_zoo.multimodal.families.granite_docling import GraniteDocling
from qeff_zoo.multimodal.families.granite_speech import GraniteSpeechAudio
from qeff_zoo.multimodal.families.idefics3 import Idefics3
from qeff_zoo.multimodal.families.lfm2 import Lfm2Vl
from qeff_zoo.multimodal.families.llama4 import Llama4
from qeff_zoo.multimodal.families.ovis2 import Ovis2
from qeff_zoo.multimodal.families.phi4_audio import Phi4Audio
from qeff_zoo.multimodal.families.pixtral import Pixtral
from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.multimodal.tracing import language_tracing, patch_tracing
from qeff_zoo.plan.request import Request
from qeff_zoo.qefficient.processor_outputs import images_of
from qeff_zoo.recipe import PatchShape, Shape
from qeff_zoo.registry import find_recipe, list_recipes, recipe_for
from qeff_zoo.runtime.caches.image_prompt_templates import Layout
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.fixed_shapes import shapes_of
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.tasks.multimodal.image_text_to_text import sides_of
from qeff_zoo.tasks.multimodal.samples import noise
from qeff_zoo.tasks.multimodal.session import MediaTextSession
from qeff_zoo.validation.judgement.parity import relative_errors
from qeff_zoo.validation.reference.media import Media

pytestmark = pytest.mark.turns(3)

#: Every tiny model, for each task of those that read pictures and sounds.
MEDIA = {
    case.name: case
    for recipe in list_recipes()
    if recipe.media
    for task in tasks_of(recipe)
    if find(task).generates
    for tiny in recipe.tiny
    for case in [parity.Case(recipe=for_task(recipe, task), tiny=tiny)]
}
CASES = [
    pytest.param(name, marks=pytest.mark.together(case.recipe.model_type))
    for name, case in MEDIA.items()
]


def test_a_text_may_have_as_many_tokens_as_there_are_heads() -> None:
    """A mask of scores is not taken for one of tokens, nor are texts forbidden for which it could be."""

    class Filling(torch.nn.Module):
        def forward(self, index: torch.Tensor, scores: torch.Tensor, mask: torch.Tensor) -> Any:
            with language_tracing._Merged(index, torch.zeros(1, 6)):
                return scores.masked_fill(mask, 0.0)

    given = (
        torch.zeros(2, 5, dtype=torch.long),
        torch.ones(2, 4, 6),
        torch.ones(2, 4, 1, dtype=torch.bool),
    )
    shapes = ({1: torch.export.Dim("seq_len", min=2, max=99)}, {}, {})
    made = torch.export.export(Filling(), given, dynamic_shapes=shapes, strict=False)
    assert not made.module()(*given).any()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4, kept=selection.first_tinies())
def test_media_and_text_agree_with_hugging_face(name: str) -> None:
    """Two rows, of two images or recordings and one, in chunks that cut them, and one token at a time."""
    case = MEDIA[name]
    subject = parity.Subject(case.config, for_task(recipe_for(case.config), case.recipe.task))
    session = session_of(case, subject)
    calls, plain = list[Any](), session.reader.program.run
    session.reader.program.run = lambda inputs: (
        calls.append((inputs, plain(inputs))) or calls[-1][1]
    )
    check(session, subject)
    if case.recipe.task != ANY_TO_ANY:  # which no program of fixed sizes serves
        session.reader.program.run = plain
        check_filled_up(session, calls[: len(shown_to(session))])


def check_filled_up(session: MediaTextSession, calls: Sequence[Any]) -> None:
    """Compare what becomes of patches with what becomes of them where a program takes more, as those of devices do.

    Args:
        session: With the program.
        calls: Inputs and outputs of calls of it.
    """
    vision = session.reader.program
    tower = getattr(session.reader, "patch_geometry", None)
    if tower is None and not isinstance(session.media, GraniteSpeechAudio | Phi4Audio):
        return
    task = find(IMAGE_TEXT_TO_TEXT if tower else AUDIO_TEXT_TO_TEXT)
    rows = Shape(prefill_seq_len=CHUNK, ctx_len=CTX_LEN)
    if tower:
        merged = tower.merge**2
        sizes = {"patches": (7 * merged, 18 * merged), "merged": merged, "window": tower.window}
        rows = PatchShape(prefill_seq_len=CHUNK, ctx_len=CTX_LEN, **sizes)
    before = task.before[0]
    named = {
        name: replace(
            value, shape=tuple("patches" if "*" in str(axis) else axis for axis in value.shape)
        )
        for name, value in vision.inputs.items()
    }
    shapes = shapes_of(before.specializations(rows), named)
    assert calls
    for inputs, right in calls:
        call = shapes.fit(inputs)
        assert {name: array.shape for name, array in call.inputs.items()} != {
            name: array.shape for name, array in inputs.items()
        }
        for name, made in vision.run(call.inputs).items():
            found = call.answer(made, (f"{'image' if tower else 'audio'}_rows", made.shape[1]))
            assert relative_errors(right[name], found).max() < 1e-5, name


def test_tiles_of_several_sizes_agree_with_hugging_face() -> None:
    """Two tiles and a narrow whole, which a processor fills up: their rows follow one another."""
    case = parity.all_cases()["lfm2_vl-base"]
    subject = parity.Subject(case.config, recipe_for(case.config))
    session = session_of(case, subject)
    random = np.random.default_rng(0)
    parts = [noise(session, size, random) for size in ((2, 2), (2, 2), (1, 3))]
    settings = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    with pytest.raises(MediaError, match=r"the 3 tiles.*return_row_col_info=True"):
        session.reader.look(settings)
    settings |= {"image_rows": np.array([1]), "image_cols": np.array([2])}
    image = session.reader.look(settings)
    assert (image.rows, image.grid) == (11, (4, 1, 2))
    given = {
        name: torch.from_numpy(setting) for name, setting in settings.items() if "image" not in name
    }
    with torch.no_grad():
        right = torch.cat(subject.hf.model.get_image_features(**given).pooler_output).numpy()
    found = image.features["image_embeds"]
    assert np.abs(found - right).max() < 1e-5 * np.abs(right).max()


@pytest.mark.parametrize(("grid", "rows"), [((6, 1, 1), 6), ((4, 2, 3), 24), ((4, 2, 1), 14)])
def test_lfm2_vl_names_its_tiles(grid: tuple[int, int, int], rows: int) -> None:
    module = importlib.import_module("transformers.models.lfm2_vl.processing_lfm2_vl")
    tokens = SimpleNamespace(
        image_start_token="<|image_start|>",
        image_end_token="<|image_end|>",
        image_thumbnail_token="<|img_thumbnail|>",
        image_token="P",
    )
    each, tall, wide = grid
    whole = rows - each * tall * wide if tall * wide > 1 else rows
    expected = module.Lfm2VlProcessor._build_image_tokens(
        tokens, tall, wide, each, whole, whole > 0, True
    )
    image = Encoded(digest=b"", features={"image_embeds": np.zeros((rows, 1))}, grid=grid)
    assert mentioned(Lfm2Vl().prompt_layout, image) == expected


def test_a_text_that_is_no_token_is_a_placeholder_of_an_image(tmp_path: Path) -> None:
    """As processors replace it, before they make tokens; and tokens around an image are not for users to write."""
    case = parity.all_cases()["ovis2-base"]
    subject = parity.Subject(case.config, recipe_for(case.config))
    session = session_of(case, subject)
    words = {f"w{number}": number for number in range(257)}
    words["<IMG_ATOM>"] = words.pop("w200")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    session.tokenizer = session.names.tokenizer = Tokenizer.find(tmp_path)
    image = np.zeros((28, 28, 3), np.uint8)
    made = session.request("w3 <image> w5", images=[image])
    assert list(made.prompt) == [3, 201, *[200] * 4, 202, 205, 5]
    assert made.spans is not None
    assert made.spans.places.tolist() == [*range(1, 8)]
    with pytest.raises(GenerationError, match=r"tokens \[202\], which stand around images"):
        session.request("w3 <image> w202", images=[image])
    with pytest.raises(GenerationError, match=r"has 0 places for images.*Write '<image>'"):
        session.request("w3", images=[image])


def test_tiles_of_a_processor_are_taken_apart() -> None:
    """Where tokens are written out, each tile is an image of its own."""
    shapes, mask = np.array([[2, 2], [2, 4]]), np.ones((2, 8), np.int64)
    given = {"pixel_values": np.zeros((2, 8, 3)), "spatial_shapes": shapes}
    found = images_of({**given, "pixel_attention_mask": mask})
    assert [one["spatial_shapes"].tolist() for one in found] == [[[2, 2]], [[2, 4]]]
    assert all(len(array) == 1 for one in found for array in one.values())


def test_tiles_that_fill_up_are_not_read_and_finer_ones_need_weights() -> None:
    """As processors return several pages, of which each has the tiles of the largest."""
    pixels = np.random.default_rng(0).standard_normal((2, 3, 3, 28, 28), np.float32)
    mask = np.array([[True, True, True], [True, False, False]])
    given = {"pixel_values": pixels, "pixel_attention_mask": mask, "tile_fine_mask": mask[:, 0]}
    found = images_of(given, more=["pixel_attention_mask", "tile_fine_mask"])
    case = parity.all_cases()["granite_docling-fine"]
    subject = parity.Subject(case.config, recipe_for(case.config))
    session = session_of(case, subject)
    assert [session.reader.look(one).rows for one in found] == [12, 4]
    plain = [{name: one[name] for name in one if "fine" not in name} for one in found]
    assert [session.reader.look(one).rows for one in plain] == [3, 1]
    case = parity.all_cases()["granite_docling-base"]
    session = session_of(case, parity.Subject(case.config, recipe_for(case.config)))
    assert [session.reader.look(one).rows for one in plain] == [12, 4]
    with pytest.raises(MediaError, match=r"with tile_fine_mask, for more rows.*no weights"):
        session.reader.look(found[0])


def test_tiles_of_another_size_belong_to_their_images() -> None:
    """As processors return them; what one of several images is answers as it does alone."""
    case = parity.all_cases()["deepseek_ocr2-base"]
    made = image_processor(case.tiny.image_processor)
    random = np.random.default_rng(0)
    sizes = (40, 24), (30, 30), (20, 60)
    images = [random.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
    found = images_of(made(images), more=["pixel_values_local"])
    assert [one["num_local_patches"].tolist() for one in found] == [[2], [0], [2]]
    for one, image in zip(found, images, strict=True):
        alone = made([image])
        assert alone.keys() == one.keys()
        assert all(np.array_equal(alone[name], one[name]) for name in alone)
    assert sides_of(made, "pixel_values_local") == [98, 32]
    uncut = image_processor({**case.tiny.image_processor, "crop_to_patches": False})
    assert sides_of(uncut, "pixel_values_local") == [32, 32]
    wide = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 48}}
    with pytest.raises(CheckpointError, match=r"48 x 32 pixels.*expected squares"):
        sides_of(image_processor(wide), "")


@pytest.mark.parametrize("name", CASES if parity.EVERY else parity.CROSSED_MEDIA)
@pytest.mark.sampled(2)
def test_packages_agree_with_hugging_face(name: str, tmp_path: Path) -> None:
    case = parity.all_cases()[name]
    subject = parity.Subject(case.config, recipe_for(case.config))
    check(package_of(case, subject, tmp_path), subject)


def package_of(case: parity.Case, subject: parity.Subject, folder: Path) -> MediaTextSession:
    """Build a package of the case, and open it."""
    most = image_count_of(case)
    ctx_len = 2 * case.tiny.ctx_len or CTX_LEN
    sizes = {"prefill_seq_len": ctx_len // 16, "ctx_len": ctx_len}
    requested = Request(**sizes, batch_size=2, max_num_images=most)
    checkpoint = subject.folder / "checkpoint"
    if case.tiny.image_processor:
        settings = json.dumps(dict(case.tiny.image_processor))
        (checkpoint / "preprocessor_config.json").write_text(settings)
    store = Store(folder / "store")
    done = pipeline.build(str(checkpoint), requested, validate=False, store=store)
    session = open_session(done.package, threads=1)
    assert isinstance(session, MediaTextSession)
    if case.tiny.image_processor and isinstance(session, ImageTextToTextSession):
        session._processor = image_processor(case.tiny.image_processor, case.recipe.image_processor)
    return session


# --- mistakes of QEfficient, each of which would show ---------------------------------------------


def opened(name: str) -> tuple[MediaTextSession, parity.Subject]:
    """Open what a package of a tiny model would have."""
    case = MEDIA[name]
    subject = parity.Subject(case.config, for_task(recipe_for(case.config), case.recipe.task))
    return session_of(case, subject), subject


def test_a_second_image_after_a_call_of_text_has_its_own_features() -> None:
    """QEfficient counts rows from 0 again after such a call, and has one count for all rows of a batch."""
    session, subject = opened("llava-base")
    one, second = shown_to(session)[:2]
    runs, text = [session.run_begun(part) for part in session.look([one, second])], [*range(20, 44)]
    rows = [[3, *runs[0], *text, *runs[1], 4], [5, *runs[1], *text, *runs[0], 6]]
    recorded = [[one, second], [second, one]]
    chunk = session.decoder.sizes.prefill_seq_len
    assert len(text) > 2 * chunk  # one call at least has text alone
    spans = [session.spans(*pair) for pair in zip(rows, recorded, strict=True)]
    for start in range(0, len(rows[0]), chunk):
        stop = min(start + chunk, len(rows[0]))
        pieces = {at: Piece(rows[at][start:stop], start, spans[at]) for at in (0, 1)}
        logits = session.decoder.prefill(pieces)
    for at, (tokens, images) in enumerate(zip(rows, recorded, strict=True)):
        right = expected(subject, session, tokens, images)[-1:]
        mistaken = expected(subject, session, tokens, [images[0]] * 2)[-1:]
        assert relative_errors(right, logits[at][None]).max() < 5e-5
        assert relative_errors(right, mistaken).max() > 1e-3


def test_tokens_of_a_gemma_3_image_attend_to_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """QEfficient has them see what is before them alone."""
    session, subject = opened("gemma3-base")
    (one,) = shown_to(session)[:1]
    tokens = [3, *session.run_begun(*session.look([one])), 4]
    spans = session.spans(tokens, [one])
    assert spans is not None
    length = session.decoder.sizes.prefill_seq_len
    start = 0
    while start < len(tokens):
        stop = spans.end(start, min(start + length, len(tokens)))
        (logits,) = session.decoder.prefill({0: Piece(tokens[start:stop], start, spans)}).values()
        start = stop
    right = expected(subject, session, tokens, [one])[-1:]
    assert relative_errors(right, logits[None]).max() < 5e-5
    monkeypatch.setattr(Media, "_types", lambda _, of_images: 0 * of_images.long())
    blind = expected(subject, session, tokens, [one])[-1:]
    assert relative_errors(right, blind).max() > 1e-2


def test_frames_of_an_lfm3_video_are_convolved_one_by_one() -> None:
    session, subject = opened("lfm3_vl-base")
    assert isinstance(session.reader, Vision)
    tower, grid = session.reader.geometry, (2, 4, 6)
    (values,) = session.reader.program.inputs["pixel_values"].shape[1:]
    pixels = np.random.default_rng(0).standard_normal((48, int(values)), np.float32)
    found, of_image = (
        session.reader.run({"pixel_values": pixels, **tower.describe(one)})["image_embeds"]
        for one in (grid, (1, 8, 6))
    )
    with torch.no_grad():
        steps = subject.hf.get_video_features(torch.from_numpy(pixels), torch.tensor([grid]))
    right = torch.cat(tuple(steps.pooler_output)).numpy()
    assert relative_errors(right, found).max() < 1e-5
    assert relative_errors(right, of_image).max() > 1e-3


#: Settings small enough for a test, of processors that no recipe's tiny model has.
SETTINGS: dict[str, dict[str, Any]] = {
    "CohereCompassImageProcessor": {
        "patch_size": 4,
        "size": {"shortest_edge": 64, "longest_edge": 2048},
    },
    "Cosmos3EdgeImageProcessor": {
        "patch_size": 4,
        "size": {"shortest_edge": 512, "longest_edge": 4096},
    },
    "DeepseekOcr2ImageProcessor": {"size": {"height": 56, "width": 56}, "tile_size": 28},
    "DeepseekVLHybridImageProcessor": {
        "size": {"height": 28, "width": 28},
        "high_res_size": {"height": 84, "width": 84},
    },
    "DeepseekVLImageProcessor": {"size": {"height": 28, "width": 28}},
    "DonutImageProcessor": {"size": [20, 28], "do_align_long_axis": True},
    "Ernie4_5_VLMoeImageProcessor": {
        "patch_size": 4,
        "size": {"shortest_edge": 64, "longest_edge": 2048},
    },
    "Gemma4ImageProcessor": {"patch_size": 2, "max_soft_tokens": 70},
    **{
        f"{name}ImageProcessor": {
            "patch_size": 4,
            "size": {"shortest_edge": 512, "longest_edge": 4096},
        }
        for name in ("Glm46V", "Glm4v", "Glmga")
    },
    "GotOcr2ImageProcessor": {"size": {"height": 28, "width": 28}, "crop_to_patches": True},
    "GraniteDoclingImageProcessor": {
        "size": {"height": 28, "width": 28},
        "max_patches": 6,
        "fine_route": True,
        "dense_max_patches": 20,
        "dense_max_scale": 0.8,
        "dense_min_aspect": 0.5,
        "dense_max_aspect": 2.5,
    },
    "Idefics3ImageProcessor": {
        "size": {"longest_edge": 56},
        "max_image_size": {"longest_edge": 28},
    },
    "JanusImageProcessor": {"size": {"height": 28, "width": 28}, "min_size": 20},
    "LlavaOnevisionImageProcessor": {
        "size": {"height": 28, "width": 28},
        "image_grid_pinpoints": [[28, 28], [28, 84], [84, 28], [56, 56]],
    },
    "MiniCPMV4_6ImageProcessor": {"patch_size": 4, "scale_resolution": 24},
    "MllamaImageProcessor": {"size": {"height": 28, "width": 28}},
    "NougatImageProcessor": {"size": {"height": 28, "width": 20}},
    "Ovis2ImageProcessor": {"size": {"height": 28, "width": 28}, "crop_to_patches": True},
    "PPChart2TableImageProcessor": {"size": {"height": 28, "width": 28}},
    "PaddleOCRVLImageProcessor": {
        "patch_size": 4,
        "size": {"shortest_edge": 64, "longest_edge": 2048},
    },
    "PixtralImageProcessor": {
        "size": {"longest_edge": 56},
        "patch_size": {"height": 14, "width": 14},
    },
    "VideoLlama3ImageProcessor": {
        "patch_size": 4,
        "size": {"shortest_edge": 64, "longest_edge": 2048},
    },
    "VideoLlavaImageProcessor": {
        "size": {"shortest_edge": 28},
        "crop_size": {"height": 28, "width": 28},
    },
}


@pytest.mark.parametrize("name", ["Gemma4ImageProcessor", "PaddleOCRVLImageProcessor"])
def test_narrow_images_are_processed_bit_for_bit(name: str) -> None:
    test_images_are_processed_bit_for_bit(name, (2, 180))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("size", [(24, 40), (97, 31), (5, 5), (28, 56)])
def test_images_are_processed_bit_for_bit(name: str, size: tuple[int, int]) -> None:
    """As transformers' PIL backend does, where QEfficient stretches an image first, to one size."""
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    kind = getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)
    reference = kind(**SETTINGS[name])(Image.fromarray(pixels), return_tensors="np")
    ours = image_processor({"image_processor_type": name, **SETTINGS[name]})([pixels])
    if "pixel_values_images" in reference:  # an old name, which the model takes no more
        reference["pixel_values"] = reference["pixel_values_images"]
    assert ours.keys() <= reference.keys() | {"rows", "cols"}
    for key, array in ours.items():
        if key in reference:
            np.testing.assert_array_equal(array, np.asarray(reference[key]), err_msg=key)
    # A server counts tokens by the header of a file.
    made = image_processor({"image_processor_type": name, **SETTINGS[name]}).arrays([blank(*size)])
    assert {key: value.shape for key, value in made.items()} == {
        key: our.shape for key, our in ours.items()
    }


#: Patches that a program takes, and the settings of transformers' processor that make no more of a picture.
BOUNDED: dict[str, tuple[int, dict[str, Any]]] = {
    "CohereCompassImageProcessor": (60, {"size": {"shortest_edge": 64, "longest_edge": 960}}),
    "Cosmos3EdgeImageProcessor": (40, {"size": {"shortest_edge": 512, "longest_edge": 640}}),
    "Ernie4_5_VLMoeImageProcessor": (60, {"size": {"shortest_edge": 64, "longest_edge": 960}}),
    "Gemma4ImageProcessor": (700, {"max_soft_tokens": 70}),
    "Glm4vImageProcessor": (40, {"size": {"shortest_edge": 512, "longest_edge": 1280}}),
    "PaddleOCRVLImageProcessor": (60, {"size": {"shortest_edge": 64, "longest_edge": 960}}),
    "PixtralImageProcessor": (10, {"size": {"longest_edge": 42}}),
    "VideoLlama3ImageProcessor": (60, {"size": {"shortest_edge": 64, "longest_edge": 960}}),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_images_are_shrunk_to_the_size_of_a_program(name: str) -> None:
    """By settings that transformers' own processor has, which makes the same of an image."""
    most, settings = BOUNDED[name]
    pixels = np.random.default_rng(0).integers(0, 256, (97, 60, 3), np.uint8)
    given = {
        **SETTINGS[name],
        **({"max_soft_tokens": 280} if "max_soft_tokens" in settings else {}),
    }
    processor = image_processor({"image_processor_type": name, **given})
    kind = getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)
    reference = kind(**{**given, **settings})(Image.fromarray(pixels), return_tensors="np")
    ours = bounded(processor, most)([pixels])
    for key, array in ours.items():
        np.testing.assert_array_equal(array, np.asarray(reference[key]), err_msg=key)
    assert processor([pixels])["pixel_values"].size > ours["pixel_values"].size
    if "image_grid_thw" in ours:
        assert ours["image_grid_thw"].prod() <= most


@pytest.mark.parametrize("part", [patch_tracing.tracing, language_tracing.tracing])
def test_a_recipe_without_the_deepstack_layers_of_its_model_is_refused(part: Any) -> None:
    recipe = find_recipe("qwen3_vl")
    images = replace(recipe.images, deepstack="")
    model = loader.load_meta({"model_type": "qwen3_vl", **recipe.tiny[0].config}, recipe)
    with pytest.raises(ExportError, match=r"Add deepstack='deepstack_visual_indexes' to `images`"):
        part(model, images=images)


def test_patches_that_a_processor_merges_otherwise_are_refused() -> None:
    program: Any = SimpleNamespace(inputs={"position_ids": None, "pixel_values": None})
    images = PatchGrid(merge=1)
    reader = Vision(program, {"vision_config": {"patch_size": 4}}, 0, images)
    pixels = np.zeros((40, 40, 3), np.uint8)
    settings = {**SETTINGS["VideoLlama3ImageProcessor"], "merge_size": 2}
    processor = image_processor({"image_processor_type": "VideoLlama3ImageProcessor", **settings})
    with pytest.raises(MediaError, match=r"merged by \[2\]; expected 1.*`merge_size`"):
        reader.look(processor([pixels]))


#: Layout, what writes it in transformers, its attributes, what its processor said, and the picture.
WRITTEN: dict[
    str, tuple[Layout, str, dict[str, Any], dict[str, Any], tuple[int, int, int], int]
] = {
    "lines of Pixtral": (
        Pixtral().prompt_layout,
        "pixtral.processing_pixtral.PixtralProcessor",
        {
            "patch_size": 7,
            "spatial_merge_size": 2,
            "image_token": "P",
            "image_break_token": "[IMG_BREAK]",
            "image_end_token": "[IMG_END]",
        },
        {"image_sizes": [(42, 28)]},
        (1, 3, 2),
        6,
    ),
    **{
        f"{rows} x {columns} tiles of Idefics 3": (
            Idefics3().prompt_layout,
            "idefics3.processing_idefics3.Idefics3Processor",
            {
                "image_seq_len": 2,
                "image_token": "P",
                "fake_image_token": "<fake_token_around_image>",
                "global_image_tag": "<global-img>",
            },
            {"rows": [[rows]], "cols": [[columns]]},
            (rows * columns + 1, rows, columns),
            2 * (rows * columns + 1),
        )
        for rows, columns in ((0, 0), (1, 2), (2, 3))
    },
    **{
        f"{rows} x {columns} tiles of Granite Docling": (
            GraniteDocling().prompt_layout,
            "granite_docling.processing_granite_docling.GraniteDoclingProcessor",
            {
                "image_seq_len": 2,
                "image_token": "P",
                "fake_image_token": "<fake_token_around_image>",
                "global_image_tag": "<global-img>",
            },
            {"rows": [[rows]], "cols": [[columns]]},
            (rows * columns + (rows * columns > 1), rows, columns),
            2 * (rows * columns + (rows * columns > 1)),
        )
        for rows, columns in ((1, 1), (1, 2), (2, 3))
    },
    **{
        f"{rows} x {columns} tiles of Ovis 2": (
            Ovis2().prompt_layout,
            "ovis2.processing_ovis2.Ovis2Processor",
            {"image_seq_length": 2},
            {"grids": np.array([[rows, columns]])},
            (rows * columns + (rows * columns > 1), rows, columns),
            2 * (rows * columns + (rows * columns > 1)) + around,
        )
        for rows, columns, around in ((1, 1, 3), (1, 3, 5), (3, 1, 5), (2, 2, 6))
    },
    "tiles of Aya Vision": (
        AyaVision().prompt_layout,
        "aya_vision.processing_aya_vision.AyaVisionProcessor",
        {
            "img_size": 14,
            "patch_size": 7,
            "start_of_img_token": "<|START_OF_IMG|>",
            "tile_token": "TILE",
            "img_patch_token": "P",
            "tile_global_token": "TILE_GLOBAL",
            "end_of_img_token": "<|END_OF_IMG|>",
        },
        {"num_patches": [3]},
        (3, 3, 1),
        12,
    ),
    "tiles of Command A Vision": (
        Cohere2Vision().prompt_layout,
        "cohere2_vision.processing_cohere2_vision.Cohere2VisionProcessor",
        {
            "patch_size": 2,
            "image_token": "P",
            "img_line_break_token": "<|IMG_LINE_BREAK|>",
            "boi_token": "<|START_OF_IMG|>",
            "eoi_token": "<|END_OF_IMG|>",
        },
        {"num_patches": [2]},
        (2, 2, 1),
        8,
    ),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_placeholders_equal_those_of_transformers_processors(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pixtral's asks for torchvision, for a function that is not called here.
    needed = "transformers.models.pixtral.image_processing_pixtral"
    monkeypatch.setitem(sys.modules, needed, SimpleNamespace(get_resize_output_image_size=None))
    layout, path, attributes, output, grid, rows = WRITTEN[case]
    module, _, name = f"transformers.models.{path}".rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    expected = kind.replace_image_token(SimpleNamespace(**attributes), output, 0)
    image = Encoded(digest=b"", features={"image_embeds": np.zeros((rows, 1))}, grid=grid)
    assert mentioned(layout, image) == expected.replace("<IMG_ATOM>", "P")


@pytest.mark.parametrize("grid", [(1, 1, 1), (3, 1, 2), (7, 2, 3)])
def test_llama_4_separates_its_tiles(grid: tuple[int, int, int]) -> None:
    module = importlib.import_module("transformers.models.llama4.processing_llama4")
    expected = module.Llama4Processor._prompt_split_image(None, grid[1:], 2).replace(
        "<|patch|>", "P"
    )
    image = Encoded(digest=b"", features={"image_embeds": np.zeros((2 * grid[0], 1))}, grid=grid)
    assert mentioned(Llama4().prompt_layout, image) == expected

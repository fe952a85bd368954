# SPDX-License-Identifier: Apache-2.0
"""Mask generation: packages return the masks of transformers' model and processor for points and boxes."""

import base64
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from built_images import BuiltModel
from checkout import TESTS
from fixtures_qaic_runtime import rt
from fixtures_qaic_whole import compiled
from PIL import Image

from qeff_zoo import cli
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.pipeline import build, prepare
from qeff_zoo.plan.request import Request
from qeff_zoo.sessions import MaskGenerationSession, MaskPrompt, open_session
from qeff_zoo.store import Store
from qeff_zoo.store.adoption import adopt
from qeff_zoo.tasks.mask_generation.prompts import tokens_of
from qeff_zoo.validation.content.image_arrays import AWKWARD, difference

pytestmark = pytest.mark.turns(3)

__all__ = ["rt"]
#: (width, height) of images.
SIZES = ((93, 61), (37, 120))
PROMPTS = {
    "point": MaskPrompt(points=[(20, 31.5)]),
    "points": MaskPrompt(points=[(20, 31), (30, 12), (5, 5)], labels=[True, False, True]),
    "box": MaskPrompt(box=(4, 7, 30.5, 40)),
    "both": MaskPrompt(points=[(20, 31)], box=(4, 7, 30, 40)),
}


class Built(BuiltModel):
    """A tiny model, its package, and transformers' model and processor of it."""

    sizes = SIZES

    def expected(self, image: Image.Image, prompt: MaskPrompt, several: bool) -> tuple[Any, Any]:
        """Return the masks, bool, and the scores of transformers' model and processor."""
        model = transformers.AutoModelForMaskGeneration.from_pretrained(self.checkpoint)
        images = transformers.AutoImageProcessor.from_pretrained(self.checkpoint, backend="pil")
        process = transformers.SamProcessor(image_processor=images)
        process.target_size = 64  # of the tiny model
        given: dict[str, Any] = {}
        if prompt.points:
            labels = prompt.labels or [True] * len(prompt.points)
            given["input_points"] = [[[*map(float, point)] for point in prompt.points]]
            given["input_labels"] = [[int(label) for label in labels]]
        if prompt.box:
            left, top, width, height = map(float, prompt.box)
            given["input_boxes"] = [[[left, top, left + width, top + height]]]
        inputs = process(image, return_tensors="pt", **given)
        sizes = inputs.pop("original_sizes"), inputs.pop("reshaped_input_sizes")
        narrow = {
            name: array.float() if array.is_floating_point() else array
            for name, array in inputs.items()
        }
        with torch.no_grad():
            outputs = model(**narrow, multimask_output=several)
        (masks,) = images.post_process_masks(outputs.pred_masks, *sizes)
        return masks[0].numpy(), outputs.iou_scores[0, 0].numpy()


@pytest.fixture(scope="module")
def sam(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built("sam", "", tmp_path_factory.mktemp("sam"))


def opened(built: Built) -> MaskGenerationSession:
    session = open_session(built.package, threads=1)
    assert isinstance(session, MaskGenerationSession)
    return session


def require_same(made: Any, masks: Any, scores: Any) -> None:
    """Compare masks; pixels between two sides may be on either."""
    assert len(made) == len(masks) == len(scores)
    for one, mask, score in zip(made, masks, scores, strict=True):
        assert one.mask.shape == mask.shape
        assert one.mask.dtype == np.bool_
        assert (one.mask != mask).mean() < 0.002
        assert one.score == pytest.approx(score, abs=1e-3)
    assert 0 < np.mean([mask.mean() for mask in masks]) < 1


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("several", [True, False], ids=["several", "single"])
def test_masks_are_those_of_transformers(sam: Built, name: str, several: bool) -> None:
    session = opened(sam)
    for image in sam.images:
        (made,) = session.segment(session.encode(image), [PROMPTS[name]], several=several)
        require_same(made, *sam.expected(image, PROMPTS[name], several))
        assert len(made) == (3 if several else 1)


def test_an_image_is_encoded_once_for_many_prompts(
    sam: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, encoded = opened(sam), []
    run = session.run
    monkeypatch.setattr(session, "run", lambda pixels: encoded.append(1) or run(pixels))
    image = session.encode(sam.images[0])
    together = session.segment(image, [*PROMPTS.values()])
    alone = [session.segment(image, [prompt])[0] for prompt in PROMPTS.values()]
    assert len(encoded) == 1
    for some, others in zip(together, alone, strict=True):
        assert [one.score for one in some] == [other.score for other in others]
    assert len({some[0].score for some in together}) == len(PROMPTS)


def test_cards_generate_masks(sam: Built, tmp_path: Path) -> None:
    """In float16, by two QPCs; the second has fixed numbers of tokens."""
    requested, store = Request(target="qaic"), Store(tmp_path / "store")
    folder = prepare(
        str(sam.checkpoint), tmp_path / "prepared", request=requested, validate=False, store=store
    )
    on_cards = open_session(adopt(folder, compiled(folder, tmp_path), store))
    assert isinstance(on_cards, MaskGenerationSession)
    session = opened(sam)
    images = [one.encode(sam.images[0]) for one in (session, on_cards)]
    scale = (images[0].scaled[1] / images[0].size[1], images[0].scaled[0] / images[0].size[0])
    for prompt in PROMPTS.values():
        points, labels = (one[None] for one in tokens_of(prompt, scale))
        wanted, made = (
            one.masks(image.embeddings, points, labels)[0]
            for one, image in zip((session, on_cards), images, strict=True)
        )
        # transformers' model in float16 lies 1.4 % of the spread away.
        error = np.sqrt(np.square(made - wanted).mean())
        assert error <= 0.1 * wanted.std()


@pytest.mark.parametrize(
    ("prompts", "text"),
    [
        ([], "There are no prompts"),
        ([MaskPrompt()], "expected points of two numbers"),
        ([MaskPrompt(points=[(1, 2)], labels=[True, False])], "expected points of two numbers"),
        ([MaskPrompt(points=[(1, 2)], labels=[3])], "expected points of two numbers"),  # type: ignore[list-item]
        ([MaskPrompt(points=[(1, float("nan"))])], "expected points of two numbers"),
        ([MaskPrompt(points=[(1, 2, 3)])], "expected points of two numbers"),  # type: ignore[list-item]
        ([MaskPrompt(points=["ab"])], "expected points of two numbers"),  # type: ignore[list-item]
        ([MaskPrompt(box=(1, 2, 0, 4))], "width and height above 0"),
        ([MaskPrompt(box=(1, 2, 3))], "width and height above 0"),  # type: ignore[arg-type]
    ],
)
def test_prompts_are_checked_before_the_image_is_read(sam: Built, prompts: Any, text: str) -> None:
    with pytest.raises(GenerationError, match=text):
        opened(sam).segment("missing.png", prompts)


def test_run_writes_masks(sam: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, colored = tmp_path / "a.png", tmp_path / "colored.png"
    sam.images[0].save(image)
    command = ["run", str(sam.package.path), "--image", str(image)]
    shown = ["--point", "20,31", "--negative-point", "30,12"]
    assert cli.main([*command, *shown, "--output", str(colored)]) == 0
    assert "share of the image" in capsys.readouterr().out
    assert (np.asarray(Image.open(colored)) != np.asarray(sam.images[0])).any()
    assert cli.main([*command, *shown, "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    prompt = MaskPrompt(points=[(20, 31), (30, 12)], labels=[True, False])
    masks, scores = sam.expected(sam.images[0], prompt, several=True)
    assert output["image"] == str(image)
    (found,) = output["masks"]
    for one, mask, score in zip(found, masks, scores, strict=True):
        drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(one["mask"]))))
        assert ((drawn == 255) != mask).mean() < 0.002
        assert one["score"] == pytest.approx(score, abs=1e-3)
    boxes = ["--box", "4,7,30,40", "--box=10,10,20,20"]
    assert cli.main([*command, *boxes, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["outputs"][0]["masks"]) == 2


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ([], 1, "No object is shown"),
        (["--point", "1"], 2, "expected two numbers in pixels"),
        (["--point", "1,nan"], 1, "expected points of two numbers"),
        (["--box", "1,2,0,4"], 1, "width and height above 0"),
        (["--point", "1,2", "--box", "1,2,3,4", "--box", "1,2,3,5"], 1, "expected one box"),
        (["--point", "1,2", "--image", "b.png"], 1, "expected one image"),
        (["--point", "1,2", "--output", "masks.jpg"], 1, "expected a name that ends with .png"),
    ],
    ids=str,
)
def test_options_are_checked_before_the_image_is_read(
    sam: Built,
    options: list[str],
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["run", str(sam.package.path), "--image", "missing.png"]
    try:
        assert cli.main([*command, *options]) == code
    except SystemExit as error:
        assert error.code == code  # noqa: PT017
    assert text in capsys.readouterr().err


# --- processors ------------------------------------------------------------------------------------
PUBLISHED = {
    path.stem: json.loads(path.read_bytes())["preprocessor_config"]
    for path in (TESTS / "published" / "mask_generation").glob("*.json")
}
_SMALL = {
    "image_processor_type": "SamImageProcessor",
    "size": {"longest_edge": 50},
    "pad_size": {"height": 50, "width": 60},
}


@pytest.mark.parametrize("settings", [*PUBLISHED.values(), _SMALL], ids=[*PUBLISHED, "small"])
def test_images_are_processed_as_by_transformers(settings: dict[str, Any]) -> None:
    options = {key: value for key, value in settings.items() if not key.endswith("_type")}
    reference = transformers.SamImageProcessorPil(**options)
    for size in (*AWKWARD, (64, 90), (1, 1)):
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        assert not difference(image_processor(settings), reference, Image.fromarray(pixels), {})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"image_processor_type": "ViTImageProcessor", "size": 64}, "has no masks of prompts"),
        ({"do_pad": False}, "makes arrays of the shapes"),
    ],
    ids=str,
)
def test_a_build_refuses_other_processors(
    sam: Built, tmp_path: Path, settings: dict[str, Any], text: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sam.checkpoint, copy)
    path = copy / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    with pytest.raises(PlanError, match=text):
        build(str(copy), Request(), store=sam.store)

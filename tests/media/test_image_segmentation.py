# SPDX-License-Identifier: Apache-2.0
"""Image segmentation: packages return what transformers' pipeline does, also for images of any size."""

import base64
import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from built_images import BuiltModel, making
from checkout import TESTS
from fixtures_serving import KEY, MODEL, post, running
from huggingface_hub import ImageSegmentationOutputElement, InferenceClient
from huggingface_hub.inference._providers.hf_inference import HFInferenceBinaryInputTask
from PIL import Image

from qeff_zoo import cli, contract, registry
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.media.images import read_image
from qeff_zoo.media.interpolation import nearest_lines, resized_bands
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.serving.answers.large import MAX_NUMBERS
from qeff_zoo.sessions import ImageSegment, ImageSegmentationSession, Thresholds, open_session
from qeff_zoo.tasks.image_segmentation.endpoints import SegmentationQueue
from qeff_zoo.tasks.image_segmentation.rules import RULES, Outputs, has_queries, subtasks_of
from qeff_zoo.tasks.image_segmentation.session import packed, unpacked
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.content.image_arrays import AWKWARD, difference

pytestmark = pytest.mark.turns(3)

TASK = contract.IMAGE_SEGMENTATION
RECIPES = [recipe for recipe in registry.list_recipes() if TASK in contract.tasks_of(recipe)]
#: (width, height) of images: the second and third share a call.
SIZES = ((61, 93), (120, 37), (120, 37), (40, 40))
#: Thresholds at which tiny models, whose weights are random, have segments.
LOW = {"threshold": 0.2, "mask_threshold": 0.3, "overlap_mask_area_threshold": 0.1}


class Built(BuiltModel):
    """A tiny model, its package for batches of 2, and transformers' pipeline of it."""

    sizes = SIZES
    task = TASK

    @property
    def session(self) -> ImageSegmentationSession:
        session = open_session(self.package, threads=1)
        assert isinstance(session, ImageSegmentationSession)
        return session

    def expected(self, image: Image.Image, **options: Any) -> list[dict[str, Any]]:
        """What transformers' pipeline returns."""
        config = transformers.AutoConfig.from_pretrained(self.checkpoint)
        model = contract.auto_class(TASK, config).from_pretrained(self.checkpoint)
        process = transformers.AutoImageProcessor.from_pretrained(self.checkpoint, backend="pil")
        pipeline = transformers.pipeline(TASK, model=model, image_processor=process)
        segments: list[dict[str, Any]] = pipeline(image, **options)
        return segments


Make = Callable[[str, str], Built]
make = making(Built)


@pytest.fixture(scope="module")
def segformer(make: Make) -> Built:
    return make("segformer", "base")


def require_same(made: Sequence[Any], expected: list[dict[str, Any]]) -> None:
    """Compare segments with the pipeline's; of a mask, pixels between two segments may differ.

    The queries of tiny models are almost equal, so that the roundings of a graph select others at some pixels.
    """
    assert [one["label"] for one in made] == [one["label"] for one in expected]
    for one, right in zip(made, expected, strict=True):
        assert {*one} == {*right}
        if right["score"] is None:
            assert one["score"] is None
        else:
            assert one["score"] == pytest.approx(right["score"], abs=1e-4)
        mask, wanted = (np.asarray(opened(each["mask"])) for each in (one, right))
        assert mask.dtype == wanted.dtype == np.uint8
        assert mask.shape == wanted.shape
        share = 1000 if right["score"] is None else 100
        assert np.count_nonzero(mask != wanted) <= mask.size // share


def opened(mask: Any) -> Any:
    """Return the image of a mask; one of JSON is a PNG file in base64."""
    if isinstance(mask, str):
        return Image.open(io.BytesIO(base64.b64decode(mask)))
    return mask


def fields(segment: ImageSegment) -> dict[str, Any]:
    return {"score": segment.score, "label": segment.label, "mask": segment.mask}


@pytest.mark.parametrize(
    ("model_type", "variant"),
    [(recipe.model_type, tiny.name) for recipe in RECIPES for tiny in recipe.tiny],
)
@pytest.mark.sampled(9)
def test_segments_are_those_of_the_pipeline(model_type: str, variant: str, make: Make) -> None:
    built = make(model_type, variant)
    session = built.session
    low = LOW if session.queries else {}
    segmented = session.segment(built.images, thresholds=Thresholds(**low))
    wanted = [built.expected(image, **low) for image in built.images]
    if not any(wanted):  # no query of a tiny model is sure of a class
        segmented = session.segment(built.images, "semantic")
        wanted = [built.expected(image, subtask="semantic") for image in built.images]
    assert any(wanted)
    for found, expected in zip(segmented, wanted, strict=True):
        require_same([fields(one) for one in found], expected)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.model_type)
def test_classes_that_segment_select_the_task(recipe: Any) -> None:
    found = {
        architecture: contract.task_of(architecture, recipe)
        for architecture in recipe.architectures
    }
    segment = [one for one in found if "Segmentation" in one]
    assert segment
    assert {found[one] for one in segment} == {TASK}
    assert all(task != TASK for name, task in found.items() if name not in segment)


# --- rules -----------------------------------------------------------------------------------------
#: (rows, columns) of maps, and (height, width) of images.
RESIZED = (
    ((16, 16), (37, 120)),
    ((16, 24), (16, 24)),
    ((40, 30), (11, 7)),
    ((5, 7), (1, 1)),
    ((1, 1), (3, 900)),
)


@pytest.mark.parametrize(("old", "new"), RESIZED, ids=str)
def test_maps_are_resized_as_by_torch(old: tuple[int, int], new: tuple[int, int]) -> None:
    maps = np.random.default_rng(0).normal(0, 3, (6, *old)).astype(np.float32)
    made = np.full((6, *new), np.nan, np.float32)
    for band, values in resized_bands(maps, *new):
        made[:, band] = values
    resize = torch.nn.functional.interpolate
    right = resize(torch.tensor(maps)[None], new, mode="bilinear", align_corners=False)[0].numpy()
    assert np.abs(made - right).max() < 1e-5
    places = torch.arange(old[0], dtype=torch.float32)[None, None]
    assert nearest_lines(old[0], new[0]).tolist() == resize(places, new[0])[0, 0].tolist()


def test_large_maps_are_resized_in_bands() -> None:
    maps = np.random.default_rng(0).normal(0, 3, (40, 9, 9)).astype(np.float32)
    bands = [band for band, _ in resized_bands(maps, 90, 900)]
    assert len(bands) > 3
    assert [row for band in bands for row in range(90)[band]] == [*range(90)]


def outputs_of(
    processor: str, labels: int, size: tuple[int, int] = (24, 32)
) -> tuple[Outputs, SimpleNamespace]:
    """Return random outputs of an image, and the same as transformers' model returns them."""
    numbers = np.random.default_rng(0)
    if not has_queries(processor):
        maps = numbers.normal(0, 2, (labels, *size)).astype(np.float32)
        return Outputs(maps=maps), SimpleNamespace(logits=torch.tensor(maps)[None])
    classes = numbers.normal(0, 2, (30, labels + 1)).astype(np.float32)
    classes[np.arange(30), numbers.integers(0, labels + 1, 30)] += 12
    coarse = torch.tensor(
        numbers.normal(-24, 20, (30, 3, 4))
    )  # masks that overlap little, far from 0
    smooth = torch.nn.functional.interpolate(coarse[None], size, mode="bicubic")[0]
    maps = smooth.numpy().astype(np.float32)
    right = [torch.tensor(one)[None] for one in (classes, maps)]
    named = dict(zip(("class_queries_logits", "masks_queries_logits"), right, strict=True))
    named |= dict(zip(("logits", "pred_masks"), right, strict=True))
    return Outputs(maps=maps, classes=classes), SimpleNamespace(**named, patch_offsets=None)


@pytest.mark.parametrize(
    ("processor", "subtask", "threshold"),
    [
        (rule, kind, threshold)
        for rule in RULES
        for kind in subtasks_of(rule)
        for threshold in ([0] if kind == "semantic" else [0, 0.5, 0.9, 1])
    ],
)
@pytest.mark.parametrize("size", [(24, 32), (61, 45), (300, 7), (1, 1)], ids=str)
def test_segments_are_those_of_transformers_processors(
    processor: str, subtask: str, threshold: float, size: tuple[int, int]
) -> None:
    # From 64 labels on, torch sorts the best pairs of queries and labels; of fewer, their order is undefined.
    outputs, right = outputs_of(processor, 70)
    thresholds = Thresholds(threshold=threshold, overlap_mask_area_threshold=0.3)
    made, found = RULES[processor][subtask](outputs, size, thresholds)
    process = getattr(transformers, f"{processor}Pil")()
    method = getattr(process, f"post_process_{subtask}_segmentation")
    if subtask == "semantic":
        (expected,) = method(right, target_sizes=[size])
        assert [label for _, label, _ in found] == np.unique(expected).tolist()
    else:
        given = {"threshold": threshold, "overlap_mask_area_threshold": 0.3}
        result = method(right, target_sizes=[size], **given)[0]
        expected, infos = result["segmentation"], result["segments_info"]
        assert [(number, label) for number, label, _ in found] == [
            (info["id"], info["label_id"]) for info in infos
        ]
        scores = [info["score"] for info in infos]
        assert [score for *_, score in found] == pytest.approx(scores, abs=2e-6)
        assert found or threshold > 0.5 or min(size) < 10
    assert np.count_nonzero(made != expected.numpy()) <= made.size // 1000


def test_outputs_are_packed_without_loss() -> None:
    numbers = np.random.default_rng(0)
    maps, classes = numbers.normal(size=(2, 5, 4, 3)), numbers.normal(size=(2, 5, 8))
    made = unpacked(packed(maps.astype(np.float32), classes.astype(np.float32)), 8)
    assert np.array_equal(made[0], classes.astype(np.float32))
    assert np.array_equal(made[1], maps.astype(np.float32))


def test_a_mask_without_segments_is_empty(segformer: Built) -> None:
    with pytest.raises(GenerationError, match="not finite; expected logits"):
        segformer.session.segments_of(np.full((4, 2, 2), np.nan, np.float32), (2, 2))


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), float("inf"), "0.5", True, None])
@pytest.mark.parametrize("name", ["threshold", "mask_threshold", "overlap_mask_area_threshold"])
def test_thresholds_are_checked(name: str, value: Any) -> None:
    with pytest.raises(GenerationError, match=f"The {name} is .*; expected a number from 0 to 1"):
        Thresholds(**{name: value})


def test_no_images_and_other_subtasks_are_refused(segformer: Built) -> None:
    session = segformer.session
    with pytest.raises(GenerationError, match="expected at least one"):
        session.segment([])
    with pytest.raises(GenerationError, match="'panoptic'; expected semantic, if"):
        session.segment(["missing.png"], "panoptic")


# --- command line ----------------------------------------------------------------------------------
def test_run_prints_segments_and_draws_masks(
    segformer: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, masks, package = tmp_path / "a.png", tmp_path / "masks.png", str(segformer.package.path)
    segformer.images[0].save(image)
    command = ["run", package, "--image", str(image)]
    expected = segformer.expected(segformer.images[0])
    assert cli.main([*command, "--output", str(masks)]) == 0
    printed = capsys.readouterr().out
    for one in expected:
        pixels = np.count_nonzero(np.asarray(one["mask"]))
        assert one["label"] in printed
        assert str(pixels) in printed
    drawn, plain = np.asarray(Image.open(masks)), np.asarray(segformer.images[0])
    assert drawn.shape == plain.shape
    inside = [np.asarray(one["mask"]) > 0 for one in expected]
    assert (drawn != plain).any(2).mean() > 0.9
    colors = [(drawn[one].astype(int) - 0.4 * plain[one]).mean(0).round(-1) for one in inside]
    assert len({*map(tuple, colors)}) == len(expected) > 1
    assert cli.main([*command, "--json", "--subtask", "semantic"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert output["image"] == str(image)
    require_same(output["segments"], expected)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--threshold", "1.1"], "expected a number from 0 to 1"),
        (["--mask-threshold", "nan"], "expected a number from 0 to 1"),
        (["--overlap-mask-area-threshold", "-1"], "expected a number from 0 to 1"),
        (["--subtask", "panoptik"], "expected panoptic or instance or semantic"),
        (["--output", "masks.jpg"], "expected a name that ends with .png"),
    ],
    ids=str,
)
def test_options_are_checked_before_the_image_is_read(
    segformer: Built, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(segformer.package.path), "--image", "missing.png"]
    assert cli.main([*command, *options]) == 1
    assert text in capsys.readouterr().err


# --- server ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def served(segformer: Built) -> Iterator[str]:
    with (
        closing(SegmentationQueue(segformer.session, max_waiting=4)) as queue,
        running(queue) as url,
    ):
        yield f"{url.removesuffix('/v1')}/models/{MODEL}"


@pytest.mark.parametrize("parameters", [{"subtask": "semantic"}, {}], ids=["base64", "bytes"])
def test_a_server_answers_hugging_face_s_client(
    segformer: Built, served: str, parameters: dict[str, Any]
) -> None:
    image = io.BytesIO()
    segformer.images[0].save(image, "PNG")
    task = HFInferenceBinaryInputTask(TASK)
    request = task.prepare_request(
        inputs=image.getvalue(), parameters=parameters, headers={}, model=served, api_key=KEY
    )
    answer = json.loads(InferenceClient()._inner_post(request))
    ImageSegmentationOutputElement.parse_obj_as_list(answer)
    require_same(answer, segformer.expected(segformer.images[0]))


def large_file() -> bytes:
    file = io.BytesIO()
    Image.new("1", (MAX_NUMBERS // 8 + 1, 8)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"no image", "image/png", "invalid_value"),
        (b"", "application/octet-stream", "invalid_value"),
        (b'{"inputs": "", "parameters": {"threshold": 2}}', "application/json", None),
        (b'{"inputs": "", "parameters": {"mask_threshold": NaN}}', "application/json", None),
        (b'{"inputs": "", "parameters": {"subtask": "panoptik"}}', "application/json", None),
        (b'{"inputs": "", "parameters": {"subtask": "instance"}}', "application/json", None),
        (b'{"inputs": "", "parameters": {"top_k": 1}}', "application/json", None),
    ],
)
def test_a_server_refuses_wrong_bodies(
    served: str, body: bytes, kind: str, code: str | None
) -> None:
    base, _, name = served.rpartition("/models/")
    status, refusal = post(base, f"models/{name}", body, **{"Content-Type": kind})
    assert status == 400
    assert code in (None, refusal["error"]["code"])


# --- processors ------------------------------------------------------------------------------------
PUBLISHED = {
    path.stem: json.loads(path.read_bytes())["preprocessor_config"]
    for path in sorted((TESTS / "published" / "segmentation").glob("*.json"))
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    **PUBLISHED,
    "old": {"feature_extractor_type": "MaskFormerFeatureExtractor", "size": 64, "max_size": 100},
    "edges": {
        "image_processor_type": "Mask2FormerImageProcessor",
        "size": {"shortest_edge": 48, "longest_edge": 130},
    },
    "no divisor": {
        "image_processor_type": "Mask2FormerImageProcessor",
        "size": {"max_height": 48, "max_width": 80},
        "size_divisor": 0,
    },
    "pad": {
        "image_processor_type": "MaskFormerImageProcessor",
        "size": {"height": 48, "width": 80},
        "pad_size": {"height": 80, "width": 96},
    },
    "default": {"image_processor_type": "Mask2FormerImageProcessor"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_images_are_processed_as_by_transformers(name: str) -> None:
    settings = SETTINGS[name]
    ours = image_processor(settings)
    options = {key: value for key, value in settings.items() if not key.endswith("_type")}
    reference = getattr(transformers, f"{ours.name}Pil")(**options)
    for size in (*AWKWARD, (90, 64), (1, 1), (20, 3000)):
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        assert not difference(ours, reference, Image.fromarray(pixels), {})


def odd_files() -> Iterator[Any]:
    """Yield files of images: gray, with alpha, of a palette, turned by their EXIF tag, tiny and narrow."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 44, 4), np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6
    gray, colors = pixels[..., 0], Image.fromarray(pixels[..., :3])
    images = [Image.fromarray(gray), Image.fromarray(pixels), colors.quantize(16), colors]
    images += [Image.fromarray(pixels[:1, :1, :3]), colors.resize((3000, 20))]
    for number, image in enumerate(images):
        file = io.BytesIO()
        image.save(file, "PNG", exif=turned if number == 3 else None)
        yield pytest.param(file.getvalue(), id=f"{number}-{image.mode}")


@pytest.mark.parametrize("file", [*odd_files()])
def test_odd_files_are_segmented_as_by_the_pipeline(segformer: Built, file: bytes) -> None:
    (found,) = segformer.session.segment([file])
    image = transformers.image_utils.load_image(Image.open(io.BytesIO(file)))
    require_same([fields(one) for one in found], segformer.expected(image))
    assert found[0].mask.shape == read_image(file).shape[:2]
    assert sum(one.mask.astype(bool) for one in found).min() == 1


# --- refusals --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "text"),
    [({"image_processor_type": "ViTImageProcessor"}, "returns no segments of the outputs")],
    ids=str,
)
def test_a_build_refuses_processors_whose_segments_would_be_wrong(
    segformer: Built, tmp_path: Path, settings: dict[str, Any], text: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(segformer.checkpoint, copy)
    path = copy / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    with pytest.raises(PlanError, match=text):
        check(open_checkpoint(str(copy)), Request())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"size": {"shortest_edge": 64, "longest_edge": 128}},
            "'maskformer-swin' with windows, whose graph",
        ),
        ({"pad_size": {"height": 128, "width": 128}}, "masks would be those of the padded image"),
        ({"image_processor_type": "SegformerImageProcessor"}, "returns no segments"),
    ],
    ids=str,
)
def test_a_build_refuses_processors_of_queries_whose_masks_would_be_wrong(
    maskformer: Path, settings: dict[str, Any], text: str
) -> None:
    path = maskformer / "preprocessor_config.json"
    before = path.read_text()
    check(open_checkpoint(str(maskformer)), Request())
    path.write_text(json.dumps({**json.loads(before), **settings}))
    with pytest.raises(PlanError, match=text):
        check(open_checkpoint(str(maskformer)), Request())
    path.write_text(before)


@pytest.fixture(scope="module")
def maskformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny MaskFormer with a Swin."""
    recipe = registry.find_recipe("maskformer")
    return tiny_models.make(recipe, recipe.tiny[0], tmp_path_factory.mktemp("maskformer") / "tiny")

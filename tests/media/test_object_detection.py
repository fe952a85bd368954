# SPDX-License-Identifier: Apache-2.0
"""Object detection: packages return what transformers' pipeline does, also for images of any size."""

import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
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
from huggingface_hub import InferenceClient, ObjectDetectionOutputElement
from huggingface_hub.inference._providers.hf_inference import HFInferenceBinaryInputTask
from PIL import Image

from qeff_zoo import cli, contract, registry, unsupported
from qeff_zoo.errors import CheckpointError, GenerationError, PlanError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.media.images import read_image
from qeff_zoo.pipeline import build
from qeff_zoo.plan.request import Request
from qeff_zoo.sessions import ObjectDetectionSession, open_session
from qeff_zoo.tasks.object_detection.boxes import RULES, detections_of
from qeff_zoo.tasks.object_detection.endpoints import DetectionQueue
from qeff_zoo.tasks.object_detection.task import has_timm_backbone
from qeff_zoo.validation.content.image_arrays import AWKWARD, difference

pytestmark = pytest.mark.turns(2)

RECIPES = [recipe for recipe in registry.list_recipes() if recipe.task == contract.OBJECT_DETECTION]
#: (width, height) of images: the second and third share a call.
SIZES = ((61, 93), (120, 37), (120, 37), (40, 40))


class Built(BuiltModel):
    """A tiny model, its package for batches of 2, and transformers' pipeline of it."""

    sizes = SIZES

    def expected(self, image: Image.Image, threshold: float) -> list[dict[str, Any]]:
        """What transformers' pipeline returns."""
        model = transformers.AutoModelForObjectDetection.from_pretrained(self.checkpoint)
        process = transformers.AutoImageProcessor.from_pretrained(self.checkpoint, backend="pil")
        pipeline = transformers.pipeline("object-detection", model=model, image_processor=process)
        objects: list[dict[str, Any]] = pipeline(image, threshold=threshold)
        return objects


Make = Callable[[str, str], Built]
make = making(Built)


@pytest.fixture(scope="module")
def yolos(make: Make) -> Built:
    return make("yolos", "base")


def require_same(made: Any, expected: list[dict[str, Any]]) -> None:
    """Compare objects with the pipeline's, key by key; objects of nearly one score may be in another order."""
    assert expected
    assert len(made) == len(expected)
    for one, right in zip(made, expected, strict=True):
        assert {*one} == {*right}
        assert {*one["box"]} == {*right["box"]}
        assert all(isinstance(edge, int) for edge in one["box"].values())
        assert one["score"] == pytest.approx(right["score"], abs=1e-4)
    left = [*made]
    for right in expected:
        left.remove(next(one for one in left if is_same(one, right)))


def is_same(one: dict[str, Any], right: dict[str, Any]) -> bool:
    """Return whether two objects are equal; truncated edges of other sums may differ by a pixel."""
    edges = (abs(one["box"][edge] - pixel) for edge, pixel in right["box"].items())
    near = abs(one["score"] - right["score"]) < 1e-4 and max(edges) <= 1
    return bool(near and one["label"] == right["label"])


@pytest.mark.parametrize(
    ("model_type", "variant"),
    [(recipe.model_type, tiny.name) for recipe in RECIPES for tiny in recipe.tiny],
)
@pytest.mark.sampled(6)
def test_objects_are_those_of_the_pipeline(model_type: str, variant: str, make: Make) -> None:
    built = make(model_type, variant)
    session = open_session(built.package, threads=1)
    assert isinstance(session, ObjectDetectionSession)
    for image, found in zip(built.images, session.detect(built.images, 0.01), strict=True):
        require_same([asdict(one) for one in found], built.expected(image, 0.01))


@pytest.mark.parametrize("processor", RULES)
@pytest.mark.parametrize("threshold", [0, 0.3, 0.5, 1])
def test_boxes_are_those_of_transformers_processors(processor: str, threshold: float) -> None:
    numbers = np.random.default_rng(0)
    logits = numbers.normal(0, 2, (1, 130, 6)).astype(np.float32)
    boxes = numbers.uniform(0, 1, (1, 130, 4)).astype(np.float32)
    outputs = SimpleNamespace(logits=torch.tensor(logits), pred_boxes=torch.tensor(boxes))
    process = getattr(transformers, f"{processor}Pil")()
    (right,) = process.post_process_object_detection(outputs, threshold, torch.tensor([[37, 120]]))
    labels = [str(number) for number in range(6)]
    made = detections_of(
        logits[0], boxes[0], (37, 120), processor=processor, labels=labels, threshold=threshold
    )
    assert [one.label for one in made] == [str(int(label)) for label in right["labels"]]
    assert np.allclose([one.score for one in made], right["scores"].numpy(), atol=1e-6)
    edges = np.array([[*asdict(one.box).values()] for one in made]).reshape(-1, 4)
    assert np.abs(edges - right["boxes"].int().numpy()).max(initial=0) <= 1
    assert threshold or len(made) >= 100


def test_outputs_that_are_not_finite_are_refused() -> None:
    logits, boxes = np.full((2, 3), np.nan, np.float32), np.zeros((2, 4), np.float32)
    with pytest.raises(GenerationError, match="not finite; expected logits and boxes"):
        detections_of(
            logits, boxes, (1, 1), processor="DetrImageProcessor", labels="ab", threshold=0.5
        )


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan"), float("inf"), "0.5", True, None])
def test_thresholds_are_checked_before_images_are_read(yolos: Built, threshold: Any) -> None:
    session = open_session(yolos.package, threads=1)
    with pytest.raises(GenerationError, match="expected a number from 0 to 1"):
        session.detect(["missing.png"], threshold)  # type: ignore[union-attr]


def test_no_images_are_refused(yolos: Built) -> None:
    with pytest.raises(GenerationError, match="expected at least one"):
        open_session(yolos.package, threads=1).detect([])  # type: ignore[union-attr]


def test_run_prints_objects_and_draws_boxes(
    yolos: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, boxes, package = tmp_path / "a.png", tmp_path / "boxes.png", str(yolos.package.path)
    yolos.images[0].save(image)
    command = ["run", package, "--image", str(image), "--threshold", "0.01"]
    expected = yolos.expected(yolos.images[0], 0.01)
    assert cli.main([*command, "--output", str(boxes)]) == 0
    printed = capsys.readouterr().out
    assert all(one["label"] in printed for one in expected)
    drawn, plain = np.asarray(Image.open(boxes)), np.asarray(yolos.images[0])
    assert drawn.shape == plain.shape
    assert (drawn != plain).any()
    assert cli.main([*command, "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert output["image"] == str(image)
    require_same(output["objects"], expected)
    assert cli.main([*command[:-1], "1"]) == 0
    assert "(no objects)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--threshold", "1.1"], "expected a number from 0 to 1"),
        (["--threshold", "nan"], "expected a number from 0 to 1"),
        (["--output", "boxes.jpg"], "expected a name that ends with .png"),
    ],
    ids=str,
)
def test_options_are_checked_before_the_image_is_read(
    yolos: Built, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(yolos.package.path), "--image", "missing.png"]
    assert cli.main([*command, *options]) == 1
    assert text in capsys.readouterr().err


# --- server ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def served(yolos: Built) -> Iterator[str]:
    session = open_session(yolos.package, threads=1)
    assert isinstance(session, ObjectDetectionSession)
    with closing(DetectionQueue(session, max_waiting=4)) as queue, running(queue) as url:
        yield f"{url.removesuffix('/v1')}/models/{MODEL}"


@pytest.mark.parametrize("parameters", [{"threshold": 0.01}, {}], ids=["base64", "bytes"])
def test_a_server_answers_hugging_face_s_client(
    yolos: Built, served: str, parameters: dict[str, Any]
) -> None:
    image = io.BytesIO()
    yolos.images[0].save(image, "PNG")
    task = HFInferenceBinaryInputTask("object-detection")
    request = task.prepare_request(
        inputs=image.getvalue(), parameters=parameters, headers={}, model=served, api_key=KEY
    )
    answer = json.loads(InferenceClient()._inner_post(request))
    ObjectDetectionOutputElement.parse_obj_as_list(answer)
    expected = yolos.expected(yolos.images[0], parameters.get("threshold", 0.5))
    if parameters:
        require_same(answer, expected)
    assert len(answer) == len(expected)


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"no image", "image/png", "invalid_value"),
        (b"", "application/octet-stream", "invalid_value"),
        (b'{"inputs": "", "parameters": {"threshold": 2}}', "application/json", None),
        (b'{"inputs": "", "parameters": {"threshold": NaN}}', "application/json", None),
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
    for path in (TESTS / "published" / "detection").glob("*.json")
}
_OLD = {"feature_extractor_type": "YolosFeatureExtractor", "size": 64, "max_size": 100}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    **PUBLISHED,
    "old": _OLD,
    "default": {"feature_extractor_type": "ConditionalDetrFeatureExtractor", "size": 40},
    "box": {
        "image_processor_type": "DeformableDetrImageProcessor",
        "size": {"max_height": 48, "max_width": 80},
    },
    "pad": {
        "image_processor_type": "RTDetrImageProcessor",
        "size": {"height": 48, "width": 80},
        "do_pad": True,
        "pad_size": {"height": 64, "width": 96},
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_images_are_processed_as_by_transformers(name: str) -> None:
    settings = SETTINGS[name]
    ours = image_processor(settings)
    options = {key: value for key, value in settings.items() if not key.endswith("_type")}
    reference = getattr(transformers, f"{ours.name}Pil")(**options)
    for size in (*AWKWARD, (480, 640), (90, 64), (1, 1), (20, 3000)):
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        assert not difference(ours, reference, Image.fromarray(pixels), {})


def odd_files() -> Iterator[Any]:
    """Yield files of images: gray, with alpha, of a palette, and turned by their EXIF tag."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 44, 4), np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6
    gray, colors = pixels[..., 0], Image.fromarray(pixels[..., :3])
    images = (Image.fromarray(gray), Image.fromarray(pixels), colors.quantize(16), colors)
    for number, image in enumerate(images):
        file = io.BytesIO()
        image.save(file, "PNG", exif=turned if number == len(images) - 1 else None)
        yield pytest.param(file.getvalue(), id=f"{number}-{image.mode}")


@pytest.mark.parametrize("file", [*odd_files()])
def test_odd_files_are_read_as_by_the_pipeline(file: bytes) -> None:
    reference = transformers.DetrImageProcessorPil(size={"shortest_edge": 40, "longest_edge": 60})
    image = transformers.image_utils.load_image(Image.open(io.BytesIO(file)))
    expected = reference([image])["pixel_values"][0]
    settings = {"image_processor_type": "DetrImageProcessor"}
    ours = image_processor(settings, size={"shortest_edge": 40, "longest_edge": 60})
    assert np.array_equal(ours([read_image(file)])["pixel_values"][0], expected)


def test_a_size_of_one_edge_is_refused() -> None:
    for kind, size in (("Detr", {"longest_edge": 800}), ("RTDetr", 640)):
        process = image_processor({"image_processor_type": f"{kind}ImageProcessor", "size": size})
        with pytest.raises(CheckpointError, match="no images with one edge alone"):
            process([np.zeros((40, 40, 3), np.uint8)])


# --- refusals --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "request_", "text"),
    [
        ({}, {"target": "qaic"}, "set height and width as its `size`"),
        (
            {"pad_size": {"height": 128, "width": 128}},
            {},
            "boxes would be shares of the padded image",
        ),
        ({"image_processor_type": "ViTImageProcessor"}, {}, "has no boxes of objects"),
    ],
    ids=str,
)
def test_a_build_refuses_processors_whose_boxes_would_be_wrong(
    yolos: Built, tmp_path: Path, settings: dict[str, Any], request_: dict[str, Any], text: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(yolos.checkpoint, copy)
    path = copy / "preprocessor_config.json"
    changed = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps(changed))
    with pytest.raises(PlanError, match=text):
        build(str(copy), Request(**request_), store=yolos.store)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"backbone": "resnet50"}, True),
        ({"backbone": "resnet50", "use_timm_backbone": True, "backbone_config": None}, True),
        ({"backbone": "resnet50", "use_timm_backbone": False}, False),
        ({"backbone_config": {"model_type": "timm_backbone"}}, True),
        ({"backbone_config": {"model_type": "resnet"}, "use_timm_backbone": False}, False),
        ({}, False),
    ],
    ids=str,
)
def test_backbones_of_timm_are_found(config: dict[str, Any], expected: bool) -> None:
    assert has_timm_backbone(config) is expected


@pytest.mark.parametrize("model_type", ["yolov5", "yolov8", "yolo11"])
def test_models_of_ultralytics_are_refused_by_name(model_type: str) -> None:
    reason = unsupported.reason_of(model_type, lambda name: False)
    assert "AGPL" in reason
    assert "yolos" in reason

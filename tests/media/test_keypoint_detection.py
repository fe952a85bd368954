# SPDX-License-Identifier: Apache-2.0
"""Keypoint detection: packages return what transformers' model and processor do, for any boxes of people."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from built_images import BuiltModel, making
from checkout import TESTS
from PIL import Image

from qeff_zoo import cli, registry
from qeff_zoo.errors import GenerationError, MediaError, PlanError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.pipeline import build
from qeff_zoo.plan.request import Request
from qeff_zoo.sessions import KeypointDetectionSession, open_session
from qeff_zoo.tasks.keypoint_detection.poses import poses_of
from qeff_zoo.tasks.keypoint_detection.task import NAME
from qeff_zoo.validation.content.image_arrays import AWKWARD, difference

pytest.importorskip("scipy")
pytestmark = pytest.mark.turns(2)

RECIPES = [recipe for recipe in registry.list_recipes() if recipe.task == NAME]
#: (width, height) of images, and boxes of people in them: within, beyond an edge, and of parts of pixels.
SIZES = ((120, 93), (37, 120))
BOXES = [
    [(10.0, 5.0, 60.0, 80.0), (-20.0, 30.0, 90.5, 40.25), (100.0, 80.0, 40.0, 40.0)],
    [(0.0, 0.0, 37.0, 120.0)],
]


class Built(BuiltModel):
    """A tiny model, its package for batches of 2, and transformers' model and processor."""

    sizes = SIZES

    def expected(
        self, threshold: float | None = None, dataset: int = 0
    ) -> list[list[dict[str, Any]]]:
        """Return the poses of transformers' model and processor."""
        model = transformers.AutoModelForPoseEstimation.from_pretrained(self.checkpoint)
        process = transformers.AutoImageProcessor.from_pretrained(self.checkpoint, backend="pil")
        inputs = process(self.images, boxes=BOXES, return_tensors="pt")
        if model.config.backbone_config.num_experts > 1:
            inputs["dataset_index"] = torch.full((len(inputs["pixel_values"]),), dataset)
        with torch.no_grad():
            outputs = model(**inputs)
        poses: list[list[dict[str, Any]]] = process.post_process_pose_estimation(
            outputs, boxes=BOXES, threshold=threshold
        )
        return poses


Make = Callable[[str, str], Built]
make = making(Built)


@pytest.fixture(scope="module")
def vitpose(make: Make) -> Built:
    return make("vitpose", "base")


def opened(built: Built) -> KeypointDetectionSession:
    session = open_session(built.package, threads=1)
    assert isinstance(session, KeypointDetectionSession)
    return session


def require_same(made: Any, expected: list[dict[str, Any]], labels: Any, within: float) -> None:
    """Compare the poses of an image with transformers'."""
    assert len(made) == len(expected)
    for pose, right in zip(made, expected, strict=True):
        assert [keypoint.label for keypoint in pose.keypoints] == [
            labels[label] for label in right["labels"]
        ]
        scores = np.array([keypoint.score for keypoint in pose.keypoints])
        assert np.allclose(scores, right["scores"].numpy(), atol=1e-4)
        places = np.array([(keypoint.x, keypoint.y) for keypoint in pose.keypoints]).reshape(-1, 2)
        assert np.abs(places - right["keypoints"].numpy()).max(initial=0) <= within


@pytest.mark.parametrize(
    ("model_type", "variant"),
    [(recipe.model_type, tiny.name) for recipe in RECIPES for tiny in recipe.tiny],
)
@pytest.mark.sampled(2)
def test_poses_are_those_of_transformers(model_type: str, variant: str, make: Make) -> None:
    built = make(model_type, variant)
    session = opened(built)
    found = session.detect(built.images, BOXES)
    assert [len(poses) for poses in found] == [3, 1]
    for made, right in zip(found, built.expected(), strict=True):
        require_same(made, right, session.labels, 0.05)
    assert [pose.box for pose in found[0]] == BOXES[0]


def test_experts_of_each_data_set_compute(make: Make) -> None:
    built = make("vitpose", "plus")
    session, every = opened(built), []
    assert session.datasets == 3
    for number in range(session.datasets):
        found = session.detect(built.images, BOXES, dataset_index=number)
        for made, right in zip(found, built.expected(dataset=number), strict=True):
            require_same(made, right, session.labels, 0.05)
        every.append(found[0][0].keypoints[0].score)
    assert len({round(score, 3) for score in every}) == 3


def test_a_threshold_leaves_out_keypoints(vitpose: Built) -> None:
    session = opened(vitpose)
    scores = sorted(
        keypoint.score for keypoint in session.detect(vitpose.images, BOXES)[0][0].keypoints
    )
    between = float(np.clip((scores[2] + scores[3]) / 2, 0, 1))
    found = session.detect(vitpose.images, BOXES, threshold=between)
    for made, right in zip(found, vitpose.expected(between), strict=True):
        require_same(made, right, session.labels, 0.05)
    assert any(len(pose.keypoints) < len(session.labels) for pose in found[0])


def test_an_image_without_boxes_is_one_person(vitpose: Built) -> None:
    session = opened(vitpose)
    whole = [[(0, 0, *image.size)] for image in vitpose.images]
    assert session.detect(vitpose.images) == session.detect(vitpose.images, whole)


# --- heat maps and parts of images -----------------------------------------------------------------
def maps(kind: str) -> Any:
    """Return random heat maps, (3, 5, 16, 12)."""
    numbers = np.random.default_rng(0)
    values = numbers.normal(0, 0.3, (3, 5, 16, 12)).astype(np.float32)
    if kind == "peaks":
        values = np.exp(4 * values) / 50
    if kind == "negative":
        values = -np.abs(values)
    if kind == "edge":
        values[:, :, 0, 0] = values[:, :, -1, -1] = 3
    return values


@pytest.mark.parametrize("kind", ["noise", "peaks", "negative", "edge"])
def test_heat_maps_are_read_as_by_transformers(kind: str) -> None:
    heatmaps = maps(kind)
    reference = transformers.VitPoseImageProcessorPil(size={"height": 64, "width": 48})
    outputs = SimpleNamespace(heatmaps=torch.tensor(heatmaps))
    (right,) = reference.post_process_pose_estimation(outputs, boxes=[BOXES[0]])
    labels = [str(number) for number in range(5)]
    made = poses_of(heatmaps, BOXES[0], (64, 48), labels=labels, threshold=None)
    require_same(made, right, labels, 1e-3)


PUBLISHED = {
    path.stem: json.loads(path.read_bytes())["preprocessor_config"]
    for path in (TESTS / "published" / "keypoints").glob("*.json")
}
_KIND = {"image_processor_type": "VitPoseImageProcessor"}
SETTINGS = {
    **PUBLISHED,
    "small": {**_KIND, "size": {"height": 30, "width": 41}, "normalize_factor": 150.0},
    "levels": {**_KIND, "do_rescale": False, "do_normalize": False},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_images_are_processed_as_by_transformers(name: str) -> None:
    settings = SETTINGS[name]
    options = {key: value for key, value in settings.items() if not key.endswith("_type")}
    reference = transformers.VitPoseImageProcessorPil(**options)
    ours = image_processor(settings)
    for size in (*AWKWARD, (4, 4), (480, 640)):
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        assert not difference(ours, reference, Image.fromarray(pixels), {})
        boxes = [*BOXES[0], (size[1] / 3, 1.5, 7.0, 3.25), (1e4, 0.0, 5.0, 5.0)]
        expected = reference([Image.fromarray(pixels)], boxes=[boxes])["pixel_values"]
        parts = replace(ours, settings={**ours.settings, "boxes": [boxes]}).arrays([pixels])
        assert np.array_equal(parts["pixel_values"], np.asarray(expected))


def test_an_image_of_few_rows_is_refused() -> None:
    with pytest.raises(MediaError, match="expected at least 4"):
        image_processor(_KIND)([np.zeros((3, 40, 3), np.uint8)])


# --- wrong input -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("boxes", "options", "text"),
    [
        ([], {}, "expected a list for each image"),
        ([[]], {}, "expected at least one, or None"),
        ([[(1, 2, 3)]], {}, "expected four numbers in pixels"),
        ([[(1, 2, 0, 4)]], {}, "width and height above 0"),
        ([[(1, float("nan"), 3, 4)]], {}, "expected four numbers in pixels"),
        ([[(1, 2, 3, float("inf"))]], {}, "expected four numbers in pixels"),
        ([["abcd"]], {}, "expected four numbers in pixels"),
        (None, {"threshold": 1.5}, "expected a number from 0 to 1"),
        (None, {"dataset_index": 1}, "expected a number from 0 to 0"),
        (None, {"dataset_index": "0"}, "expected a number from 0 to 0"),
    ],
)
def test_arguments_are_checked_before_images_are_read(
    vitpose: Built, boxes: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(GenerationError, match=text):
        opened(vitpose).detect(["missing.png"], boxes, **options)


def test_outputs_that_are_not_finite_are_refused() -> None:
    with pytest.raises(GenerationError, match="not finite; expected heat maps"):
        poses_of(
            np.full((1, 1, 4, 4), np.nan, np.float32),
            BOXES[1],
            (16, 16),
            labels=["a"],
            threshold=None,
        )


def test_run_prints_and_draws_keypoints(
    vitpose: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, points, package = tmp_path / "a.png", tmp_path / "points.png", str(vitpose.package.path)
    vitpose.images[0].save(image)
    command = ["run", package, "--image", str(image)]
    boxes = [f"--box={','.join(map(str, box))}" for box in BOXES[0]]
    assert cli.main([*command, *boxes, "--output", str(points)]) == 0
    assert "L_Knee" in capsys.readouterr().out
    drawn, plain = np.asarray(Image.open(points)), np.asarray(vitpose.images[0])
    assert drawn.shape == plain.shape
    assert (drawn != plain).any()
    assert cli.main([*command, *boxes, "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert output["image"] == str(image)
    expected = vitpose.expected()[0]
    for pose, right in zip(output["poses"], expected, strict=True):
        places = np.array([(keypoint["x"], keypoint["y"]) for keypoint in pose["keypoints"]])
        assert np.allclose(places, right["keypoints"].numpy(), atol=0.05)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--box", "1,2,3"], 2, "expected four numbers in pixels"),
        (["--box", "1,2,0,4"], 1, "width and height above 0"),
        (["--box", "1,2,3,4", "--image", "b.png"], 1, "expected one image"),
        (["--threshold", "2"], 1, "expected a number from 0 to 1"),
        (["--dataset-index", "1"], 1, "expected a number from 0 to 0"),
        (["--output", "points.jpg"], 1, "expected a name that ends with .png"),
    ],
    ids=str,
)
def test_options_are_checked_before_the_image_is_read(
    vitpose: Built,
    options: list[str],
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["run", str(vitpose.package.path), "--image", "missing.png"]
    try:
        assert cli.main([*command, *options]) == code
    except SystemExit as error:
        assert error.code == code  # noqa: PT017
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"image_processor_type": "ViTImageProcessor"}, "has no boxes of people"),
        ({"do_affine_transform": False}, "makes arrays of the shapes"),
    ],
    ids=str,
)
def test_a_build_refuses_other_processors(
    vitpose: Built, tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(vitpose.checkpoint, copy)
    path = copy / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(PlanError, match=text):
        build(str(copy), Request(), store=vitpose.store)

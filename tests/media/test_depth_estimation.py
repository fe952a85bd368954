# SPDX-License-Identifier: Apache-2.0
"""Depth estimation: packages return what transformers' pipeline does, also for images of any size."""

import base64
import io
import json
import shutil
from collections.abc import Callable, Iterator
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
from huggingface_hub import DepthEstimationOutput, InferenceClient
from huggingface_hub.inference._providers.hf_inference import HFInferenceBinaryInputTask
from parity import TOLERANCE, noise_of
from PIL import Image
from transformers.models.zoedepth import image_processing_pil_zoedepth

from qeff_zoo import cli, contract, registry
from qeff_zoo.errors import GenerationError, PlanError, UnsupportedModelError
from qeff_zoo.export.transforms import zoe_depth
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.pipeline import build
from qeff_zoo.plan.request import Request
from qeff_zoo.sessions import DepthEstimationSession, open_session
from qeff_zoo.store import Store
from qeff_zoo.tasks.depth_estimation.endpoints import DepthQueue
from qeff_zoo.validation.content.image_arrays import AWKWARD, difference

pytestmark = pytest.mark.turns(3)

RECIPES = [recipe for recipe in registry.list_recipes() if recipe.task == contract.DEPTH_ESTIMATION]
#: (width, height) of images: the second and third share a call.
SIZES = ((61, 93), (120, 37), (120, 37), (40, 40))


class Resizing:
    """torchvision's `resize` of floats, for transformers' ZoeDepth where torchvision is missing."""

    InterpolationMode = SimpleNamespace(BICUBIC="bicubic")

    @staticmethod
    def resize(image: Any, size: Any, interpolation: str, antialias: bool) -> Any:
        return torch.nn.functional.interpolate(
            image[None], tuple(size), mode=interpolation, antialias=antialias
        )[0]


vars(image_processing_pil_zoedepth).setdefault("tvF", Resizing)


class Built(BuiltModel):
    """A tiny model, its package for batches of 2, and transformers' pipeline of it."""

    sizes = SIZES

    def expected(self, image: Image.Image) -> dict[str, Any]:
        """What transformers' pipeline returns."""
        model, process = self._loaded()
        pipeline = transformers.pipeline("depth-estimation", model=model, image_processor=process)
        estimates: dict[str, Any] = pipeline(image)
        return estimates

    def noise(self, image: Image.Image) -> float:
        """Return the largest difference of a depth between float32 and float64, before it is resized."""
        model, process = self._loaded()
        pixels = process(image, return_tensors="pt").pixel_values
        with torch.no_grad():
            narrow = model(pixels).predicted_depth
            wide = model.double()(pixels.double()).predicted_depth
        return noise_of(narrow.numpy(), wide.numpy())

    def _loaded(self) -> tuple[Any, Any]:
        model = transformers.AutoModelForDepthEstimation.from_pretrained(self.checkpoint)
        process = transformers.AutoImageProcessor.from_pretrained(self.checkpoint, backend="pil")
        return model, process


Make = Callable[[str, str], Built]
make = making(Built)


@pytest.fixture(scope="module")
def dpt(make: Make) -> Built:
    return make("dpt", "base")


@pytest.mark.parametrize(
    ("model_type", "variant"),
    [
        pytest.param(
            recipe.model_type,
            tiny.name,
            # Its sizes are expressions of sizes, which take minutes to trace.
            marks=[pytest.mark.full] if tiny.name == "domains" else [],
        )
        for recipe in RECIPES
        for tiny in recipe.tiny
    ],
)
@pytest.mark.sampled(6)
def test_depths_are_those_of_the_pipeline(model_type: str, variant: str, make: Make) -> None:
    built = make(model_type, variant)
    session = open_session(built.package, threads=1)
    assert isinstance(session, DepthEstimationSession)
    estimates = session.estimate(built.images)
    for image, estimate in zip(built.images, estimates, strict=True):
        expected = built.expected(image)
        depth = expected["predicted_depth"].numpy()
        assert estimate.predicted_depth.shape == depth.shape == image.size[::-1]
        assert depth.std() > 0
        tolerance = TOLERANCE["fp32"] * built.noise(image)
        assert np.abs(estimate.predicted_depth - depth).max() <= tolerance
        grayscale = np.asarray(expected["depth"]).astype(int)
        assert np.abs(grayscale - estimate.depth).max() <= 1  # truncated values of other sums


def test_run_writes_an_image_or_an_array(
    dpt: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, package = tmp_path / "room.png", str(dpt.package.path)
    dpt.images[0].save(image)
    grayscale, array = tmp_path / "depth.png", tmp_path / "depth.npy"
    inputs = ["--image", str(image), "--image", str(image)]
    outputs = ["--output", str(grayscale), "--output", str(array)]
    assert cli.main(["run", package, *inputs, *outputs]) == 0
    assert "61 x 93" in capsys.readouterr().out
    expected = dpt.expected(dpt.images[0])
    shown = np.asarray(Image.open(grayscale))
    assert np.abs(np.asarray(expected["depth"]).astype(int) - shown).max() <= 1
    depth = expected["predicted_depth"].numpy()
    assert np.abs(np.load(array) - depth).max() <= 1e-4 * depth.max()
    assert cli.main(["run", package, *inputs[:2], "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert {*output} == {"image", *expected}
    assert np.array_equal(np.float32(output["predicted_depth"]), np.load(array))
    encoded = io.BytesIO(base64.b64decode(output["depth"]))
    assert np.array_equal(np.asarray(Image.open(encoded)), shown)


@pytest.fixture(scope="module")
def served(dpt: Built) -> Iterator[str]:
    session = open_session(dpt.package, threads=1)
    assert isinstance(session, DepthEstimationSession)
    with closing(DepthQueue(session, max_waiting=4)) as queue, running(queue) as url:
        yield f"{url.removesuffix('/v1')}/models/{MODEL}"


@pytest.mark.parametrize("parameters", [{}, {"unused": None}], ids=["bytes", "base64"])
def test_a_server_answers_hugging_face_s_client(
    dpt: Built, served: str, parameters: dict[str, Any]
) -> None:
    image = io.BytesIO()
    dpt.images[0].save(image, "PNG")
    task = HFInferenceBinaryInputTask("depth-estimation")
    extra = {"parameters": {}} if parameters else None
    request = task.prepare_request(
        inputs=image.getvalue(), parameters={}, extra_payload=extra, headers={}, model=served, api_key=KEY
    )  # fmt: skip
    answer = json.loads(InferenceClient()._inner_post(request))
    output = DepthEstimationOutput.parse_obj_as_instance(answer)
    expected = dpt.expected(dpt.images[0])
    depth = expected["predicted_depth"].numpy()
    assert np.abs(np.float32(output.predicted_depth) - depth).max() <= 1e-4 * depth.max()
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(output.depth))))
    assert np.abs(np.asarray(expected["depth"]).astype(int) - shown).max() <= 1


@pytest.mark.parametrize(
    ("path", "body", "kind", "status", "code"),
    [
        ("", b"no image", "image/png", 400, "invalid_value"),
        ("", b"", "application/octet-stream", 400, "invalid_value"),
        ("", b'{"inputs": "a"}', "application/json", 400, "invalid_value"),
        ("", '{"inputs": "\u00e9"}'.encode(), "application/json", 400, "invalid_value"),
        ("", b'{"inputs": 1}', "application/json", 400, None),
        ("", b"{", "application/json", 400, "invalid_json"),
        ("", b"[]", "application/json", 400, "invalid_body"),
        ("", b'{"inputs": "", "parameters": {"top_k": 1}}', "application/json", 400, None),
        ("-other", b"", "image/png", 404, "model_not_found"),
    ],
)
def test_a_server_refuses_what_is_no_image(
    served: str, path: str, body: bytes, kind: str, status: int, code: str | None
) -> None:
    base, _, name = served.rpartition("/models/")
    given, refusal = post(base, f"models/{name}{path}", body, **{"Content-Type": kind})
    assert given == status
    assert code in (None, refusal["error"]["code"])


def test_a_server_refuses_an_answer_of_too_many_numbers(served: str) -> None:
    image = io.BytesIO()
    Image.new("L", (4000, 2200)).save(image, "PNG")
    base, _, name = served.rpartition("/models/")
    content = {"Content-Type": "image/png"}
    status, refusal = post(base, f"models/{name}", image.getvalue(), **content)
    assert (status, refusal["error"]["code"]) == (400, "answer_too_large")


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (["depth.jpg"], "expected a name that ends with .png or .npy"),
        (["nowhere/depth.png"], "its folder does not exist"),
        (["a.png", "b.png"], "--output is given 2 times, and --image 1 times"),
    ],
    ids=str,
)
def test_output_files_are_checked_before_the_image_is_read(
    dpt: Built, output: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [part for path in output for part in ("--output", path)]
    assert cli.main(["run", str(dpt.package.path), "--image", "missing.png", *flags]) == 1
    assert text in capsys.readouterr().err


def test_no_images_are_refused(dpt: Built) -> None:
    with pytest.raises(GenerationError, match="expected at least one"):
        open_session(dpt.package, threads=1).estimate([])  # type: ignore[union-attr]


@pytest.mark.parametrize("changed", [{"resample": 3}, {"do_rescale": False}], ids=str)
def test_a_border_is_resized_bilinearly_alone(changed: dict[str, Any]) -> None:
    process = image_processor({"image_processor_type": "ZoeDepthImageProcessor", **changed})
    with pytest.raises(UnsupportedModelError, match="expected 2 \\(bilinear\\) and true"):
        process([np.zeros((40, 40, 3), np.uint8)])


def test_each_image_has_the_depths_of_its_own_domain() -> None:
    recipe = registry.find_recipe("zoedepth")
    config = transformers.ZoeDepthConfig(**recipe.tiny[1].config)
    torch.manual_seed(0)
    model = transformers.ZoeDepthForDepthEstimation(config).eval()
    pixels = torch.randn(6, 3, 48, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(pixels).domain_logits
        middle = (logits[:, 0] - logits[:, 1]).sort().values[2:4].mean()
        model.metric_head.mlp_classifier.linear2.bias[1] += middle  # so that both domains occur
        alone = [model(pixel[None]) for pixel in pixels]
        assert {int(one.domain_logits.argmax()) for one in alone} == {0, 1}
        assert zoe_depth.apply(model) == 2
        together = model(pixels).predicted_depth
    expected = torch.cat([one.predicted_depth for one in alone])
    assert torch.allclose(together, expected, rtol=1e-4, atol=1e-4)


def test_targets_of_fixed_sizes_refuse_images_of_any_size(dpt: Built, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(dpt.checkpoint, copy)
    settings = json.dumps({"size": 48, "keep_aspect_ratio": True})
    (copy / "preprocessor_config.json").write_text(settings)
    with pytest.raises(PlanError, match="set `keep_aspect_ratio` to false"):
        build(str(copy), Request(target="qaic"), store=Store(tmp_path / "store"))


PUBLISHED = {
    path.stem: json.loads(path.read_bytes())["preprocessor_config"]
    for path in (TESTS / "published" / "depth").glob("*.json")
}
#: (height, width) of published images, besides the awkward.
PHOTOGRAPHS = (480, 640), (640, 427)


@pytest.mark.parametrize(
    "settings",
    [
        *PUBLISHED.values(),
        {
            "image_processor_type": "DPTFeatureExtractor",
            "do_resize": False,
            "do_pad": True,
            "size_divisor": 14,
        },
        {"image_processor_type": "ZoeDepthImageProcessor", "do_pad": False},
    ],
    ids=[*PUBLISHED, "padded", "corners"],
)
def test_images_are_processed_as_by_transformers(settings: dict[str, Any]) -> None:
    ours = image_processor(settings)
    options = {key: value for key, value in settings.items() if not key.endswith("_type")}
    reference = getattr(transformers, f"{ours.name}Pil")(**options)
    for size in (*AWKWARD, *PHOTOGRAPHS):
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        assert not difference(ours, reference, Image.fromarray(pixels), {})

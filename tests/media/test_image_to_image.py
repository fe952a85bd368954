# SPDX-License-Identifier: Apache-2.0
"""Image to image: packages return the images of transformers' models, for images of any size."""

import base64
import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from built_images import BuiltModel, making
from checkout import TESTS
from fixtures_serving import KEY, MODEL, post, running
from huggingface_hub import InferenceClient
from huggingface_hub.inference._providers.hf_inference import HFInferenceBinaryInputTask
from PIL import Image

from qeff_zoo import cli, registry
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.pipeline import build
from qeff_zoo.plan.request import Request
from qeff_zoo.sessions import ImageToImageSession, open_session
from qeff_zoo.tasks.image_to_image.endpoints import ImageToImageQueue
from qeff_zoo.tasks.image_to_image.task import NAME
from qeff_zoo.validation.content.image_arrays import AWKWARD, difference

pytestmark = pytest.mark.turns(2)

RECIPES = [recipe for recipe in registry.list_recipes() if recipe.task == NAME]
#: (width, height) of images: the second and third share a call; the fourth has whole windows, the last fewer than one.
SIZES = ((21, 33), (40, 17), (40, 17), (24, 24), (5, 3))


class Built(BuiltModel):
    """A tiny model, its package for batches of 2, and transformers' model of it."""

    sizes = SIZES

    def expected(self, image: Image.Image) -> Any:
        """Return the image of transformers' model and processor, without padding, uint8."""
        model = transformers.AutoModelForImageToImage.from_pretrained(self.checkpoint)
        process = transformers.AutoImageProcessor.from_pretrained(self.checkpoint, backend="pil")
        with torch.no_grad():
            found = model(**process(image, return_tensors="pt")).reconstruction[0]
        factor = found.shape[1] // process(image)["pixel_values"][0].shape[1]
        colors = found[:, : factor * image.height, : factor * image.width].clamp(0, 1)
        return (colors.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)


Make = Callable[[str, str], Built]
make = making(Built)


@pytest.fixture(scope="module")
def swin(make: Make) -> Built:
    return make("swin2sr", "base")


def require_same(made: Any, expected: Any) -> None:
    """Compare images; colors between two levels may be rounded to either."""
    assert made.shape == expected.shape
    assert made.dtype == np.uint8
    differences = np.abs(made.astype(int) - expected)
    assert differences.max() <= 1
    assert (differences > 0).mean() < 0.001
    assert expected.std() > 1


@pytest.mark.parametrize(
    ("model_type", "variant"),
    [(recipe.model_type, tiny.name) for recipe in RECIPES for tiny in recipe.tiny],
)
@pytest.mark.sampled(2)
def test_images_are_those_of_transformers(model_type: str, variant: str, make: Make) -> None:
    built = make(model_type, variant)
    session = open_session(built.package, threads=1)
    assert isinstance(session, ImageToImageSession)
    for image, made in zip(built.images, session.transform(built.images), strict=True):
        assert made.pixels.shape[:2] == (
            session.factor * image.height,
            session.factor * image.width,
        )
        require_same(made.pixels, built.expected(image))


def test_outputs_that_are_not_finite_are_refused(swin: Built) -> None:
    session = open_session(swin.package, threads=1)
    with pytest.raises(GenerationError, match="not finite; expected colors"):
        session.reconstruction_of(np.full((3, 8, 8), np.nan, np.float32), 4, 4)  # type: ignore[union-attr]


def test_no_images_are_refused(swin: Built) -> None:
    with pytest.raises(GenerationError, match="expected at least one"):
        open_session(swin.package, threads=1).transform([])  # type: ignore[union-attr]


def test_run_writes_files(swin: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, larger = tmp_path / "a.png", tmp_path / "larger.png"
    swin.images[0].save(image)
    command = ["run", str(swin.package.path), "--image", str(image)]
    expected = swin.expected(swin.images[0])
    assert cli.main([*command, "--output", str(larger)]) == 0
    assert "42 x 66" in capsys.readouterr().out
    require_same(np.asarray(Image.open(larger)), expected)
    assert cli.main([*command, "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert output["image"] == str(image)
    content = base64.b64decode(output["reconstruction"])
    require_same(np.asarray(Image.open(io.BytesIO(content))), expected)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "has no place to go"),
        (["--output", "larger.jpg"], "expected a name that ends with .png"),
        (["--output", "a.png", "--output", "b.png"], "expected a file for each image"),
    ],
    ids=str,
)
def test_outputs_are_checked_before_the_image_is_read(
    swin: Built, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(swin.package.path), "--image", "missing.png"]
    assert cli.main([*command, *options]) == 1
    assert text in capsys.readouterr().err


# --- server ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def served(swin: Built) -> Iterator[str]:
    session = open_session(swin.package, threads=1)
    assert isinstance(session, ImageToImageSession)
    with closing(ImageToImageQueue(session, max_waiting=4)) as queue, running(queue) as url:
        yield f"{url.removesuffix('/v1')}/models/{MODEL}"


@pytest.mark.parametrize("as_json", [True, False], ids=["base64", "bytes"])
def test_a_server_answers_hugging_face_s_client(swin: Built, served: str, as_json: bool) -> None:
    file = io.BytesIO()
    swin.images[0].save(file, "PNG")
    task = HFInferenceBinaryInputTask("image-to-image")
    request = task.prepare_request(
        inputs=file.getvalue(), parameters={}, headers={}, model=served, api_key=KEY
    )
    if as_json:  # as the client sends it with parameters
        request.headers["Content-Type"] = "application/json"
        text = base64.b64encode(file.getvalue()).decode()
        request.data = json.dumps({"inputs": text}).encode()
    content = InferenceClient()._inner_post(request)
    require_same(np.asarray(Image.open(io.BytesIO(content))), swin.expected(swin.images[0]))


def large() -> bytes:
    """Return a small file of an image with more pixels than a server computes."""
    file = io.BytesIO()
    Image.new("1", (513, 512)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"no image", "image/png", "invalid_value"),
        (b"", "application/octet-stream", "invalid_value"),
        (large(), "image/png", "answer_too_large"),
        (b'{"inputs": "", "parameters": {"prompt": "a cat"}}', "application/json", None),
    ],
    ids=["text", "empty", "large", "prompt"],
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
    for path in (TESTS / "published" / "image_to_image").glob("*.json")
}
_KIND = {"image_processor_type": "Swin2SRImageProcessor"}
SETTINGS = {
    **PUBLISHED,
    "plain": _KIND,
    "divisor": {**_KIND, "size_divisor": 12},
    "unpadded": {**_KIND, "do_pad": False},
    "levels": {**_KIND, "do_rescale": False},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_images_are_processed_as_by_transformers(name: str) -> None:
    settings = SETTINGS[name]
    options = {key: value for key, value in settings.items() if not key.endswith("_type")}
    reference = transformers.Swin2SRImageProcessorPil(**options)
    for size in (*AWKWARD, (48, 64), (1, 1), (2, 300)):
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        assert not difference(image_processor(settings), reference, Image.fromarray(pixels), {})


# --- refusals --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("file", "changes", "request_", "text"),
    [
        ("preprocessor_config.json", {}, {"target": "qaic"}, "choose --target ort"),
        ("preprocessor_config.json", {"size_divisor": 6}, {}, "set `do_pad` and `size_divisor` 4"),
        ("preprocessor_config.json", {"do_pad": False}, {}, "set `do_pad` and `size_divisor` 4"),
        (
            "preprocessor_config.json",
            {"image_processor_type": "ViTImageProcessor"},
            {},
            "does not pad images to windows",
        ),
        ("config.json", {"num_channels": 1}, {}, "reads images of 1 colors"),
    ],
    ids=str,
)
def test_a_build_refuses_images_that_do_not_fit(
    swin: Built,
    tmp_path: Path,
    file: str,
    changes: dict[str, Any],
    request_: dict[str, Any],
    text: str,
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(swin.checkpoint, copy)
    path = copy / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(PlanError, match=text):
        build(str(copy), Request(**request_), store=swin.store)

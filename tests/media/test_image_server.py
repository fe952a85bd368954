# SPDX-License-Identifier: Apache-2.0
"""Server of images: real clients get the images of diffusers' pipelines; what costs too much is refused."""

import base64
import io
import json
import warnings
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import httpx
import numpy as np
import openai
import pytest
import torch
from fixtures_serving import KEY, MODEL, connect, post, running
from huggingface_hub import InferenceClient
from huggingface_hub.inference._providers.hf_inference import HFInferenceTask
from PIL import Image

from qeff_zoo import registry
from qeff_zoo.pipeline import build
from qeff_zoo.plan.request import Request
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.tasks.diffusion.endpoints import DrawingQueue
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.reference.pipelines import with_image

pytestmark = pytest.mark.turns(3)

PROMPT = "a red cat"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = registry.find_recipe("StableDiffusionPipeline")
    folder = tmp_path_factory.mktemp("painter") / "checkpoint"
    return tiny_models.make(recipe, recipe.tiny[0], folder)


@pytest.fixture(scope="module")
def session(checkpoint: Path) -> Any:
    store = Store(checkpoint.parent / "store")
    package = build(str(checkpoint), Request(), validate=False, store=store).package
    return open_session(package, threads=1)


@pytest.fixture(scope="module")
def url(session: Any) -> Iterator[str]:
    with closing(DrawingQueue(session, max_waiting=4)) as queue, running(queue) as address:
        yield address


@pytest.fixture(scope="module")
def pipeline(checkpoint: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = diffusers.DiffusionPipeline.from_pretrained(checkpoint)
    found.set_progress_bar_config(disable=True)
    return found


def pixels_of(content: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(content))).astype(int)


def expected(pipeline: Any, seed: int, steps: int, **options: Any) -> Any:
    """Return the pixels of diffusers' pipeline."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = pipeline(
            PROMPT,
            generator=torch.Generator().manual_seed(seed),
            num_inference_steps=steps,
            **options,
        )
    return np.asarray(made.images[0]).astype(int)


def test_clients_of_openai_get_the_images_of_diffusers(
    url: str, session: Any, pipeline: Any
) -> None:
    height, width = session.family.size
    with closing(connect(url)) as client:
        answer = client.images.generate(
            model=MODEL,
            prompt=PROMPT,
            n=2,
            size=f"{width}x{2 * height}",  # type: ignore[arg-type]
            extra_body={"seed": 5, "num_inference_steps": 3, "negative_prompt": "a dog"},
        )
    assert answer.output_format == "png"
    assert answer.data
    for number, image in enumerate(answer.data):
        got = pixels_of(base64.b64decode(image.b64_json or ""))
        right = expected(
            pipeline, 5 + number, 3, height=2 * height, width=width, negative_prompt="a dog"
        )
        assert got.shape == right.shape == (2 * height, width, 3)
        assert np.abs(got - right).max() <= 1


def test_images_of_steps_in_between_are_streamed(url: str, session: Any) -> None:
    with closing(connect(url)) as client:
        events = client.images.generate(
            model=MODEL,
            prompt=PROMPT,
            stream=True,
            partial_images=2,
            extra_body={"seed": 5, "num_inference_steps": 6},
        )
        found = [event.model_dump() for event in events]
    assert [one["type"].partition(".")[2] for one in found] == ["partial_image"] * 2 + ["completed"]
    assert [one.get("partial_image_index") for one in found] == [0, 1, None]
    images = [pixels_of(base64.b64decode(one["b64_json"])) for one in found]
    whole = session.draw(PROMPT, seed=5, steps=6).pixels
    assert np.array_equal(images[2], whole)
    assert all((image != whole).any() for image in images[:2])


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def image_and_mask() -> tuple[Any, Any]:
    """Return an image, and a mask that is transparent where it is drawn anew."""
    rows, columns = np.mgrid[:48, :40]
    channels = np.sin(rows / 5), np.cos(columns / 4), np.sin((rows + 2 * columns) / 9)
    mask = np.full((48, 40, 4), 255, np.uint8)
    mask[10:30, 15:, 3] = 0
    return (np.stack(channels, -1) * 120 + 128).astype(np.uint8), mask


@pytest.mark.parametrize("masked", [False, True], ids=["image", "mask"])
def test_clients_of_openai_get_the_changed_images_of_diffusers(
    url: str, pipeline: Any, masked: bool
) -> None:
    image, mask = image_and_mask()
    extra = {"seed": 5, "num_inference_steps": 4, "strength": 0.8, "negative_prompt": "a dog"}
    with closing(connect(url)) as client:
        edit = partial(
            client.images.edit,
            model=MODEL,
            prompt=PROMPT,
            image=("cat.png", png(image)),
            n=2,
            extra_body=extra,
        )
        answer = edit(mask=("mask.png", png(mask))) if masked else edit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        changing = with_image(pipeline, masked=masked)
    given: dict[str, Any] = {"image": Image.fromarray(image), "strength": 0.8}
    if masked:
        white = Image.fromarray(255 - mask[..., 3])
        given |= {"mask_image": white, "height": 48, "width": 40}
    assert answer.data
    assert len(answer.data) == 2
    for number, drawn in enumerate(answer.data):
        got = pixels_of(base64.b64decode(drawn.b64_json or ""))
        right = expected(changing, 5 + number, 4, negative_prompt="a dog", **given)
        assert got.shape == right.shape == (48, 40, 3)
        assert np.abs(got - right).max() <= 1


def test_changed_images_are_streamed(url: str, session: Any) -> None:
    image, _ = image_and_mask()
    with closing(connect(url)) as client:
        events = client.images.edit(
            model=MODEL,
            prompt=PROMPT,
            image=[("cat.png", png(image))],
            size="32x24",  # type: ignore[arg-type]
            stream=True,
            partial_images=1,
            extra_body={"seed": 5, "num_inference_steps": 6, "strength": 0.5},
        )
        found = [event.model_dump() for event in events]
    kinds = ["image_edit.partial_image", "image_edit.completed"]
    assert [one["type"] for one in found] == kinds
    images = [pixels_of(base64.b64decode(one["b64_json"])) for one in found]
    options = {"seed": 5, "steps": 6, "strength": 0.5, "height": 24, "width": 32}
    whole = session.draw(PROMPT, image=image, **options).pixels
    assert np.array_equal(images[1], whole)
    assert (images[0] != whole).any()


def test_large_images_are_decoded_by_a_worker(
    url: str, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qeff_zoo.tasks.diffusion.endpoints.QUICK_IMAGE", 0)
    monkeypatch.setattr("qeff_zoo.tasks.diffusion.initial_image.InitialImage.read", None)  # here
    image, mask = image_and_mask()
    with closing(connect(url)) as client:
        answer = client.images.edit(
            model=MODEL,
            prompt=PROMPT,
            image=png(image),
            mask=png(mask),
            extra_body={"seed": 5, "num_inference_steps": 1},
        )
    assert answer.data
    got = pixels_of(base64.b64decode(answer.data[0].b64_json or ""))
    monkeypatch.undo()
    white = np.repeat(255 - mask[..., 3:], 3, axis=2)
    right = session.draw(PROMPT, image=image, mask=white, seed=5, steps=1).pixels
    assert np.array_equal(got, right)


@pytest.mark.parametrize(
    ("changes", "files", "param", "words"),
    [
        ({}, {}, "image", "expected one image"),
        ({}, {"image": b"GIF"}, "image", "Cannot read an image of 3 bytes"),
        ({}, {"image": "IMAGE", "mask": "IMAGE"}, "mask", "has no alpha"),
        ({}, {"image": "IMAGE", "mask": "SMALL"}, "mask", "The mask has 8 x 8 pixels"),
        ({"image": "a"}, {}, "image", "expected a file"),
        ({}, {"image": "IMAGE", "prompt": "IMAGE"}, "prompt", "expected a text"),
        ({"prompt": ""}, {"image": "IMAGE"}, "prompt", "at least 1"),
        ({"strength": "2"}, {"image": "IMAGE"}, "strength", "less than or equal to 1"),
        ({"strength": "0"}, {"image": "IMAGE"}, "size", "leaves none of"),
        ({"mask_blur": "2"}, {"image": "IMAGE"}, "size", "there is no mask"),
        ({"n": "x"}, {"image": "IMAGE"}, "n", "valid integer"),
        ({"n": "2", "stream": "true"}, {"image": "IMAGE"}, "n", "1 with 'stream'"),
        ({"size": "4096x4096"}, {"image": "IMAGE"}, "size", "at most 4 times the pixels"),
        ({"num_inference_steps": "1000"}, {"image": "IMAGE"}, "num_inference_steps", "at most 500"),
        ({"response_format": "url"}, {"image": "IMAGE"}, "response_format", "b64_json"),
        ({"lora": "a"}, {"image": "IMAGE"}, "lora", "lora"),
    ],
)
def test_a_form_is_refused_before_anything_is_decoded(
    url: str,
    session: Any,
    changes: dict[str, str],
    files: dict[str, Any],
    param: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "conditions", None)
    monkeypatch.setattr("qeff_zoo.tasks.diffusion.endpoints.prepare_files", None)
    image, _ = image_and_mask()
    known = {"IMAGE": png(image), "SMALL": png(image[:8, :8])}
    contents = {name: known.get(file, file) for name, file in files.items()}
    form = httpx.Request(
        "POST",
        "http://localhost",
        data={"model": MODEL, "prompt": "a", **changes},
        files=contents or {"other": b""},
    )
    if not contents:
        form = httpx.Request(
            "POST", "http://localhost", files={name: (None, value) for name, value in {
                "model": MODEL, "prompt": "a", **changes}.items()}
        )  # fmt: skip
    status, answer = post(
        url, "images/edits", form.read(), **{"Content-Type": form.headers["Content-Type"]}
    )
    error = answer["error"]
    assert (status, error["param"]) == (400, param), error
    assert words in error["message"]


def test_an_answer_quotes_lost_text(url: str) -> None:
    long = "the cat " * 60
    with closing(connect(url)) as client:
        generate = partial(
            client.images.generate,
            model=MODEL,
            prompt=long,
            extra_body={"num_inference_steps": 1, "negative_prompt": long},
        )
        answer = generate().model_dump()
        events = [event.model_dump() for event in generate(stream=True)]
    (warning,) = answer["warnings"]
    assert "the text encoder reads 77; lost at its end: 'cat the" in warning
    assert events[-1]["warnings"] == [warning]


def test_clients_of_the_hub_get_an_image(url: str, pipeline: Any) -> None:
    served = f"{url.removesuffix('/v1')}/models/{MODEL}"
    parameters = {"num_inference_steps": 2, "seed": 9, "guidance_scale": 1.0}
    request = HFInferenceTask("text-to-image").prepare_request(
        inputs=PROMPT, parameters=parameters, headers={}, model=served, api_key=KEY
    )
    content = InferenceClient()._inner_post(request)
    right = expected(pipeline, 9, 2, guidance_scale=1.0)
    assert np.abs(pixels_of(content) - right).max() <= 1


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({"prompt": ""}, "prompt", "at least 1"),
        ({"size": "large"}, "size", "width and height"),
        ({"size": "13x13"}, "size", "multiple of"),
        ({"size": "4096x4096"}, "size", "at most 4 times the pixels"),
        ({"num_inference_steps": 1000}, "num_inference_steps", "expected at most 500"),
        ({"num_inference_steps": 90, "n": 10}, "num_inference_steps", "cost as much as 900 steps"),
        ({"num_inference_steps": 0}, "num_inference_steps", "greater than or equal to 1"),
        ({"response_format": "url"}, "response_format", "b64_json"),
        ({"quality": "hd"}, "quality", "auto"),
        ({"partial_images": 1}, "partial_images", "0 without 'stream'"),
        ({"stream": True, "n": 2}, "n", "1 with 'stream'"),
        ({"true_cfg_scale": 2.0}, "size", "true_cfg_scale is 2.0"),
        ({"lora": "a"}, "lora", "lora"),
    ],
)
def test_a_body_is_refused_before_anything_runs(
    url: str, session: Any, changes: dict[str, Any], param: str, words: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(session, "conditions", None)
    body = json.dumps({"model": MODEL, "prompt": "a", **changes}).encode()
    status, answer = post(url, "images/generations", body)
    error = answer["error"]
    assert (status, error["param"]) == (400, param)
    assert words in error["message"]


def test_another_model_is_not_found(url: str) -> None:
    with (
        closing(connect(url)) as client,
        pytest.raises(openai.NotFoundError, match="There is no model 'dall-e-3'"),
    ):
        client.images.generate(model="dall-e-3", prompt="a")


def test_a_client_that_hangs_up_ends_its_image(session: Any, url: str, monkeypatch: Any) -> None:
    steps: list[int] = []
    denoise = session.denoise

    def counted(*given: Any) -> Iterator[Any]:
        for number, sample in enumerate(denoise(*given)):
            steps.append(number)
            yield sample

    monkeypatch.setattr(session, "denoise", counted)
    with closing(connect(url)) as client:
        generate = partial(client.images.generate, model=MODEL, prompt=PROMPT, timeout=0.3)
        with pytest.raises(openai.APITimeoutError):
            generate(extra_body={"num_inference_steps": 500})
        client.images.generate(model=MODEL, prompt=PROMPT, extra_body={"num_inference_steps": 1})
    assert len(steps) < 400

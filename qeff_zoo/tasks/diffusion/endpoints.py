# SPDX-License-Identifier: Apache-2.0
"""APIs of images: OpenAI's `/v1/images/…`, and Hugging Face's inference API at `/models/MODEL`."""

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.datastructures import FormData, UploadFile

from qeff_zoo.errors import BusyError
from qeff_zoo.media.images import decoded_bytes_of
from qeff_zoo.runtime import Stats
from qeff_zoo.serving.answers.streaming import UNBUFFERED, unless_gone
from qeff_zoo.serving.apis.hub import PREFIX
from qeff_zoo.serving.errors import ApiError, blaming, invalid, queue_full, renaming
from qeff_zoo.serving.queues.media import Preparation, Step
from qeff_zoo.serving.requests.media_queue import MediaQueue
from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.requests.price import BOUNDS
from qeff_zoo.serving.requests.prompts import QUICK_IMAGE, SECONDS_OF_IMAGE
from qeff_zoo.serving.requests.schemas import RequestBody
from qeff_zoo.tasks.diffusion.initial_image import PreparedImage, check_mask, prepare_files
from qeff_zoo.tasks.diffusion.options import GeneratedImage, ImageOptions
from qeff_zoo.tasks.diffusion.session import TextToImageSession

_LONGEST = 4096  # characters of a prompt; text encoders read 512 tokens at most
_MOST = 10  # images of a request, as in OpenAI's API
#: Most pixels of an image, and most steps of all images of a request, each of the default size: in units of those.
_LARGEST, _STEPS = 4, 500
_PNG = "image/png"
_FILES, _FIELDS = (
    3,
    32,
)  # of a form: an image and a mask, and one more, so that the error names them
_T = TypeVar("_T")

Prompt = Annotated[str, Field(min_length=1, max_length=_LONGEST)]
NegativePrompt = Annotated[str, Field(max_length=_LONGEST)]
Seed = Annotated[int, Field(ge=0, lt=1 << 64)]
Side = Annotated[int, Field(ge=1)]
Steps = Annotated[int, Field(ge=1)]
Scale = Annotated[float, Field(ge=0)]


class ImageRequest(RequestBody):
    """Body of /v1/images/generations; the options after `partial_images` are beyond OpenAI's API."""

    prompt: Prompt
    n: Annotated[int, Field(ge=1, le=_MOST)] = 1
    size: str = "auto"
    response_format: Literal["b64_json"] = "b64_json"
    output_format: Literal["png"] = "png"
    quality: Literal["auto", "standard"] = "auto"
    background: Literal["auto", "opaque"] = "auto"
    moderation: Literal["auto", "low"] = "auto"
    stream: bool = False
    partial_images: Annotated[int, Field(ge=0, le=3)] = 0
    negative_prompt: NegativePrompt | None = None
    seed: Seed | None = None
    num_inference_steps: Steps | None = None
    guidance_scale: Scale | None = None
    true_cfg_scale: Scale | None = None


class EditRequest(ImageRequest):
    """Fields of the form of /v1/images/edits besides its files, as texts; the last two are beyond OpenAI's API."""

    model_config = ConfigDict(strict=False)

    input_fidelity: Literal["low", "high"] | None = None  # without effect, see strength
    strength: Annotated[float, Field(ge=0, le=1)] | None = None
    mask_blur: Annotated[float, Field(ge=0)] | None = None


#: Form of /v1/images/edits, for /openapi.json.
_FORM: Mapping[str, Any] = {
    **EditRequest.model_json_schema(),
    "required": ["image", "prompt"],
    "properties": {
        **EditRequest.model_json_schema()["properties"],
        **{name: {"type": "string", "format": "binary"} for name in ("image", "mask")},
    },
}
_DOCUMENTED = {"requestBody": {"content": {"multipart/form-data": {"schema": _FORM}}}}


class HubParameters(BaseModel):
    """Parameters of Hugging Face's inference API."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    negative_prompt: NegativePrompt | None = None
    height: Side | None = None
    width: Side | None = None
    num_inference_steps: Steps | None = None
    guidance_scale: Scale | None = None
    seed: Seed | None = None


class HubRequest(BaseModel):
    """Body of /models/MODEL."""

    model_config = ConfigDict(strict=True, extra="forbid")

    inputs: Prompt
    parameters: HubParameters = HubParameters()


class DrawingQueue(MediaQueue[TextToImageSession]):
    """Queue of prompts whose images are drawn; each client has one step in turn.

    Args:
        session: Session that the queue owns.
        max_waiting: Maximum number of waiting requests.
    """

    thread = "qeff-zoo images"

    async def prepare(self, preparation: Preparation[_T]) -> _T:
        """Prepare the files of a request.

        Raises:
            BusyError: The queue is full.
        """
        with self._requests.one():
            return await self.pool.prepare(preparation)

    async def draw(
        self,
        prompt: str,
        options: ImageOptions,
        warn: Callable[[str], object],
        *,
        partial_images: int = 0,
        prepared: PreparedImage | None = None,
    ) -> AsyncGenerator[GeneratedImage]:
        """Yield images of steps in between, and then the image of a prompt.

        Args:
            prompt: The text.
            options: Options of the image.
            warn: Function that gets a sentence for each text that is too long.
            partial_images: Number of images of steps in between.
            prepared: Image that the drawing begins with.

        Raises:
            BusyError: The queue is full.
            GenerationError: An option is out of its range, or the image has values that are not finite.
            ApiError: The server shuts down.
        """
        with self._requests.one():
            read = partial(self.session.conditions, prompt, options, warn)
            conditions = await self._calls.run(read)
            count, shown = 0, set[int]()
            if partial_images:
                count = await self._calls.run(partial(self.session.calls, options))
                parts = range(1, partial_images + 1)
                shown = {count * part // (partial_images + 1) for part in parts}
            encoded = None
            if prepared is not None:
                encoded = await self._calls.run(partial(self.session.encode, prepared))
            samples = self.session.denoise(conditions, options, encoded)
            step, sample = 0, None
            while (later := await self._calls.run(partial(next, samples, None))) is not None:
                step, sample = step + 1, later
                if step in shown and step < count:
                    yield await self._decoded(sample, options)
            yield await self._decoded(sample, options)

    async def _decoded(self, sample: Any, options: ImageOptions) -> GeneratedImage:
        pixels = await self._calls.run(partial(self.session.decode, sample, options))
        return GeneratedImage(pixels=pixels, options=options)

    def stats(self) -> Stats:
        """Return the statistics of finished and waiting requests."""
        running = min(self._requests.active, 1)
        return self._requests.stats(rows=1, running=running, prompt_tokens=0)


def routes(prefix: str, queue: DrawingQueue, model: Model) -> APIRouter:
    """Return the endpoints.

    Args:
        prefix: Prefix of the path of OpenAI's endpoint.
        queue: Queue of the requests.
        model: Description of the model.
    """
    router = APIRouter()

    @router.post(f"{prefix}images/generations")
    async def generate(request: Request, body: ImageRequest) -> Response:
        model.admit(body)
        _check_stream(body)
        options = _options_of(queue.session, body)
        return await answered(request, body, options, "image_generation")

    @router.post(f"{prefix}images/edits", openapi_extra=_DOCUMENTED)
    async def edit(request: Request) -> Response:
        async with request.form(max_files=_FILES, max_fields=_FIELDS) as form:
            body, image, mask = await _read(form)
        model.admit(body)
        _check_stream(body)
        preparation = _prepared(queue.session, body, image, mask)
        try:
            options, prepared = await unless_gone(request, queue.prepare(preparation))
        except BusyError as error:
            raise queue_full(error) from error
        return await answered(request, body, options, "image_edit", prepared)

    async def answered(
        request: Request,
        body: ImageRequest,
        options: Sequence[ImageOptions],
        event: str,
        prepared: PreparedImage | None = None,
    ) -> Response:
        """Draw the images of a request, and return its answer.

        Args:
            request: The request.
            body: The body.
            options: Options of each image.
            event: Beginning of the names of events, for streams.
            prepared: Image that every drawing begins with.
        """
        lost = dict[str, None]()  # sentences about texts that are too long, each once
        try:
            with blaming("prompt"):
                if body.stream:
                    images = queue.draw(
                        body.prompt,
                        options[0],
                        lost.setdefault,
                        partial_images=body.partial_images,
                        prepared=prepared,
                    )
                    first = await unless_gone(request, anext(images))
                    events = _events(first, images, lost, event)
                    return StreamingResponse(
                        events, headers=UNBUFFERED, media_type="text/event-stream"
                    )
                drawing = _all(queue, body.prompt, options, lost, prepared)
                drawn = await unless_gone(request, drawing)
        except BusyError as error:
            raise queue_full(error) from error
        contents = [await asyncio.to_thread(_base64, image) for image in drawn]
        data = [{"b64_json": one} for one in contents]
        answer = {**_described(options[0]), **_warnings(lost), "data": data}
        return Response(to_json(answer), media_type="application/json")

    @router.post(f"{PREFIX}{{model:path}}")
    async def draw(request: Request, model: str, body: HubRequest) -> Response:
        check(model)
        given = body.parameters.model_dump()
        (options,) = _options(queue.session, 1, steps=given.pop("num_inference_steps"), **given)
        try:
            with blaming("inputs"):
                (image,) = await unless_gone(request, _all(queue, body.inputs, [options], {}))
        except BusyError as error:
            raise queue_full(error) from error
        return Response(await asyncio.to_thread(image.as_png), media_type=_PNG)

    check = model.check
    return router


def _check_stream(body: ImageRequest) -> None:
    """Refuse what only a stream has, or has not.

    Raises:
        ApiError: There are several images of a stream, or images of steps in between without one.
    """
    if body.stream and body.n > 1:
        raise invalid("n", body.n, "1 with 'stream'", "Ask for one image, or leave 'stream' out")
    if body.partial_images and not body.stream:
        raise invalid(
            "partial_images", body.partial_images, "0 without 'stream'", "Set 'stream' to true"
        )


async def _read(form: FormData) -> tuple[EditRequest, bytes, bytes | None]:
    """Return the fields of a form, its image and its mask.

    Raises:
        ApiError: A field is of another kind, or there is not one image.
    """
    texts: dict[str, str] = {}
    files: dict[str, list[UploadFile]] = {"image": [], "mask": []}
    for name, value in form.multi_items():
        of_file = files.get(name.removesuffix("[]"))
        if isinstance(value, UploadFile) != (of_file is not None):
            kind = "a text" if of_file is not None else "a file"
            expected = "a file" if of_file is not None else "a text"
            raise invalid(name, kind, expected, "Change it")
        if of_file is None:
            texts[name] = str(value)
        else:
            of_file.append(cast("UploadFile", value))
    if len(files["image"]) != 1 or len(files["mask"]) > 1:
        raise ApiError(
            400,
            f"The form has {len(files['image'])} files 'image', and {len(files['mask'])} files 'mask'; expected one "
            "image, and at most one mask. Send one of each.",
            param="image",
            code="invalid_value",
        )
    with renaming({}):
        body = EditRequest.model_validate(texts)
    contents = [await one.read() for one in (*files["image"], *files["mask"])]
    return body, contents[0], contents[1] if len(contents) > 1 else None


def _prepared(
    session: TextToImageSession, body: EditRequest, image: bytes, mask: bytes | None
) -> Preparation[tuple[list[ImageOptions], PreparedImage]]:
    """Return the options of the images of a request, and the image they begin with, decoded after its price is known.

    Args:
        session: Session of the model.
        body: Fields of the form.
        image: Content of the image's file.
        mask: Content of the mask's file.

    Raises:
        ApiError: A file cannot be read, or the request costs too much.
    """
    limits, sources = BOUNDS.images, [one for one in (image, mask) if one is not None]
    with blaming("image"):
        session.require_encoder()
        check_mask(image, None, limits)
    with blaming("mask"):
        size = check_mask(image, mask, limits, transparent=True)
    options = _options_of(session, body, size, has_mask=mask is not None)
    first = options[0]
    nbytes = sum(decoded_bytes_of(one, (size[1], size[0])) for one in sources)
    work = partial(
        prepare_files, image, mask, limits, first.height, first.width, first.mask_blur or 0
    )
    with blaming("image"):
        # The memory of a large image is that of a process which ends, and not of the server.
        apart = SECONDS_OF_IMAGE if nbytes > QUICK_IMAGE else 0
        prepared: PreparedImage = yield Step(work, nbytes, apart=apart)
    return options, prepared


def _options_of(
    session: TextToImageSession,
    body: ImageRequest,
    image_size: tuple[int, int] | None = None,
    *,
    has_mask: bool = False,
) -> list[ImageOptions]:
    """Return the options of each image of a request; see `_options`."""
    height, width = _sides_of(body.size)
    changes = (
        {"strength": body.strength, "mask_blur": body.mask_blur}
        if isinstance(body, EditRequest)
        else {}
    )
    return _options(
        session,
        body.n,
        image_size=image_size,
        has_mask=has_mask,
        negative_prompt=body.negative_prompt,
        seed=body.seed,
        steps=body.num_inference_steps,
        guidance_scale=body.guidance_scale,
        true_cfg_scale=body.true_cfg_scale,
        height=height,
        width=width,
        **changes,
    )


def _sides_of(size: str) -> tuple[int | None, int | None]:
    """Return the height and width of a size such as `1024x1536`, which are width and height."""
    if size == "auto":
        return None, None
    width, cross, height = size.partition("x")
    if not (cross and all(side.isdecimal() and len(side) < 6 for side in (width, height))):
        raise invalid("size", size, "'auto', or width and height such as '512x512'", "Correct it")
    return int(height), int(width)


def _options(session: TextToImageSession, count: int, **chosen: Any) -> list[ImageOptions]:
    """Return the options of each image of a request, whose seeds follow each other; refuse a request that costs more.

    Args:
        session: Session of the model.
        count: Number of images.
        **chosen: Arguments of the session's `options`; None for the pipeline's.
    """
    with blaming("size"):
        first = session.options(**chosen)
    height, width = session.family.size
    area = first.height * first.width / (height * width)
    if area > _LARGEST:
        raise invalid(
            "size",
            f"{first.width}x{first.height}",
            f"at most {_LARGEST} times the pixels of {width}x{height}",
            "Ask for a smaller image",
        )
    if (cost := count * first.steps * max(area, 1 / _LARGEST)) > _STEPS:
        raise ApiError(
            400,
            f"{count} images of {first.width}x{first.height} pixels by {first.steps} steps cost as much as {cost:,.0f} "
            f"steps of {width}x{height} pixels; expected at most {_STEPS}. Ask for fewer images, or fewer steps.",
            param="num_inference_steps",
            code="too_many_steps",
        )
    return [replace(first, seed=(first.seed + number) % (1 << 64)) for number in range(count)]


async def _all(
    queue: DrawingQueue,
    prompt: str,
    options: Iterable[ImageOptions],
    lost: dict[str, None],
    prepared: PreparedImage | None = None,
) -> list[GeneratedImage]:
    """Return the image of each options, one after the other."""
    return [
        image
        for one in options
        async for image in queue.draw(prompt, one, lost.setdefault, prepared=prepared)
    ]


def _warnings(lost: dict[str, None]) -> dict[str, Any]:
    """Return the field of an answer that names lost parts of texts; none without any."""
    return {"warnings": [*lost]} if lost else {}


def _described(options: ImageOptions) -> dict[str, Any]:
    """Return the fields that answers and events of OpenAI's API share; `seed` is beyond it."""
    return {
        "created": int(time.time()),
        "size": f"{options.width}x{options.height}",
        "quality": "auto",
        "background": "opaque",
        "output_format": "png",
        "seed": options.seed,
    }


def _base64(image: GeneratedImage) -> str:
    return base64.b64encode(image.as_png()).decode()


async def _events(
    first: GeneratedImage,
    images: AsyncGenerator[GeneratedImage],
    lost: dict[str, None],
    event: str,
) -> AsyncGenerator[bytes]:
    """Yield server-sent events: images of steps in between, and the image."""
    number, held = 0, first
    try:
        async with aclosing(images):
            with blaming("prompt"):
                async for image in images:
                    kind = f"{event}.partial_image"
                    yield await _event(kind, held, partial_image_index=number)
                    number, held = number + 1, image
    except ApiError as error:
        yield b"data: %b\n\n" % to_json(error.body)
        return
    yield await _event(f"{event}.completed", held, **_warnings(lost))


async def _event(kind: str, image: GeneratedImage, **fields: Any) -> bytes:
    content = await asyncio.to_thread(_base64, image)
    shared = _described(image.options)
    created = {"created_at": shared.pop("created")}
    event = {"type": kind, "b64_json": content, **created, **shared, **fields}
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), to_json(event))

# SPDX-License-Identifier: Apache-2.0
"""OpenAI's API of speech: a text in, a file of speech out, whole or sentence by sentence."""

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from qeff_zoo.errors import BusyError
from qeff_zoo.runtime import Stats
from qeff_zoo.serving.answers.streaming import UNBUFFERED, unless_gone
from qeff_zoo.serving.errors import ApiError, blaming, invalid, queue_full
from qeff_zoo.serving.queues.threads import Calls
from qeff_zoo.serving.queues.waiting import Waiting
from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.requests.schemas import RequestBody
from qeff_zoo.tasks.text_to_speech.files import MEDIA_TYPES, STREAMED, content_of, part_of
from qeff_zoo.tasks.text_to_speech.session import TextToSpeechSession
from qeff_zoo.tasks.text_to_speech.speech import SPEEDS, Speech, SpeechOptions

#: OpenAI's voices, which clients send by default; each is the first speaker.
_USUAL = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse", "default"),
)
_LONGEST = 4096  # characters, as in OpenAI's API


class Voice(BaseModel):
    """Voice of a request as an object."""

    model_config = ConfigDict(strict=True, extra="forbid")

    id: str


class SpeechRequest(RequestBody):
    """Body of /v1/audio/speech; the seed and the scales of noise are beyond OpenAI's API."""

    input: Annotated[str, Field(min_length=1, max_length=_LONGEST)]
    voice: str | Voice = "default"
    response_format: Literal["wav", "pcm", "flac", "mp3", "opus", "aac"] = "mp3"
    speed: Annotated[float, Field(ge=SPEEDS[0], le=SPEEDS[1])] = 1.0
    stream_format: Literal["audio", "sse"] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    noise_scale: Annotated[float, Field(ge=0)] | None = None
    noise_scale_duration: Annotated[float, Field(ge=0)] | None = None


class VoiceQueue:
    """Queue of texts to speak, which run one sentence of each client in turn.

    Args:
        session: Session that the queue owns.
        max_waiting: Maximum number of waiting requests.
    """

    def __init__(self, session: TextToSpeechSession, *, max_waiting: int) -> None:
        self.session, self._requests = session, Waiting(max_waiting)
        self._calls = Calls("qeff-zoo voice")
        self._tokens = 0

    async def speak(
        self, text: str, options: SpeechOptions, *, by_sentence: bool
    ) -> AsyncGenerator[Speech]:
        """Yield the speech of each part of a text.

        Args:
            text: The text.
            options: Options of the voice.
            by_sentence: Whether each sentence is a part.

        Raises:
            BusyError: The queue is full.
            GenerationError: There is nothing to speak, or a part is too long.
            ApiError: The server shuts down.
        """
        with self._requests.one():
            read = await asyncio.to_thread(self.session.read, text, by_sentence=by_sentence)
            self._tokens += sum(map(len, read))
            spoken = self.session.speak(read, options)
            while (part := await self._calls.run(partial(next, spoken, None))) is not None:
                yield part

    def close(self) -> None:
        """Finish the running call, and start no further ones. Not for the event loop's thread while the loop runs."""
        self._calls.close()

    def stats(self) -> Stats:
        """Return the statistics of finished and waiting requests."""
        running = min(self._requests.active, 1)
        return self._requests.stats(rows=1, running=running, prompt_tokens=self._tokens)


def routes(prefix: str, queue: VoiceQueue, model: Model) -> APIRouter:
    """Return the endpoint.

    Args:
        prefix: Prefix of its path.
        queue: Queue of the requests.
        model: Description of the model.
    """
    router = APIRouter()

    @router.post(f"{prefix}audio/speech")
    async def speech(request: Request, body: SpeechRequest) -> Response:
        model.admit(body)
        name, options = _format_of(body), _options_of(body, queue.session)
        whole = body.stream_format is None
        parts = queue.speak(body.input, options, by_sentence=not whole)
        try:
            with blaming("input"):  # what is refused is refused with a status of its own
                first = await unless_gone(request, anext(parts))
                if whole:
                    rest = await unless_gone(request, _all(parts))
                    with blaming("response_format"):
                        encoded = await asyncio.to_thread(
                            content_of, Speech.joined([first, *rest]), name
                        )
                    return Response(encoded, media_type=MEDIA_TYPES[name])
        except BusyError as error:
            raise queue_full(error) from error
        with blaming("response_format"):
            content = await asyncio.to_thread(part_of, first, name, first=True)
        chunks = _chunks(content, parts, name)
        if body.stream_format == "audio":
            return StreamingResponse(chunks, headers=UNBUFFERED, media_type=MEDIA_TYPES[name])
        events = _events(chunks)
        return StreamingResponse(events, headers=UNBUFFERED, media_type="text/event-stream")

    return router


def _format_of(body: SpeechRequest) -> str:
    """Return the format of a response; refuse one that is not written, or that has no parts."""
    name, known = body.response_format, " or ".join(MEDIA_TYPES)
    if name not in MEDIA_TYPES:
        raise invalid("response_format", name, known, "Choose one of these")
    if body.stream_format is not None and name not in STREAMED:
        raise invalid(
            "response_format",
            name,
            f"{' or '.join(STREAMED)} with 'stream_format', since other files have no parts",
            "Choose one of these, or leave out 'stream_format'",
        )
    return name


def _options_of(body: SpeechRequest, session: TextToSpeechSession) -> SpeechOptions:
    """Return the options of a voice."""
    voice = body.voice if isinstance(body.voice, str) else body.voice.id
    if voice in _USUAL:
        speaker = 0
    elif voice.isdecimal() and len(voice) < 10 and int(voice) < session.speakers:
        speaker = int(voice)
    else:
        raise invalid(
            "voice",
            voice,
            f"the number of a speaker from '0' to '{session.speakers - 1}', or {' or '.join(_USUAL)} for the first",
            "Choose one of these",
        )
    return session.options(
        speaker=speaker,
        speed=body.speed,
        seed=body.seed,
        noise_scale=body.noise_scale,
        noise_scale_duration=body.noise_scale_duration,
    )


async def _all(parts: AsyncGenerator[Speech]) -> list[Speech]:
    return [part async for part in parts]


async def _chunks(first: bytes, parts: AsyncGenerator[Speech], name: str) -> AsyncGenerator[bytes]:
    """Yield the bytes of each part."""
    async with aclosing(parts):
        yield first
        async for part in parts:
            yield await asyncio.to_thread(part_of, part, name, first=False)


async def _events(chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield server-sent events: the bytes of each part, and the end."""
    try:
        async with aclosing(chunks):
            with blaming("input"):
                async for chunk in chunks:
                    audio = base64.b64encode(chunk).decode()
                    yield _event({"type": "speech.audio.delta", "audio": audio})
    except ApiError as error:
        yield _event(error.body)
        return
    yield _event({"type": "speech.audio.done"})


def _event(content: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % to_json(content)

# SPDX-License-Identifier: Apache-2.0
"""Transcription: one thread that transcribes one window of each client in turn, and OpenAI's endpoints."""

import asyncio
import json
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.datastructures import FormData, UploadFile

from qeff_zoo.errors import BusyError, GenerationError, MediaError
from qeff_zoo.media.audio import open_audio
from qeff_zoo.runtime import Stats
from qeff_zoo.runtime.text.languages import code_of, name_of
from qeff_zoo.serving.answers.streaming import UNBUFFERED, unless_gone
from qeff_zoo.serving.errors import (
    ApiError,
    blaming,
    brief,
    queue_full,
    shutting_down,
    unknown_parameter,
)
from qeff_zoo.serving.queues.accounts import current
from qeff_zoo.serving.queues.media import MediaPool
from qeff_zoo.serving.queues.waiting import Waiting
from qeff_zoo.serving.requests.price import BOUNDS, Bounds, bytes_of_audio
from qeff_zoo.tasks.speech import subtitles
from qeff_zoo.tasks.speech.ctc_session import CtcSession
from qeff_zoo.tasks.speech.seq2seq_session import SpeechSeq2SeqSession
from qeff_zoo.tasks.speech.speech_results import Segment, Transcription
from qeff_zoo.tasks.speech.transcription_options import TEMPERATURE_FALLBACK

SpeechSession: TypeAlias = CtcSession | SpeechSeq2SeqSession
FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
GRANULARITIES = ("segment", "word")
#: Transcription options, and the names of their parameters in a request.
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "language": ("language",),
    "prompt": ("prompt",),
    "temperature": ("temperature",),
    # Not in OpenAI's API, but in vLLM's:
    "target_language": ("target_language", "to_language"),
    "seed": ("seed",),
    "generation_len": ("max_completion_tokens",),
}
_SEED = 0  # of what is drawn again, so that a recording has one answer
_KNOWN = {
    "file",
    "model",
    "response_format",
    "stream",
    "chunking_strategy",
    *(name for names in _CHOICES.values() for name in names),
}
_TIMES = ("timestamp_granularities[]", "timestamp_granularities")
#: Units of timestamps under other names.
_PLURALS = {"segments": "segment", "words": "word"}
_IGNORED = {"user"}
_MAX_FIELDS = 20
#: Form of a request, for /openapi.json.
_FORM: Mapping[str, Any] = {
    "type": "object",
    "required": ["file", "model"],
    "properties": {
        **{name: {"type": "string"} for name in sorted(_KNOWN | _IGNORED)},
        "file": {"type": "string", "format": "binary"},
        "response_format": {"type": "string", "enum": [*FORMATS]},
        "stream": {"type": "string", "enum": ["true", "false"]},
        **{
            name: {"type": "array", "items": {"type": "string", "enum": [*GRANULARITIES]}}
            for name in _TIMES
        },
    },
}
_DOCUMENTED = {"requestBody": {"content": {"multipart/form-data": {"schema": _FORM}}}}


@dataclass(eq=False)
class _Job:
    """A waiting or running transcription.

    Args:
        emit: Callback in the worker's thread, with each segment, then the transcription, or the error.
        client: Name of the client.
        left: Event that is set if the client disconnects.
        runs: Whether one of its windows is being transcribed.
    """

    emit: Callable[[Segment | Transcription | BaseException], None]
    client: str
    left: bool = False
    runs: bool = False


class SpeechQueue:
    """Queue of transcriptions, which run one window of each client in turn, of its recordings in turn.

    Args:
        session: Session that the queue owns.
        max_waiting: Maximum number of waiting requests.
        bounds: Limits of one recording, and of the memory of all.
    """

    def __init__(
        self, session: SpeechSession, *, max_waiting: int, bounds: Bounds = BOUNDS
    ) -> None:
        self.session, self._requests = session, Waiting(max_waiting)
        self._bounds, self._pool = bounds, MediaPool(bounds.decoded_bytes)
        self._worker = ThreadPoolExecutor(1, "qeff-zoo speech")
        self._closing, self._lock = False, threading.RLock()
        #: Recordings that wait for their next window, in the order of the ends of their previous ones.
        self._waiting: deque[Any] = deque()
        #: Number of windows so far, and at the last turn of each client, or before its arrival.
        self._turn, self._turns = 0, dict[str, int]()
        self._jobs: dict[Any, _Job] = {}
        self._done = self._failed = 0

    async def transcribe(self, audio: bytes, choices: Mapping[str, Any]) -> Transcription:
        """Return the transcription. Cancellation ends the work at the end of a window.

        Args:
            audio: Content of an audio file.
            choices: Options of the session's `transcribe`.

        Raises:
            BusyError: The queue is full.
            MediaError: The recording cannot be read, or exceeds a limit.
            GenerationError: The model does not support an option.
        """
        transcriptions = [item async for item in self._work(audio, choices, lambda _: False)]
        assert isinstance(transcriptions[-1], Transcription)
        return transcriptions[-1]

    async def stream(
        self, audio: bytes, choices: Mapping[str, Any]
    ) -> AsyncIterator[Segment | Transcription]:
        """Yield each segment at its end, then the transcription.

        Args:
            audio: Content of an audio file.
            choices: Options of the session's `transcribe`.
        """
        async for item in self._work(audio, choices, lambda _: True):
            yield item

    async def _work(
        self, audio: bytes, choices: Mapping[str, Any], wanted: Callable[[Segment], bool]
    ) -> AsyncIterator[Segment | Transcription]:
        """Decode a recording, pass it to the worker, and yield its results."""
        loop = asyncio.get_running_loop()
        fresh: asyncio.Queue[Segment | Transcription | BaseException] = asyncio.Queue()

        def emit(item: Segment | Transcription | BaseException) -> None:
            if not isinstance(item, Segment) or wanted(item):
                with suppress(RuntimeError):  # the loop is closed, and no request waits
                    loop.call_soon_threadsafe(fresh.put_nowait, item)

        with self._requests.one():
            if self._closing:
                raise shutting_down()
            rate, limits = self.session.rate, self._bounds.recordings
            job = _Job(emit, current().name)
            opened = await self._pool.run(partial(open_audio, audio, rate, limits=limits))
            nbytes = bytes_of_audio(opened, rate)
            async with self._pool.room(nbytes) as keep:
                try:
                    recording = await self._pool.run(self.session.begin(opened, **choices), nbytes)
                    keep(recording.nbytes)
                    self._submit(recording, job)
                    while True:
                        item = await fresh.get()
                        if isinstance(item, BaseException):
                            self._failed += 1
                            raise item
                        yield item
                        if isinstance(item, Transcription):
                            self._done += 1
                            return
                finally:
                    job.left = True

    def _submit(self, recording: Any, job: _Job) -> None:
        with self._lock:
            if self._closing:
                raise shutting_down()
            self._jobs[recording] = job
            self._turns.setdefault(job.client, self._turn - 1)
            self._waiting.append(recording)
            self._begin()

    def take(self) -> Any:
        """Return the next recording for the worker, see `Turns`; those of disconnected clients are dropped."""
        with self._lock:
            for recording in [one for one in self._waiting if self._jobs[one].left]:
                self._waiting.remove(recording)
                del self._jobs[recording]
            clients = {job.client for job in self._jobs.values()}
            self._turns = {name: turn for name, turn in self._turns.items() if name in clients}
            if not self._waiting or self._closing:
                return None
            recording = min(self._waiting, key=lambda one: self._turns[self._jobs[one].client])
            self._waiting.remove(recording)
            self._turn += 1
            self._turns[self._jobs[recording].client] = self._turn
            self._jobs[recording].runs = True
            return recording

    def put(self, recording: Any) -> None:
        """Append a recording to the queue, see `Turns`."""
        with self._lock:
            self._jobs[recording].runs = False
            self._waiting.append(recording)

    def _transcribe(self) -> None:
        """Transcribe the waiting recordings, in the worker's thread."""
        session: Any = self.session
        with closing(session.windows(self)) as windows:
            for recording, segments in windows:
                job = self._jobs[recording]
                for segment in segments:
                    job.emit(segment)
                if recording.ended:
                    del self._jobs[recording]
                    transcription = session.transcription(recording)
                    if not self._jobs:
                        break  # the session is free when the last client has its result
                    job.emit(transcription)
                if self._closing:
                    raise shutting_down()
            else:
                return
        job.emit(transcription)

    def _begin(self) -> None:
        """Start the worker on the waiting recordings, and pass its errors to their requests."""

        def ended(work: Future[None]) -> None:
            if not work.cancelled() and (error := work.exception()):
                self._fail(error)

        self._worker.submit(self._transcribe).add_done_callback(ended)

    def _fail(self, error: BaseException) -> None:
        """End the recordings whose windows are being transcribed; at the end of the server, all recordings."""
        with self._lock:
            failed = [name for name, job in self._jobs.items() if job.runs or self._closing]
            failed = failed or [*self._waiting][:1]
            jobs = [self._jobs.pop(failure) for failure in failed]
            self._waiting = deque(one for one in self._waiting if one in self._jobs)
            if self._waiting:
                self._begin()
        for job in jobs:
            job.emit(error)

    def stats(self) -> Stats:
        """Return the statistics of finished and waiting requests."""
        running = sum(job.runs for job in [*self._jobs.values()])
        stats = self._requests.stats(rows=1, running=running)
        return replace(stats, finished={"done": self._done, "error": self._failed})

    def close(self) -> None:
        """Finish the running window, and start no further one. Not for the event loop's thread while it runs."""
        with self._lock:
            self._closing = True
        self._worker.shutdown()
        self._fail(shutting_down())


# --- endpoints -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _TranscriptionRequest:
    """Parsed request of a transcription.

    Args:
        audio: Content of the audio file.
        choices: Options of `SpeechQueue.transcribe`.
        form: Format of the response.
        times: Timestamps of segments, of words, or both.
        stream: Whether the response is streamed.
    """

    audio: bytes
    choices: Mapping[str, Any]
    form: str
    times: frozenset[str]
    stream: bool


def routes(prefix: str, queue: SpeechQueue, check: Callable[[str], object]) -> APIRouter:
    """Return the endpoints of transcription.

    Args:
        prefix: Prefix of all paths.
        queue: Queue of the requests.
        check: Function that refuses another model's name.
    """
    router = APIRouter()

    async def answer(request: Request, task: Literal["transcribe", "translate"]) -> Response:
        async with request.form(max_files=1, max_fields=_MAX_FIELDS) as form:
            parsed = await _read(form, queue.session, task, check)
        if parsed.stream:
            return await _streamed(request, queue, parsed)
        try:
            transcription = await unless_gone(
                request, queue.transcribe(parsed.audio, parsed.choices)
            )
        except (BusyError, GenerationError, MediaError) as error:
            raise _refusal(error) from error
        return _written(transcription, parsed, task)

    @router.post(f"{prefix}audio/transcriptions", openapi_extra=_DOCUMENTED)
    async def transcriptions(request: Request) -> Response:
        return await answer(request, "transcribe")

    @router.post(f"{prefix}audio/translations", openapi_extra=_DOCUMENTED)
    async def translations(request: Request) -> Response:
        return await answer(request, "translate")

    return router


async def _read(
    form: FormData,
    session: SpeechSession,
    task: Literal["transcribe", "translate"],
    check: Callable[[str], object],
) -> _TranscriptionRequest:
    """Parse a form; refuse unsupported parameters that would change the result."""
    for name, value in form.multi_items():
        if name not in _KNOWN | _IGNORED | {*_TIMES}:
            raise unknown_parameter(name, value)
    audio = form.get("file")
    if not isinstance(audio, UploadFile):
        raise _invalid("file", "is missing; expected a recording, as multipart/form-data", "Add it")
    fields = {name: value for name, value in form.items() if isinstance(value, str)}
    if "model" not in fields:
        raise _invalid("model", "is missing; expected the name of this server's", "Add it")
    check(fields["model"])
    form_ = fields.get("response_format", "json")
    if form_ not in FORMATS:
        raise _invalid("response_format", f"is {brief(form_)}; expected {', '.join(FORMATS)}")
    if (strategy := fields.get("chunking_strategy", "auto")) != "auto":
        raise _invalid(
            "chunking_strategy",
            f"is {brief(strategy)}; expected 'auto': windows of the model end at its timestamps, or overlap",
        )
    units = [str(one) for name in _TIMES for one in form.getlist(name)]
    times = frozenset(_PLURALS.get(unit, unit) for unit in units)
    if times - {*GRANULARITIES} or (times and form_ != "verbose_json"):
        raise _invalid(
            _TIMES[0],
            f"is {sorted(times)}; expected {' or '.join(GRANULARITIES)}, with response_format verbose_json",
        )
    writes = session.generates
    if "word" in times and not session.has_word_timestamps:
        raise _invalid(
            _TIMES[0],
            "asks for words; expected 'segment', the only unit for which this model returns times",
        )
    stream = fields.get("stream", "false").lower()
    if stream not in ("true", "false") or (stream == "true" and form_ not in ("json", "text")):
        raise _invalid("stream", f"is {brief(stream)}; expected true with json or text, or false")
    # A model without timestamps has one segment.
    has_timestamps = session.has_segment_timestamps
    choices = _choices(
        fields,
        task,
        writes=writes,
        has_timestamps=has_timestamps,
        times=has_timestamps and form_ not in ("json", "text"),
    )
    if writes:
        with blaming("language"):
            cast("SpeechSeq2SeqSession", session).language_token(choices.get("language"))
    return _TranscriptionRequest(
        audio=await audio.read(),
        choices={**choices, "word_timestamps": True} if writes and "word" in times else choices,
        form=form_,
        times=times,
        stream=stream == "true",
    )


def _choices(
    fields: Mapping[str, str],
    task: Literal["transcribe", "translate"],
    *,
    writes: bool,
    has_timestamps: bool,
    times: bool,
) -> dict[str, Any]:
    """Return the transcription options of a form.

    Args:
        fields: Fields of the form.
        task: Task of the endpoint.
        writes: Whether the model generates token by token.
        has_timestamps: Whether the model generates timestamps, and detects silence.
        times: Whether timestamps are requested.
    """
    given: dict[str, Any] = {
        option: fields[name]
        for option, names in _CHOICES.items()
        for name in names
        if fields.get(name)
    }
    for option in {"seed", "generation_len"} & given.keys():
        given[option] = _whole_number(_CHOICES[option][0], given[option])
    if "temperature" in given:
        given["temperature"] = _temperature(given["temperature"])
    if task == "transcribe" and "target_language" in given:
        raise _invalid("target_language", "is for translations; expected none, or that of speech")
    if given.get("temperature") == 0:
        del given["temperature"]
    if not writes:
        if task == "translate":
            raise ApiError(
                400,
                "This model writes down what is said in its language; expected one that translates. Ask for "
                "transcriptions.",
                code="invalid_value",
            )
        for name in given:
            raise _invalid(name, "does not apply to this model, which labels audio frames")
        return {}
    # OpenAI's rule for temperature 0: what looks wrong is drawn again, at higher ones.
    fallback = (
        {**TEMPERATURE_FALLBACK, "seed": _SEED}
        if has_timestamps and "temperature" not in given
        else {}
    )
    # As the model's own code decodes a recording that is longer than a window: with timestamps.
    return {
        **fallback,
        **given,
        "task": task if task == "translate" else None,
        **({"timestamps": True} if times else {}),
    }


def _whole_number(name: str, text: str) -> int:
    """Return the value of a parameter in a form."""
    least = 0 if name == "seed" else 1
    if not text.isdecimal() or not least <= int(text) < 1 << 63:
        raise _invalid(name, f"is {brief(text)}; expected a whole number from {least}")
    return int(text)


def _temperature(text: str) -> float:
    try:
        temperature = float(text)
    except ValueError:
        temperature = math.nan
    if not 0 <= temperature <= 1:
        raise _invalid("temperature", f"is {brief(text)}; expected a number from 0 to 1")
    return temperature


def _invalid(name: str, problem: str, then: str = "Change it") -> ApiError:
    return ApiError(400, f"Parameter {name!r} {problem}. {then}.", param=name, code="invalid_value")


def _refusal(error: Exception) -> ApiError:
    if isinstance(error, BusyError):
        return queue_full(error)
    param = "file" if isinstance(error, MediaError) else None
    return ApiError(400, str(error), param=param, code="invalid_value")


def _written(transcription: Transcription, parsed: _TranscriptionRequest, task: str) -> Response:
    """Return a response in the requested format."""
    if parsed.form == "text":
        return PlainTextResponse(f"{transcription.text}\n")
    if parsed.form == "srt":
        return PlainTextResponse(subtitles.srt(transcription.segments))
    if parsed.form == "vtt":
        return PlainTextResponse(subtitles.vtt(transcription.segments), media_type="text/vtt")
    usage = {"usage": {"type": "duration", "seconds": round(transcription.seconds, 3)}}
    if parsed.form == "json":
        return JSONResponse({"text": transcription.text, **usage})
    language = transcription.language
    if task == "translate":
        language = code_of(parsed.choices.get("target_language", "en"))
    return JSONResponse(
        {
            "task": task,
            "language": name_of(language) if language else None,
            "duration": transcription.seconds,
            "text": transcription.text,
            **({"segments": [*_segments(transcription)]} if parsed.times != {"word"} else {}),
            **({"words": [*_words(transcription)]} if "word" in parsed.times else {}),
            **usage,
        }
    )


def _segments(transcription: Transcription) -> Iterator[dict[str, Any]]:
    for number, segment in enumerate(transcription.segments):
        known = {
            "id": number,
            "start": segment.start,
            "end": segment.end,
            "text": segment.text,
            "tokens": [*segment.tokens],
            "temperature": segment.temperature,
            "avg_logprob": segment.avg_logprob,
            "compression_ratio": segment.compression_ratio,
            "no_speech_prob": segment.no_speech_prob,
        }
        yield {name: value for name, value in known.items() if value is not None}


def _words(transcription: Transcription) -> Iterator[dict[str, Any]]:
    return (
        {"word": word.text, "start": word.start, "end": word.end} for word in transcription.words
    )


async def _streamed(
    request: Request, queue: SpeechQueue, parsed: _TranscriptionRequest
) -> Response:
    """Return server-sent events: the text of each segment, then the whole text."""
    items = queue.stream(parsed.audio, parsed.choices)
    try:  # what is refused is refused with a status of its own
        first = await unless_gone(request, anext(items))
    except (BusyError, GenerationError, MediaError) as error:
        raise _refusal(error) from error

    async def events() -> AsyncIterator[bytes]:
        item: Segment | Transcription = first
        begun = ""
        try:
            while isinstance(item, Segment):
                yield _event({"type": "transcript.text.delta", "delta": begun + item.text})
                begun = " "
                item = await anext(items)
            yield _event({"type": "transcript.text.done", "text": item.text})
        except ApiError as error:
            yield _event(error.body)

    return StreamingResponse(events(), headers=UNBUFFERED, media_type="text/event-stream")


def _event(content: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()

# SPDX-License-Identifier: Apache-2.0
"""Recordings are priced by their headers, decoded in blocks, and transcribed a window of each in turn."""

import io
import struct
import subprocess
import sys
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from fixtures_serving import (
    MODEL,
    TIMEOUT,
    Steps,
    active,
    connect,
    dial,
    figures,
    running,
    wait_until,
)

from qeff_zoo.errors import MediaError
from qeff_zoo.media import audio
from qeff_zoo.media.steps import Steps as InSteps
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.requests.price import BOUNDS, BYTES_OF_SAMPLE, price
from qeff_zoo.serving.requests.schemas import ChatRequest
from qeff_zoo.sessions import Segment, Transcription
from qeff_zoo.tasks.speech.endpoints import SpeechQueue

RATE = 16_000


def flac(samples: Any, rate: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="FLAC")
    return file.getvalue()


def claiming(seconds: int, channels: int = 8, rate: int = 96_000) -> bytes:
    """Write a second of silence whose header promises more."""
    data = bytearray(flac(np.zeros((rate, channels), np.int16), rate))
    (fields,) = struct.unpack_from(">Q", data, 18)  # of STREAMINFO; its last 36 bits count samples
    struct.pack_into(">Q", data, 18, fields >> 36 << 36 | seconds * rate)
    return bytes(data)


def test_the_recordings_of_a_request_have_one_limit() -> None:
    """In all their channels, by their headers; each of them is within the limit of one."""
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "a"}]})
    files = [claiming(4), claiming(2, channels=2)]
    bounds = replace(BOUNDS, values=(4 * 8 + 2 * 2) * 96_000)
    assert len(price(None, body, {"audio": files}, bounds).nbytes["audio"]) == 2
    most = bounds.values
    for further in (flac(np.zeros(1, np.int16)), files[1], files[0]):
        with pytest.raises(ApiError, match=f"samples in its recordings; expected at most {most:,}"):
            price(None, body, {"audio": [*files, further]}, bounds)


class Session:
    """Stands for a session: a second of recording is a window, whose text is its loudest sample."""

    rate = RATE
    task = "automatic-speech-recognition"
    generates = has_word_timestamps = has_segment_timestamps = False

    def __init__(self) -> None:
        self.transcribed = Steps(lambda window: f"{window.max():.1f}")

    def begin(self, opened: audio.OpenedAudio) -> InSteps[Any]:
        samples = yield from audio.decoding(opened, RATE)
        left = [samples[at : at + RATE] for at in range(0, len(samples), RATE)]
        return Recording(left, len(samples) / RATE)

    def windows(self, turns: Any) -> Generator[tuple[Any, list[Segment]], None, None]:
        while (one := turns.take()) is not None:
            one.texts.append(self.transcribed(one.left.pop(0)))
            yield one, []
            if not one.ended:
                turns.put(one)

    def transcription(self, one: Any) -> Transcription:
        return Transcription(text=" ".join(one.texts), seconds=one.seconds)


class Recording:
    @property
    def nbytes(self) -> int:
        return sum(one.size for one in self.left) * BYTES_OF_SAMPLE

    def __init__(self, left: list[Any], seconds: float) -> None:
        self.left, self.seconds, self.texts = left, seconds, list[str]()

    @property
    def ended(self) -> bool:
        return not self.left


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def queue(session: Session) -> Iterator[SpeechQueue]:
    with closing(SpeechQueue(session, max_waiting=8)) as opened:  # type: ignore[arg-type]
        yield opened
        session.transcribed.permit(1000)


@pytest.fixture
def client(queue: SpeechQueue) -> Iterator[openai.OpenAI]:
    with running(queue) as url, connect(url) as opened:  # type: ignore[arg-type]
        yield opened


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as opened:
        yield opened


def request(client: openai.OpenAI, file: bytes) -> str:
    return client.audio.transcriptions.create(model=MODEL, file=("a.flac", file)).text


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (claiming(4 * 3600 - 1), r"has 14,399 seconds of audio, expected at most 7,200"),
        (claiming(7000), r"672,000,000 samples in each of 8 channels, expected at most 1,000,000,000 in all"),
    ],
    ids=["44 GB", "21 GB"],
)  # fmt: skip
def test_what_a_header_promises_is_refused(
    client: openai.OpenAI, file: bytes, message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as refused:
        request(client, file)
    assert refused.value.param == "file"


def test_a_header_that_promises_more_than_there_is_takes_no_memory(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="The recording cannot be read"):
        request(client, claiming(3000, 1, RATE))


def test_a_short_recording_does_not_wait_for_a_long_one(
    client: openai.OpenAI, clients: ThreadPoolExecutor, session: Session, queue: SpeechQueue
) -> None:
    long = clients.submit(request, client, flac(np.full(50 * RATE, 0.5)))
    wait_until(lambda: session.transcribed.begun == 1)
    short = clients.submit(request, client, flac(np.full(RATE, 0.25)))
    wait_until(lambda: len(queue._waiting) == 1)
    session.transcribed.permit(2)
    assert short.result(TIMEOUT) == "0.2"
    assert not long.done()
    session.transcribed.permit(1000)
    assert long.result(TIMEOUT) == " ".join(["0.5"] * 50)


def test_recordings_of_one_client_have_one_turn(
    clients: ThreadPoolExecutor, session: Session, queue: SpeechQueue
) -> None:
    with (
        running(queue, api_keys=("alice", "mallory")) as url,  # type: ignore[arg-type]
        connect(url, "mallory") as other,
        connect(url, "alice") as own,
    ):
        long = [clients.submit(request, other, flac(np.full(5 * RATE, 0.5))) for _ in range(4)]
        wait_until(lambda: session.transcribed.begun == 1 and len(queue._waiting) == 3)
        short = clients.submit(request, own, flac(np.full(2 * RATE, 0.25)))
        wait_until(lambda: len(queue._waiting) == 4)
        session.transcribed.permit(4)  # those of alice are second and fourth
        assert short.result(TIMEOUT) == "0.2 0.2"
        assert not any(one.done() for one in long)
        session.transcribed.permit(1000)
        assert {one.result(TIMEOUT) for one in long} == {" ".join(["0.5"] * 5)}


def test_a_short_recording_passes_those_that_fill_the_memory_of_their_client(
    clients: ThreadPoolExecutor, session: Session
) -> None:
    """Recordings hold memory until their last window, and those of a client leave some for others."""
    few = replace(BOUNDS, decoded_bytes=8 * 5 * RATE * BYTES_OF_SAMPLE * 16)  # eight in the lane
    with (
        closing(SpeechQueue(session, max_waiting=40, bounds=few)) as queue,  # type: ignore[arg-type]
        running(queue, api_keys=("alice", "mallory")) as url,  # type: ignore[arg-type]
        connect(url, "mallory") as other,
        connect(url, "alice") as own,
    ):
        lane = queue._pool._lanes[0]
        long = [clients.submit(request, other, flac(np.full(5 * RATE, 0.5))) for _ in range(12)]
        wait_until(lambda: len(queue._jobs) + len(lane._waiting) == 12)
        short = clients.submit(request, own, flac(np.full(RATE, 0.25)))
        wait_until(lambda: len({job.client for job in queue._jobs.values()}) == 2)
        session.transcribed.permit(3)
        assert short.result(TIMEOUT) == "0.2"
        assert not any(one.done() for one in long)
        session.transcribed.permit(1000)
        assert {one.result(TIMEOUT) for one in long} == {" ".join(["0.5"] * 5)}


def test_nothing_is_transcribed_for_a_client_that_left(
    client: openai.OpenAI, session: Session, queue: SpeechQueue
) -> None:
    url = str(client.base_url).rstrip("/")
    name = "http_responses_total:/v1/audio/transcriptions:499"
    fields = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + MODEL.encode()
    fields += b'\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    fields += flac(np.full(50 * RATE, 0.5)) + b"\r\n--b--\r\n"
    head = (
        "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; "
    )
    with closing(dial(url)) as left:
        left.sendall(f"{head}boundary=b\r\nContent-Length: {len(fields)}\r\n\r\n".encode() + fields)
        wait_until(lambda: session.transcribed.begun == 1)
    wait_until(lambda: figures(url).get(name) == 1)
    wait_until(lambda: all(job.left for job in queue._jobs.values()))
    session.transcribed.permit(1000)
    assert request(client, flac(np.full(RATE, 0.25))) == "0.2"
    assert session.transcribed.begun == 2
    wait_until(lambda: active(queue) == (0, 0))  # type: ignore[arg-type]


def test_a_failure_ends_the_recording_of_its_window_alone(
    client: openai.OpenAI, clients: ThreadPoolExecutor, session: Session, queue: SpeechQueue
) -> None:
    act = session.transcribed._act
    session.transcribed._act = lambda window: act(window) if window.max() < 0.9 else [][0]
    long = clients.submit(request, client, flac(np.full(5 * RATE, 0.5)))
    wait_until(lambda: session.transcribed.begun == 1)
    broken = clients.submit(request, client, flac(np.full(RATE, 0.95)))
    wait_until(lambda: len(queue._waiting) == 1)
    session.transcribed.permit(1000)
    with pytest.raises(openai.InternalServerError):
        broken.result(TIMEOUT)
    assert long.result(TIMEOUT) == " ".join(["0.5"] * 5)


def test_waiting_recordings_get_an_error_at_shutdown(
    session: Session, queue: SpeechQueue, clients: ThreadPoolExecutor
) -> None:
    with running(queue, queue.close) as url:  # type: ignore[arg-type]
        opened = connect(url)
        requested = [
            clients.submit(request, opened, flac(np.full(5 * RATE, 0.5))) for _ in range(2)
        ]
        wait_until(lambda: session.transcribed.begun == 1 and len(queue._waiting) == 1)
        clients.submit(lambda: (wait_until(lambda: queue._closing), session.transcribed.permit(1)))
    with opened:
        for one in requested:
            with pytest.raises(openai.InternalServerError, match="shutting down"):
                one.result(TIMEOUT)
    assert session.transcribed.begun == 1


@pytest.mark.parametrize("rate", [RATE, 44_100, 8000])
@pytest.mark.parametrize("channels", [1, 2, 8])
def test_blocks_have_the_samples_of_the_whole(
    rate: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).integers(-9000, 9000, (20_001, channels), np.int16)
    wave = io.BytesIO()
    soundfile.write(wave, noise, rate, format="WAV")
    sources: list[Any] = [wave.getvalue(), flac(noise, rate), noise]
    wholes = [audio.read_audio(one, RATE, given_rate=rate) for one in sources]
    monkeypatch.setattr(audio, "_BLOCK", 1000)
    for one, whole in zip(sources, wholes, strict=True):
        np.testing.assert_array_equal(audio.read_audio(one, RATE, given_rate=rate), whole)


_CHILD = """
import resource, sys, numpy, soundfile, soxr
from qeff_zoo.media.audio import read_audio
data = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_audio(data, 16000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_channels_are_not_in_memory_at_a_time() -> None:
    data = flac(np.zeros((44_100 * 60, 8), np.int16), 44_100)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], input=data, capture_output=True, check=True, timeout=TIMEOUT
    )
    assert int(done.stdout) < 45_000  # KiB; 110,000 before


def test_more_samples_than_a_recording_may_have() -> None:
    with pytest.raises(MediaError, match="expected at most 4,000,000,000 in all"):
        audio.read_audio(claiming(4 * 3600 - 1), RATE)


def test_no_step_is_long_at_a_low_rate() -> None:
    """A block of few samples a second is an hour, which takes seconds to resample, and no client is left meanwhile."""
    opened = audio.open_audio(flac(np.zeros(1000 * 3000, np.int16), 1000), RATE)
    assert sum(1 for _ in audio.decoding(opened, RATE)) >= 50

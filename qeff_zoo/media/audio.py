# SPDX-License-Identifier: Apache-2.0
"""Recordings, read without trust: a path, bytes or an array in, samples of one channel at one sampling rate out.

WAV files are read here; other recordings by `soundfile`, and containers (M4A, MP4, WebM, …) by PyAV; other rates are
resampled by `soxr`: all three of the extra `media`. Several channels are averaged.
"""

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import MediaError
from qeff_zoo.media.containers import open_audio_track
from qeff_zoo.media.signatures import demuxer_of, described
from qeff_zoo.media.steps import Steps, finished

Samples: TypeAlias = NDArray[np.float32]  # (samples,), -1 to 1
AudioSource: TypeAlias = Union[str, "os.PathLike[str]", bytes, NDArray[Any]]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN_SIZE = (0, 0xFFFFFFFF)  # in a file that was written to a pipe
_RATES = range(1000, 768_001)  # a second
_CHANNELS = 64
_LOUDEST = 256.0  # larger samples are not scaled to -1 to 1, and transcripts of them would be wrong
_BLOCK = 1 << 21  # samples in all channels decoded at a time
_PIECE = 60  # seconds resampled at a time
_SPARE = 64  # samples that resampling may add
# Of the formats of libsndfile that people have; with others, it may write to the standard output for each block.
_BEGINNINGS = (
    b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b".snd", b"dns.", b"caff", b"fLaC", b"OggS", b"ID3", b"NIST_1A",
    *(bytes((0xFF, second)) for second in range(0xE0, 0x100)),  # a frame of MP3
)  # fmt: skip
_FIRST_BY_SOUNDFILE = (
    "ogg",
    "caf",
)  # containers, by FFmpeg's names, most of which libsndfile reads
_LATE = 1.0  # seconds that a recording may be longer than its header says, if that is not exact
_INSTALL = "pip install 'qeff-zoo[media]'"


@dataclass(frozen=True)
class AudioLimits:
    """Maximum length of a recording, checked before anything is decoded.

    Attributes:
        seconds: Duration in seconds.
        values: Samples in all channels.
        file_bytes: Bytes of the encoded recording.
    """

    seconds: float = 4 * 3600.0
    values: int = 4_000_000_000
    file_bytes: int = 4_000_000_000


LIMITS = AudioLimits()


@dataclass(frozen=True, kw_only=True)
class OpenedAudio:
    """Recording whose header has been read.

    Attributes:
        name: Subject of an error's sentence.
        samples: Number of samples in each channel.
        channels: Number of channels.
        rate: Samples a second.
        blocks: A function that returns the samples block by block, (samples, channels).
        is_exact: Whether the number of samples is that of the blocks, and not nearly so.
    """

    name: str
    samples: int
    channels: int
    rate: int
    blocks: Callable[[], Iterator[NDArray[np.float32]]]
    is_exact: bool = True

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.samples / self.rate


def open_audio(
    source: AudioSource, rate: int, *, given_rate: int | None = None, limits: AudioLimits = LIMITS
) -> OpenedAudio:
    """Read the header of a recording; arguments and errors are those of `read_audio`."""
    if isinstance(source, np.ndarray):
        opened = _open_array(source, rate if given_rate is None else given_rate)
    else:
        data, name = _bytes_of(source, limits)
        is_wav = data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE"
        wave = _open_wav(data, name) if is_wav else None
        opened = wave or _open_compressed(data, name)
    _check(opened, limits)
    return opened


def read_audio(
    source: AudioSource, rate: int, *, given_rate: int | None = None, limits: AudioLimits = LIMITS
) -> Samples:
    """Read one recording.

    Args:
        source: A path, the bytes of a file, or an array: (samples,), or (samples, channels) as soundfile returns them;
            floats from -1 to 1, or integers of 8 to 32 bits, of the whole range of their type.
        rate: Sampling rate of the result.
        given_rate: Sampling rate of an array; None if it is `rate` already.
        limits: Maximum length.

    Returns:
        float32, (samples,).

    Raises:
        MediaError: If it is no recording, empty, damaged or too long, or if the library that reads it is not
            installed.
    """
    return finished(decoding(open_audio(source, rate, given_rate=given_rate, limits=limits), rate))


def decoding(opened: OpenedAudio, rate: int) -> Steps[Samples]:
    """Decode a recording block by block, to one channel at one rate, with pauses for other work.

    Args:
        opened: The recording.
        rate: Sampling rate of the result.

    Returns:
        float32, (samples,).

    Raises:
        MediaError: On the same conditions as `read_audio`.
    """
    resample = _resampler(opened, rate)
    # Untouched memory is not allocated before samples arrive: a header may promise more than the file has.
    most = opened.samples + (0 if opened.is_exact else int(_LATE * opened.rate))
    mono = np.empty(int(most * rate / opened.rate) + _SPARE, np.float32)
    loudest, read, decoded = 0.0, 0, 0
    for block, is_last in _pieces(opened):
        lowest, highest = float(block.min()), float(block.max())
        loudest = max(loudest, -lowest, highest)
        if not np.isfinite((lowest, highest)).all():
            raise MediaError(
                f"{opened.name} has samples that are no numbers; expected finite ones. Record or convert it again."
            )
        read += len(block)
        if read > most:
            raise MediaError(
                f"{opened.name} says that it has {opened.samples:,} samples, and has more than {read:,}. Expected a "
                "header that is right. Convert it to WAV."
            )
        one = block[:, 0] if opened.channels == 1 else block.mean(axis=1)
        part = resample(np.ascontiguousarray(one, np.float32), is_last)
        mono[decoded : decoded + len(part)] = part
        decoded += len(part)
        yield
    if loudest > _LOUDEST:
        raise MediaError(
            f"{opened.name} has samples of up to {loudest:,.0f}; expected floats from -1 to 1. Divide them by what is "
            "loudest in their scale, as 32,768 of 16 bits, or give integers of such a type."
        )
    if not decoded:
        raise MediaError(
            f"{opened.name} has {opened.samples} samples at {opened.rate:,} a second, which is none at {rate:,}; "
            "expected at least one. Record it again."
        )
    return mono[:decoded]


def _pieces(opened: OpenedAudio) -> Iterator[tuple[Samples, bool]]:
    """Yield the samples of a recording and whether they are the last; at most a minute at a time, which is short."""
    length, before = _PIECE * opened.rate, None
    for block in opened.blocks():
        for start in range(0, len(block), length):
            if before is not None:
                yield before, False
            before = block[start : start + length]
    if before is not None:
        yield before, True


def _resampler(opened: OpenedAudio, rate: int) -> Callable[[Samples, bool], Samples]:
    """Return a function of the next samples, and whether they are the last, that returns them resampled."""
    if opened.rate == rate:
        return lambda samples, _: samples
    try:
        import soxr
    except ImportError as error:
        raise MediaError(
            f"{opened.name} has {opened.rate:,} samples a second, the model takes {rate:,}, and soxr, which converts, "
            f"is missing. Expected the extra `media`. Run `{_INSTALL}`, or convert the recording."
        ) from error
    stream = soxr.ResampleStream(opened.rate, rate, 1, dtype="float32", quality="HQ")
    return lambda samples, last: stream.resample_chunk(samples, last=last)


def _bytes_of(source: Any, limits: AudioLimits) -> tuple[bytes, str]:
    if isinstance(source, bytes):
        size, name = len(source), "The recording"
    elif not isinstance(source, str | os.PathLike):
        raise MediaError(
            f"A recording is of type {type(source).__name__}; expected a path, the bytes of a file, or a numpy array "
            "of samples. Convert it."
        )
    else:
        path, name = Path(source), repr(os.fspath(source))
        try:
            size = path.stat().st_size
        except OSError as error:
            raise MediaError(
                f"Cannot read {name}: {error.strerror}. Expected a recording, as a WAV file. Correct the path."
            ) from error
    if not size:
        raise MediaError(f"{name} is empty; expected a recording, as a WAV file. Record it again.")
    if size > limits.file_bytes:
        raise MediaError(
            f"{name} has {size:,} bytes, expected at most {limits.file_bytes:,}. Cut it, or compress it."
        )
    if isinstance(source, bytes):
        return source, name
    try:
        return path.read_bytes(), name
    except OSError as error:
        raise MediaError(
            f"Cannot read {name}: {error.strerror}. Expected a file that may be read. Correct the path or its "
            "permissions."
        ) from error


def _open_array(source: NDArray[Any], rate: int) -> OpenedAudio:
    if source.ndim not in (1, 2) or source.dtype.kind not in "fiu":
        raise MediaError(
            f"The array has shape {source.shape} and type {source.dtype}; expected (samples,) or (samples, channels) "
            "of numbers. Give it so."
        )
    if source.dtype.kind in "iu" and source.dtype.itemsize > 4:
        raise MediaError(
            "The array has integers of 64 bits, whose range no recording fills; expected those of 8 to 32 bits, or "
            "floats from -1 to 1. Convert it to the type of its samples, as int16."
        )
    columns = source if source.ndim == 2 else source[:, None]
    samples, channels = columns.shape

    def blocks() -> Iterator[NDArray[np.float32]]:
        for start, stop in _spans(samples, channels):
            yield _floats(columns[start:stop])

    return OpenedAudio(
        name="The array", samples=samples, channels=channels, rate=rate, blocks=blocks
    )


def _floats(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return samples as floats from -1 to 1."""
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):  # infinity is rejected later
            return values.astype(np.float32)
    if values.dtype.kind == "u":
        middle = (int(np.iinfo(values.dtype).max) + 1) // 2
        return ((values.astype(np.float64) - middle) / middle).astype(np.float32)
    whole: NDArray[np.float32] = (values / -float(np.iinfo(values.dtype).min)).astype(np.float32)
    return whole


def _spans(samples: int, channels: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each block."""
    length = max(1, _BLOCK // channels)
    for start in range(0, samples, length):
        yield start, min(start + length, samples)


def _check(audio: OpenedAudio, limits: AudioLimits) -> None:
    """Reject a recording that is empty or too long, or has an invalid header."""
    name, samples, channels, rate = audio.name, audio.samples, audio.channels, audio.rate
    if rate not in _RATES:
        shown = f"{rate:,}" if isinstance(rate, int) else repr(rate)
        raise MediaError(
            f"{name} says that it has {shown} samples a second; expected {_RATES[0]:,} to {_RATES[-1]:,}. Convert it."
        )
    if not 0 < channels <= _CHANNELS:
        raise MediaError(
            f"{name} has {channels} channels, expected 1 to {_CHANNELS}. If this is an array (channels, samples), "
            "transpose it."
        )
    if samples == 0:
        raise MediaError(f"{name} has 0 samples, expected at least 1. Record it again.")
    if audio.seconds > limits.seconds:
        raise MediaError(
            f"{name} has {audio.seconds:,.0f} seconds of audio, expected at most {limits.seconds:,.0f}. Cut it."
        )
    if samples * channels > limits.values:
        raise MediaError(
            f"{name} has {samples:,} samples in each of {channels} channels, expected at most {limits.values:,} in "
            "all. Cut it, or convert it to one channel."
        )


# --- WAV ---------------------------------------------------------------------------------------


def _open_wav(data: bytes, name: str) -> OpenedAudio | None:
    """Open a WAV file of integers or floats; None for another encoding."""
    form: tuple[int, ...] | None = None
    for kind, start, size in _chunks(data):
        whole = start + size <= len(data)
        if kind == b"fmt " and size >= 16 and whole:
            coding, channels, rate, _, frame, bits = form = struct.unpack_from(
                "<HHIIHH", data, start
            )
            if coding == _EXTENSIBLE and size >= 26:
                coding = struct.unpack_from("<H", data, start + 24)[0]
        if kind != b"data":
            continue
        if form is None:
            break
        width = bits // 8
        known = (_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32), (_FLOAT, 64)
        if (coding, bits) not in known or frame != channels * width:
            return None
        there = len(data) - start
        if size in _UNKNOWN_SIZE:
            size = there - there % frame if frame else 0
        if size > there:
            raise MediaError(
                f"{name} says that it has {size:,} bytes of audio, and ends after {there:,}: it was cut off. "
                "Expected all of it. Copy it again."
            )
        samples = size // frame if frame else 0
        audio = memoryview(data)[start : start + samples * frame]
        return OpenedAudio(
            name=name,
            samples=samples,
            channels=channels,
            rate=rate,
            blocks=partial(_wav_blocks, audio, coding, width, channels),
        )
    raise MediaError(
        f"{name} is a WAV file without {'audio' if form else 'a format'}: it was cut off or damaged. Expected both. "
        "Copy it again."
    )


def _wav_blocks(
    audio: memoryview, coding: int, width: int, channels: int
) -> Iterator[NDArray[np.float32]]:
    frame = width * channels
    for start, stop in _spans(len(audio) // frame, channels):
        values = _numbers(audio[start * frame : stop * frame], coding, width)
        yield values.reshape(-1, channels)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, position and size of each chunk of a RIFF file."""
    at = 12
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, at)
        yield kind, at + 8, size
        at += 8 + size + size % 2


def _numbers(raw: memoryview, coding: int, width: int) -> NDArray[Any]:
    if coding == _FLOAT:
        with np.errstate(over="ignore"):  # as for arrays
            return np.frombuffer(raw, f"<f{width}").astype(np.float32)
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:  # into the upper bytes of 32 bits
        padded = np.zeros((len(raw) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return (padded.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    whole: NDArray[Any] = np.frombuffer(raw, f"<i{width}") / 2.0 ** (8 * width - 1)
    return whole.astype(np.float32)


# --- everything else ---------------------------------------------------------------------------


class _Content(BytesIO):
    """Encoded recording for libsndfile, which may seek before its start: that fails without an exception."""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, if it exists."""
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return -1


def _open_compressed(data: bytes, name: str) -> OpenedAudio:
    demuxer = demuxer_of(data)
    if not demuxer and not data.startswith(_BEGINNINGS):
        raise MediaError(
            f"{name} cannot be read: it is {described(data)}. Expected WAV, FLAC, MP3, Ogg, M4A, MP4, WebM, AAC, AMR, "
            "AIFF, AU, CAF, W64 or NIST SPHERE. Convert it to WAV."
        )
    if not demuxer:
        return _open_by_soundfile(data, name)
    if demuxer in _FIRST_BY_SOUNDFILE:
        with suppress(MediaError):
            return _open_by_soundfile(data, name)
    track = open_audio_track(data, name)
    return OpenedAudio(
        name=name,
        samples=track.samples,
        channels=track.channels,
        rate=track.rate,
        blocks=track.blocks,
        is_exact=False,
    )


def _open_by_soundfile(data: bytes, name: str) -> OpenedAudio:
    try:
        import soundfile
    except ImportError as error:
        raise MediaError(
            f"{name} is no WAV file of plain samples, and soundfile, which reads others, is not installed. Expected "
            f"the extra `media`. Run `{_INSTALL}`, or convert the recording to WAV."
        ) from error

    def read(opened: Any, count: int) -> NDArray[np.float32]:
        block: NDArray[np.float32] = opened.read(count, dtype="float32", always_2d=True)
        return block

    def blocks() -> Iterator[NDArray[np.float32]]:
        with _whole(name), soundfile.SoundFile(_Content(data)) as opened:
            promised = opened.frames
            for start, stop in _spans(promised, opened.channels):
                block = read(opened, stop - start)
                if len(block) < stop - start:
                    raise MediaError(
                        f"{name} says that it has {promised:,} samples, and ends after {start + len(block):,}. "
                        "Expected all of it. Copy it again."
                    )
                yield block

    with _whole(name), soundfile.SoundFile(_Content(data)) as opened:
        return OpenedAudio(
            name=name,
            samples=opened.frames,
            channels=opened.channels,
            rate=int(opened.samplerate),
            blocks=blocks,
        )


@contextmanager
def _whole(name: str) -> Iterator[None]:
    """Convert errors of libsndfile into errors of the recording."""
    import soundfile

    try:
        yield
    except soundfile.LibsndfileError as error:
        raise MediaError(
            f"{name} cannot be read: {error.error_string} Expected the whole recording. "
            "Convert it to WAV."
        ) from error

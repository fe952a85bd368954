# SPDX-License-Identifier: Apache-2.0
"""Audio and video of containers (MP4, M4A, WebM, …), decoded by PyAV of the extra `media`, without trust.

The container is the one of the file's first bytes, its codecs are those of people's files, and nothing outside the
file is opened. Lengths and sizes are checked in the headers, and once more while decoding, since headers may lie.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import MediaError
from qeff_zoo.media.signatures import demuxer_of

if TYPE_CHECKING:
    from av.container import InputContainer

#: FFmpeg's decoders that may run; it has others of hundreds of rare formats.
_AUDIO_DECODERS = (
    "aac", "aac_latm", "ac3", "alac", "amrnb", "amrwb", "eac3", "flac", "libopencore_amrnb", "libopencore_amrwb",
    "libopus", "mp2", "mp2float", "mp3", "mp3float", "opus", "pcm_alaw", "pcm_f32be", "pcm_f32le", "pcm_f64le",
    "pcm_mulaw", "pcm_s16be", "pcm_s16le", "pcm_s24be", "pcm_s24le", "pcm_s32be", "pcm_s32le", "pcm_u8", "speex",
    "vorbis", "wmav1", "wmav2",
)  # fmt: skip
_VIDEO_DECODERS = (
    "av1", "flv", "h263", "h264", "hevc", "libdav1d", "libvpx-vp9", "mjpeg", "mpeg1video", "mpeg2video", "mpeg4",
    "msmpeg4v2", "msmpeg4v3", "prores", "theora", "vp8", "vp9", "wmv1", "wmv2", "wmv3",
)  # fmt: skip
_OPTIONS = {
    "codec_whitelist": ",".join((*_AUDIO_DECODERS, *_VIDEO_DECODERS)),
    "protocol_whitelist": "none",
    "probesize": str(1 << 22),
}
_BLOCK = 1 << 18  # samples in all channels that are returned at a time
_SECONDS_OFF = (
    1.0,
    0.02,
)  # the duration of a header and that of the samples may differ by this, or by this share
_FRAMES_OFF = 16  # frames at the end of a video that a decoder may lack the frames before of
_RATE_OFF = 0.01  # share by which a frame rate may differ from the times of the frames
_PACKETS = 20_000_000  # of audio without a duration in its header: four hours of packets of 0.7 ms
_ALIGNED = 256  # pixels by which a decoder may enlarge a side to whole blocks
_STREAMS = 64
_TIMES = 1_000_000  # FFmpeg's units of a container's duration, a second


@dataclass(frozen=True, kw_only=True)
class AudioTrack:
    """Audio of a container whose header has been read.

    Attributes:
        samples: Number of samples in each channel, by the header; the decoded number may differ slightly.
        channels: Number of channels.
        rate: Samples a second.
        blocks: A function that returns the samples block by block, (samples, channels).
    """

    samples: int
    channels: int
    rate: int
    blocks: Callable[[], Iterator[NDArray[np.float32]]]


@dataclass(frozen=True, kw_only=True)
class VideoTrack:
    """Video of a container whose packets have been counted.

    Attributes:
        name: Description of the video in an error.
        count: Number of frames.
        fps: Average frame rate.
        size: Width and height of a frame as it is stored.
        data: Content of the file.
    """

    name: str
    count: int
    fps: float
    size: tuple[int, int]
    data: bytes

    @property
    def frames(self) -> "DecodedFrames":
        """Frames of the video, which are decoded when they are read."""
        return DecodedFrames(self)


def open_audio_track(data: bytes, name: str) -> AudioTrack:
    """Read the header of a container with audio.

    Args:
        data: Content of the file.
        name: Description of the recording in an error, at the beginning of a sentence.

    Raises:
        MediaError: If it has no audio, is damaged, or PyAV is not installed.
    """
    with _opened(data, name) as container:
        stream = _stream(container, "audio", name)
        context = stream.codec_context
        rate, channels = int(context.sample_rate or 0), int(context.channels or 0)
        seconds = _seconds(stream, container)
        exact = stream.duration is not None
    if seconds is None:
        seconds = _scanned_seconds(data, name)
    samples = math.ceil(seconds * rate)

    def blocks() -> Iterator[NDArray[np.float32]]:
        return _blocks(data, name, samples if exact else 0, channels, rate)

    return AudioTrack(samples=samples, channels=channels, rate=rate, blocks=blocks)


def open_video_track(data: bytes, name: str, most: int) -> VideoTrack:
    """Read the header of a container with video, and count its frames.

    Args:
        data: Content of the file.
        name: Description of the video in an error, such as "the video 'a.mp4'".
        most: Number of frames after which counting ends.

    Raises:
        MediaError: If it has no video, is damaged or cut off, or PyAV is not installed.
    """
    with _opened(data, f"Cannot read {name}: it") as container:
        stream = _stream(container, "video", f"Cannot read {name}: it")
        size = int(stream.codec_context.width or 0), int(stream.codec_context.height or 0)
        promised, rate, base = stream.frames, stream.average_rate, stream.time_base
        count = read = 0
        first, last = math.inf, -math.inf
        for packet in container.demux(stream):
            if not packet.size:
                continue
            read += 1
            if count > most:
                promised = 0
                break
            if packet.is_corrupt:
                raise _cut_off(name, read - 1)
            if packet.is_discard or _is_hidden(packet, stream.codec_context.codec.name):
                continue
            count += 1
            if packet.pts is not None:
                first = min(first, packet.pts)
                last = max(last, packet.pts)
    if read < promised:
        raise _cut_off(name, read)
    fps = float(rate or 0)
    if not promised and base and last > first:
        measured = (count - 1) / float((last - first) * base)
        if abs(fps - measured) > _RATE_OFF * measured:  # a guess of FFmpeg from a few frames
            fps = measured
    return VideoTrack(name=name, count=count, fps=fps, size=size, data=data)


class DecodedFrames(Sequence[NDArray[np.uint8]]):
    """Frames of a video, decoded forward as they are read; one frame is in memory at a time.

    Args:
        track: The video.
    """

    def __init__(self, track: VideoTrack) -> None:
        self._track = track
        self._left: Iterator[Any] = iter(())
        self._at = -1
        self._frame: Any = None

    def __len__(self) -> int:
        return self._track.count

    @overload
    def __getitem__(self, index: int) -> NDArray[np.uint8]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[NDArray[np.uint8]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        for _ in self.reaching(range(len(self))[index]):
            pass
        return self.current

    def reaching(self, index: int) -> Iterator[None]:
        """Decode up to a frame, with a pause after each.

        Raises:
            MediaError: If the video is damaged, or ends before.
        """
        if self._frame is None or index < self._at:
            self._at, self._left = -1, _frames(self._track)
        while self._at < index:
            frame = next(self._left, None)
            if frame is None:
                if self._frame is not None and self._at + _FRAMES_OFF >= index:
                    return  # a decoder lacks the frames that the last ones depend on
                raise _cut_off(self._track.name, self._at + 1)
            self._frame, self._at = frame, self._at + 1
            yield

    @property
    def current(self) -> NDArray[np.uint8]:
        """The frame that was reached, upright: (height, width, 3)."""
        pixels: NDArray[np.uint8] = self._frame.to_ndarray(format="rgb24")
        turns = round(getattr(self._frame, "rotation", 0) / 90)  # counter-clockwise
        return np.ascontiguousarray(np.rot90(pixels, turns))


def _frames(track: VideoTrack) -> Iterator[Any]:
    start = f"Cannot read {track.name}: it"
    with _opened(track.data, start) as container:
        stream = _stream(container, "video", start)
        stream.thread_count = 1
        stream.codec_context.options = {
            "max_pixels": str(math.prod(side + _ALIGNED for side in track.size))
        }
        for frame in container.decode(stream):
            if (frame.width, frame.height) != track.size:
                raise MediaError(
                    f"Cannot read {track.name}: its frames are of several sizes, {track.size} and "
                    f"{(frame.width, frame.height)} among them (width, height). Expected one size. Convert it."
                )
            yield frame


def _blocks(
    data: bytes, name: str, promised: int, channels: int, rate: int
) -> Iterator[NDArray[np.float32]]:
    """Yield the samples of a container's audio; `promised` is the number in its header, 0 if none is there."""
    held, length, read = list[NDArray[np.float32]](), 0, 0
    with _opened(data, name) as container:
        stream = _stream(container, "audio", name)
        stream.thread_count = 1
        for frame in container.decode(stream):
            samples = _samples(frame)
            if (samples.shape[1], frame.sample_rate) != (channels, rate):
                raise MediaError(
                    f"{name} begins with {channels} channels at {rate:,} samples a second, and goes on with "
                    f"{samples.shape[1]} at {frame.sample_rate:,}. Expected one form. Convert it to WAV."
                )
            held.append(samples)
            length += len(samples)
            if length * channels >= _BLOCK:
                read += length
                yield np.concatenate(held)
                held, length = [], 0
    if held:
        read += length
        yield np.concatenate(held)
    if read + max(_SECONDS_OFF[0] * rate, _SECONDS_OFF[1] * promised) < promised:
        raise MediaError(
            f"{name} says that it has {promised:,} samples, and ends after {read:,}. Expected all of it. Copy it again."
        )


def _samples(frame: Any) -> NDArray[np.float32]:
    """Return the samples of a frame as floats from -1 to 1, (samples, channels)."""
    values = frame.to_ndarray()
    channels = len(frame.layout.channels)
    columns = values.T if frame.format.is_planar else values.reshape(-1, channels)
    if columns.dtype.kind == "u":
        columns = (columns.astype(np.float32) - 128) / 128
    elif columns.dtype.kind == "i":
        columns = columns / -float(np.iinfo(columns.dtype).min)
    samples: NDArray[np.float32] = columns.astype(np.float32)
    return samples


def _seconds(stream: Any, container: Any) -> float | None:
    """Return the duration of a stream by its header, else that of its container; None if neither has one."""
    if stream.duration is not None and stream.time_base:
        return float(stream.duration * stream.time_base)
    return None if container.duration is None else container.duration / _TIMES


def _scanned_seconds(data: bytes, name: str) -> float:
    """Return the duration of audio by the times of its packets, as for a recording that a browser streamed."""
    with _opened(data, name) as container:
        stream = _stream(container, "audio", name)
        first, last = math.inf, -math.inf
        for count, packet in enumerate(container.demux(stream)):
            if count > _PACKETS:
                raise MediaError(
                    f"{name} has more than {_PACKETS:,} packets of audio. Expected fewer. Cut it, or convert it to WAV."
                )
            if packet.size and packet.pts is not None:
                first = min(first, packet.pts)
                last = max(last, packet.pts + (packet.duration or 0))
        return float((last - first) * stream.time_base) if last > first else 0.0


def _is_hidden(packet: Any, codec: str) -> bool:
    """Return whether a packet of VP8 has a frame that is only a reference of others."""
    return codec == "vp8" and not bytes(packet)[0] & 0x10


def _stream(container: Any, kind: str, name: str) -> Any:
    """Return the first stream of a kind, but for images on covers.

    Args:
        container: The opened file.
        kind: "audio" or "video".
        name: Beginning of an error's sentence.
    """
    from av.stream import Disposition

    if len(container.streams) > _STREAMS:
        raise MediaError(
            f"{name} has {len(container.streams)} streams. Expected at most {_STREAMS}. Convert it."
        )
    streams = [
        one for one in getattr(container.streams, kind) if not one.disposition & Disposition.attached_pic
    ]  # fmt: skip
    if not streams:
        there = sorted({one.type for one in container.streams})
        raise MediaError(
            f"{name} has no {kind}, only {' and '.join(there) or 'nothing'}. Expected {kind}. Give another file."
        )
    stream, allowed = streams[0], _AUDIO_DECODERS if kind == "audio" else _VIDEO_DECODERS
    codec = stream.codec_context.name if stream.codec_context else "unknown"
    if codec not in allowed:
        raise MediaError(
            f"{name} has {kind} of codec {codec!r}, which is not decoded. Expected one of {', '.join(allowed)}. "
            "Convert it."
        )
    return stream


@contextmanager
def _opened(data: bytes, name: str) -> "Iterator[InputContainer]":
    """Open a container, and convert FFmpeg's errors into errors of the file.

    Args:
        data: Content of the file.
        name: Beginning of an error's sentence.
    """
    try:
        import av
    except ImportError as error:
        raise MediaError(
            f"{name} is compressed audio or video in a container, and PyAV, which decodes it, is not installed. "
            "Expected the extra `media`. Run `pip install 'qeff-zoo[media]'`."
        ) from error
    try:
        with av.open(BytesIO(data), "r", format=demuxer_of(data), options=_OPTIONS) as container:
            yield container
    except (av.FFmpegError, OverflowError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MediaError(
            f"{name} is damaged or cut off ({reason}). Expected a whole file. Copy it again, or open it in another "
            "program to see whether it is whole."
        ) from error


def _cut_off(name: str, read: int) -> MediaError:
    return MediaError(
        f"Cannot read {name}: it has more frames by its header than in its contents, which end after {read:,}: it was "
        "cut off. Expected all of it. Copy it again."
    )

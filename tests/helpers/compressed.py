# SPDX-License-Identifier: Apache-2.0
"""Compressed videos and recordings in containers, written by PyAV."""

import tempfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

#: Containers, by FFmpeg's names, and codecs, as phones and browsers record them, and older cameras.
VIDEO = (
    ("mp4", "libx264"), ("mov", "mpeg4"), ("webm", "libvpx"), ("webm", "libvpx-vp9"), ("avi", "mpeg4"),
    ("mpegts", "libx264"), ("mpeg", "mpeg2video"),
)  # fmt: skip
AUDIO_FORMATS = (
    ("ipod", "aac"), ("ipod", "alac"), ("webm", "libopus"), ("adts", "aac"), ("matroska", "flac"), ("mov", "pcm_s16le"),
)  # fmt: skip
LOSSLESS = {"alac", "flac", "pcm_s16le"}


def clip(
    frames: Sequence[Any],
    form: str = "mp4",
    codec: str = "libx264",
    rate: int = 10,
    samples: Any = None,
    options: Mapping[str, str] | None = None,
    flags: str = "",
) -> bytes:
    """Return a video of frames (height, width, 3); with samples at 16,000 a second also an audio track.

    `flags` are FFmpeg's `movflags`.
    """
    import av

    with (
        tempfile.NamedTemporaryFile() as file,
        av.open(
            file.name, "w", format=form, options={"movflags": flags} if flags else {}
        ) as container,
    ):
        stream: Any = container.add_stream(codec, rate=rate, options=dict(options or {}))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        audio_stream = None if samples is None else container.add_stream("aac", rate=16000)
        for frame in frames:
            container.mux(
                stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), "rgb24"))
            )
        container.mux(stream.encode())
        if audio_stream is not None:
            _write(container, audio_stream, samples, 16000)
        container.close()
        return Path(file.name).read_bytes()


def recording_in(samples: Any, rate: int, form: str, codec: str) -> bytes:
    """Return a recording of samples, floats from -1 to 1 or integers of 16 bits: (samples,), or (samples, 2)."""
    import av

    file = BytesIO()
    with av.open(file, "w", format=form) as container:
        layout = "stereo" if np.ndim(samples) == 2 else "mono"
        stream = container.add_stream(
            codec, rate=48000 if codec == "libopus" else rate, layout=layout
        )
        _write(container, stream, samples, rate)
    return file.getvalue()


def _write(container: Any, stream: Any, samples: Any, rate: int) -> None:
    import av

    whole = np.asarray(samples)
    if whole.dtype != np.int16:
        whole = np.round(whole * 32767).astype(np.int16)
    rows = np.ascontiguousarray(whole.reshape(len(whole), -1).T)
    frame = av.AudioFrame.from_ndarray(
        rows, format="s16p", layout="stereo" if len(rows) == 2 else "mono"
    )
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    container.mux(stream.encode(frame))
    container.mux(stream.encode())

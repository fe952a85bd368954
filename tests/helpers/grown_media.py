# SPDX-License-Identifier: Apache-2.0
"""Images, videos and recordings grown to a size of file: by length, by count of parts, and by what they hold."""

import io
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import soundfile
from compressed import AUDIO_FORMATS, VIDEO, clip, recording_in
from PIL import Image

from qeff_zoo.media.images import FORMATS

_SIDE = 6144  # of the largest image that a server reads
_RATE = 16_000
#: Seconds of a recording: longer ones are priced by their duration.
SECONDS = 10
_ANIMATED = ("PNG", "WEBP", "GIF", "TIFF", "AVIF")
_RECORDED = ("FLAC", "WAV", "OGG", "MP3", "AIFF", "CAF")


def _largest(make: Callable[[int], bytes], most: int, nbytes: int) -> bytes:
    """Return the largest file within a number of bytes, by halving."""
    while len(found := make(most)) > nbytes and most > 1:
        most //= 2
    return found


def _saved(image: Image.Image, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def _blank(form: str, side: int) -> bytes:
    return _saved(Image.new("1" if form in ("PNG", "TIFF") else "L", (side, side)), form)


def _noise(form: str, side: int) -> bytes:
    values = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    return _saved(Image.fromarray(values), form)


def _frames(form: str, count: int) -> bytes:
    first, *rest = (Image.new("L", (2, 2), number % 251) for number in range(count))
    return _saved(first, form, save_all=True, append_images=rest)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _chunks(nbytes: int) -> bytes:
    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"teXt", b"") * (nbytes // 12)


def _scans(nbytes: int) -> bytes:
    """Return a progressive JPEG of 1600 x 1600 whose last scan is repeated."""
    whole = _saved(Image.new("L", (1600, 1600)), "JPEG", progressive=True)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + last * max(1, (nbytes - len(whole)) // len(last)) + b"\xff\xd9"


def _directories(nbytes: int) -> bytes:
    """Return a TIFF file whose directories follow each other."""
    count = nbytes // 18
    starts = [8 + 18 * number for number in range(1, count)] + [0]
    entry = struct.pack("<HHII", 256, 4, 1, 1)
    return b"II*\0\x08\0\0\0" + b"".join(
        struct.pack("<H", 1) + entry + struct.pack("<I", start) for start in starts
    )


def _wide(samples: Any, form: str) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, _RATE, format=form)
    return out.getvalue()


def _samples(kind: str, seconds: int) -> Any:
    shape = (seconds * _RATE, 8) if kind == "channels" else (seconds * _RATE,)
    if kind == "noise":
        return np.random.default_rng(0).integers(-9000, 9000, shape, np.int16)
    return np.zeros(shape, np.int16)


def _tags(nbytes: int) -> bytes:
    return b"ID3\x04\0\0" + bytes((0, 3, 127, 127)) + b"TXXX\0\0\0\x01\0\0a" * (nbytes // 11)


#: Functions that return a file of about a number of bytes, by name.
IMAGES: Mapping[str, Callable[[int], bytes]] = {
    **{f"blank {format}": partial(_largest, partial(_blank, format), _SIDE) for format in FORMATS},
    **{f"noise {format}": partial(_largest, partial(_noise, format), 512) for format in FORMATS},
    **{f"frames {one}": partial(_largest, partial(_frames, one), 2048) for one in _ANIMATED},
    "chunks": _chunks,
    "scans": _scans,
    "directories": _directories,
    "comments": lambda nbytes: b"P6\n" + b"# a\n" * (nbytes // 4) + b"1 1\n255\n...",
    "fill bytes": lambda nbytes: b"\xff\xd8\xff" + b"\xff" * nbytes,
}
VIDEOS: Mapping[str, Callable[[int], bytes]] = {
    f"{form} {codec}": partial(
        _largest, lambda n, f=form, c=codec: clip([np.zeros((64, 64, 3), np.uint8)] * n, f, c), 512
    )
    for form, codec in VIDEO
}
RECORDINGS: Mapping[str, Callable[[int], bytes]] = {
    **{
        f"{kind} {form}": partial(
            _largest, lambda n, f=form, k=kind: _wide(_samples(k, n), f), SECONDS
        )
        for kind in ("silence", "noise", "channels")
        for form in (_RECORDED[:3] if kind == "channels" else _RECORDED)
    },
    **{
        f"{form} {codec}": partial(
            _largest,
            lambda n, f=form, c=codec: recording_in(_samples("silence", n), _RATE, f, c),
            SECONDS,
        )
        for form, codec in AUDIO_FORMATS
    },
    "tags": _tags,
    "chunks": lambda nbytes: b"RIFF\xff\xff\xff\x7fWAVE" + b"junk\0\0\0\0" * (nbytes // 8),
    "pages": lambda nbytes: (b"OggS" + bytes(23)) * (nbytes // 27),
}
_KINDS = {"image": IMAGES, "video": {**IMAGES, **VIDEOS}, "audio": RECORDINGS}


def names(kind: str) -> tuple[str, ...]:
    """Return the names of files of a kind: "image", "video" or "audio"."""
    return (*_KINDS[kind],)


@cache
def file(kind: str, name: str, nbytes: int) -> bytes:
    """Return a file of a kind of about `nbytes`."""
    return _KINDS[kind][name](nbytes)

# SPDX-License-Identifier: Apache-2.0
"""Every format of images, videos and recordings, damaged anywhere: a result within the limits, or an error of ours."""

import io
import random
import re
import struct
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compressed import AUDIO_FORMATS, VIDEO, clip, recording_in
from fuzzing import CASES
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from qeff_zoo.errors import MediaError, ZooError
from qeff_zoo.media.audio import AudioLimits, read_audio
from qeff_zoo.media.images import ImageLimits, read_image, size_of
from qeff_zoo.media.videos import open_video, read_video

SECONDS = 2.0  # for one case; it takes milliseconds
BYTES = 1 << 27  # beyond what the process has before a case
IMAGES = ImageLimits(pixels=1 << 20)
AUDIO_LIMITS = AudioLimits(seconds=600, values=1 << 24)
NUMBERS = np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8)


def written(image: Image.Image, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def frames() -> list[Any]:
    return [np.roll(NUMBERS, step, 0) for step in range(3)]


def animated(form: str, **options: Any) -> bytes:
    first, *rest = map(Image.fromarray, frames())
    return written(first, form, save_all=True, append_images=rest, **options)


@cache
def video_files() -> dict[str, bytes]:
    return {
        "APNG": animated("PNG", duration=40),
        "WebP": animated("WEBP", duration=40),
        "GIF": animated("GIF", duration=40),
        "TIFF": animated("TIFF"),
        "MPO": animated("MPO"),
        "AVIF": animated("AVIF"),
        **{f"{form}, {codec}": clip([*frames()], form, codec) for form, codec in VIDEO},
    }


@cache
def still_files() -> dict[str, bytes]:
    return {name: file for name, file in video_files().items() if "," not in name}


@cache
def images() -> dict[str, bytes]:
    color = Image.fromarray(NUMBERS)
    deep = Image.fromarray(NUMBERS[..., 0].astype(np.uint16) << 8)
    sideways = Image.Exif()
    sideways[0x0112] = 6
    made = {
        "PNG": written(color, "PNG"),
        "PNG, alpha": written(color.convert("RGBA"), "PNG"),
        "PNG, 16 bits": written(deep, "PNG"),
        "PNG, palette": written(color.quantize(16), "PNG", transparency=bytes(range(16))),
        "PNG, 1 bit": written(color.convert("1"), "PNG", transparency=0),
        "JPEG": written(color, "JPEG"),
        "JPEG, progressive": written(color, "JPEG", progressive=True),
        "JPEG, CMYK": written(color.convert("CMYK"), "JPEG"),
        "JPEG, sideways": written(color, "JPEG", exif=sideways),
        "WebP, lossy": written(color, "WEBP"),
        "WebP, lossless": written(color.convert("RGBA"), "WEBP", lossless=True, exif=sideways),
        "GIF, transparent": written(color, "GIF", transparency=3),
        "BMP": written(color, "BMP"),
        "BMP, palette": written(color.quantize(16), "BMP"),
        "TIFF, 16 bits": written(deep, "TIFF"),
        "PPM": written(color, "PPM"),
        "PGM, text": b"P2\n4 2\n255\n" + b"0 1 2 3 4 5 6 255\n",
    }
    for packed in ("tiff_lzw", "jpeg", "tiff_deflate"):
        made[packed] = written(color, "TIFF", compression=packed)
    made["group4"] = written(color.convert("1"), "TIFF", compression="group4")
    return {**made, **still_files()}


@cache
def audio_files() -> dict[str, bytes]:
    import soundfile

    tones = np.sin(np.arange(1600) / 9)[:, None] / np.arange(2, 8)

    def recorded(form: str, coding: str, channels: int) -> bytes:
        out = io.BytesIO()
        soundfile.write(out, tones[:, :channels], 16000, coding, format=form)
        return out.getvalue()

    kinds = """
        WAV PCM_U8 1, WAV PCM_16 2, WAV PCM_24 1, WAV PCM_32 2, WAV FLOAT 1, WAV DOUBLE 2, WAV ALAW 1, WAV ULAW 2,
        WAV IMA_ADPCM 1, WAV MS_ADPCM 2, WAV GSM610 1, WAV G721_32 1, WAV PCM_16 6, WAVEX PCM_24 6, WAVEX FLOAT 2,
        RF64 PCM_16 2, W64 PCM_24 1, AIFF PCM_16 2, AIFF FLOAT 1, AIFF ULAW 1, AU PCM_16 1, AU G723_24 1,
        CAF PCM_24 2, CAF ALAC_16 2, FLAC PCM_16 2, FLAC PCM_24 6, OGG VORBIS 2, OGG OPUS 1, MP3 MPEG_LAYER_III 2,
        NIST PCM_16 1
    """
    named = ((kind.strip(), *kind.split()) for kind in kinds.split(","))
    made = {name: recorded(form, coding, int(many)) for name, form, coding, many in named}
    for form, codec in AUDIO_FORMATS:
        made[f"{form}, {codec}"] = recording_in(tones[:, 0], 16000, form, codec)
    return made


Reader = Callable[[bytes], Any]
READERS: dict[str, tuple[Callable[[], dict[str, bytes]], tuple[Reader, ...]]] = {
    "images": (images, (lambda one: size_of(one, IMAGES), lambda one: read_image(one, IMAGES))),
    "videos": (
        video_files,
        (lambda one: open_video(one, IMAGES), lambda one: [*read_video(one, IMAGES).frames]),
    ),
    "sounds": (audio_files, (lambda one: read_audio(one, 16000, limits=AUDIO_LIMITS),)),
}


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Flip bits, cut, put a number into a field (most of them in the header), swap, repeat or insert."""
    made, end = bytearray(content), len(content)
    first, second, third = sorted(draw.randrange(end) for _ in range(3))
    how = draw.randrange(6)
    if how == 0:
        for _ in range(draw.randrange(1, 4)):
            made[draw.randrange(end)] ^= 1 << draw.randrange(8)
    elif how == 1:
        del made[first:]
    elif how == 2:
        size, at = (
            draw.choice((1, 2, 4, 8)),
            draw.randrange(draw.choice((end, *[min(64, end)] * 3))),
        )
        number = draw.choice(
            (0, 1, (1 << 8 * size - 1) - 1, 1 << 8 * size - 1, (1 << 8 * size) - 1)
        )
        made[at : at + size] = number.to_bytes(size, draw.choice(("little", "big")))
    elif how == 3:
        made[first:third] = made[second:third] + made[first:second]
    elif how == 4:
        made[second:] = made[first:]
    else:
        made[first:first] = draw.randbytes(draw.randrange(1, 9))
    return bytes(made)


class Memory:
    """The most memory that a process has had since a moment, if the system records it."""

    def __init__(self) -> None:
        self._status = Path("/proc/self/status")
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            self._status = Path("/dev/null")
        self._before = self._of("VmRSS")

    def _of(self, name: str) -> int:
        text = self._status.read_text() if self._status.exists() else ""
        found = re.search(rf"{name}:\s+(\d+) kB", text)
        return int(found[1]) << 10 if found else 0

    def grown(self) -> int:
        return self._of("VmHWM") - self._before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
@CASES
@given(seed=st.integers(0, 1 << 32))
def test_a_damaged_file_of_any_format_is_read_or_refused(name: str, seed: int) -> None:
    seeds, readers = READERS[name]
    draw = random.Random(seed)
    content = damaged(draw.choice([*seeds().values()]), draw)
    for read in readers:
        memory, begun, message = Memory(), time.process_time(), ""
        try:
            read(content)
        except ZooError as error:
            message = str(error)
        assert len(message) < 1000
        assert " object at 0x" not in message
        assert memory.grown() < BYTES
        assert time.process_time() - begun < SECONDS


@pytest.mark.parametrize("name", READERS)
def test_a_whole_file_of_every_format_is_read(name: str) -> None:
    seeds, readers = READERS[name]
    for content in seeds().values():
        for read in readers:
            read(content)


def test_a_frame_of_another_size_is_refused_before_it_is_decoded() -> None:
    small, large = Image.new("L", (4, 4)), Image.new("L", (5, 5))
    content = written(small, "TIFF", save_all=True, append_images=[large])
    for kind, form in ((3, "<HHIHH"), (4, "<HHII")):
        fields = (0,) if kind == 3 else ()
        wide = struct.pack(form, 256, kind, 1, 60_000, *fields)
        content = content.replace(struct.pack(form, 256, kind, 1, 5, *fields), wide)
    with pytest.raises(MediaError, match=r"2 sizes, \(4, 4\) and \(60000, 5\)"):
        read_video(content)


def test_frames_are_counted_up_to_the_limit() -> None:
    first, *rest = [Image.new("L", (1, 1))] * 30
    content = written(first, "TIFF", save_all=True, append_images=rest)
    with pytest.raises(MediaError, match="it has 11 frames"):
        open_video(content, ImageLimits(frames=10))
    assert open_video(content).nbytes == 31 * 12


def test_a_recording_writes_nothing_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """libsndfile prints the damaged blocks of some formats, and seeks before the start of others."""
    import soundfile

    out = io.BytesIO()
    soundfile.write(out, np.zeros(400), 8000, "PCM_16", format="SDS")
    blocks = bytearray(out.getvalue())
    blocks[40:] = bytes(len(blocks) - 40)
    with pytest.raises(MediaError, match="Expected WAV, FLAC, MP3"):
        read_audio(bytes(blocks), 8000)
    content = io.BytesIO()
    soundfile.write(content, np.zeros(8), 8000, "PCM_16", format="AIFF")
    with pytest.raises(MediaError):
        read_audio(content.getvalue().replace(b"SSND", b"NONE"), 8000)
    assert capfd.readouterr() == ("", "")

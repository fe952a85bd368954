# SPDX-License-Identifier: Apache-2.0
"""Images of every kind become the pixels that Hugging Face sees; what is none is refused, and says so."""

import io
import json
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from transformers import AutoImageProcessor, CLIPImageProcessorPil
from transformers.image_transforms import convert_to_rgb
from transformers.image_utils import load_image

from qeff_zoo.errors import MediaError
from qeff_zoo.media import pixels
from qeff_zoo.media.image_processor import load_image_processor
from qeff_zoo.media.images import ImageLimits, read_image

#: Of an odd size, and with an edge that turning moves.
COLOURS = np.random.default_rng(0).integers(0, 256, (13, 7, 3), np.uint8)
IMAGE = Image.fromarray(COLOURS)


def with_alpha() -> Image.Image:
    image = IMAGE.convert("RGBA")
    image.putalpha(Image.fromarray(np.arange(91, dtype=np.uint8).reshape(13, 7) * 2))
    return image


def written(image: Image.Image, form: str = "PNG", **more: Any) -> bytes:
    made = io.BytesIO()
    image.save(made, form, **more)
    return made.getvalue()


def turned(how: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = how
    return written(IMAGE, "JPEG", exif=exif)


def moving(form: str) -> bytes:
    """Write an animation of two frames."""
    return written(IMAGE, form, save_all=True, append_images=[ImageOps.invert(IMAGE)])


KINDS: dict[str, Callable[[], bytes]] = {
    "colours": lambda: written(IMAGE),
    "grey": lambda: written(IMAGE.convert("L")),
    "black and white": lambda: written(IMAGE.convert("1")),
    "a palette": lambda: written(IMAGE.convert("P", palette=Image.Palette.ADAPTIVE)),
    "a palette with a clear colour": lambda: written(
        IMAGE.convert("P", palette=Image.Palette.ADAPTIVE), transparency=3
    ),
    "alpha": lambda: written(with_alpha()),
    "grey and alpha": lambda: written(with_alpha().convert("LA")),
    "a clear colour": lambda: written(IMAGE, transparency=tuple(map(int, COLOURS[2, 3]))),
    "CMYK": lambda: written(IMAGE.convert("CMYK"), "JPEG"),
    "YCbCr": lambda: written(IMAGE, "JPEG"),
    "a moving GIF": lambda: moving("GIF"),
    "a moving WebP": lambda: moving("WEBP"),
    "a moving PNG": lambda: moving("PNG"),
    "TIFF": lambda: written(IMAGE, "TIFF"),
    "BMP": lambda: written(IMAGE, "BMP"),
    **{f"turned, {how}": lambda how=how: turned(how) for how in range(1, 9)},  # type: ignore[misc]
}


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_equal_those_of_hugging_face(kind: str, tmp_path: Path) -> None:
    """Of a file as `load_image` reads it, which drops alpha; of an image as processors convert it."""
    data = KINDS[kind]()
    (tmp_path / "any.name").write_bytes(data)
    loaded = load_image(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(read_image(data), convert_to_rgb(loaded, return_numpy=True))
    given = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(read_image(given), convert_to_rgb(given, return_numpy=True))
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": 9}, crop_size={"height": 8, "width": 8}
    )
    processor.save_pretrained(tmp_path)
    ours = load_image_processor(tmp_path)
    for shown, reference in ((tmp_path / "any.name", loaded), (given, given)):
        wanted = processor(reference, return_tensors="np")["pixel_values"]
        np.testing.assert_array_equal(ours([shown])["pixel_values"], wanted)


#: Settings of processors of image classifiers: the default ones, as they are published, and those of each branch.
CLASSIFIERS: dict[str, list[dict[str, Any]]] = {
    "EfficientNet": [
        {}, {"include_top": False}, {"do_center_crop": True, "do_normalize": False},
        {"rescale_offset": True, "rescale_factor": 1 / 127.5},
    ],
    "Levit": [{}, {"size": {"height": 50, "width": 40}, "crop_size": 32}],
    "MobileNetV1": [{}],
    "MobileNetV2": [{"crop_size": 300}],
    "MobileViT": [{}, {"do_flip_channel_order": False, "crop_size": 300}, {"do_rescale": False}],
    "PoolFormer": [
        {}, {"size": {"height": 50, "width": 40}, "crop_size": 32, "crop_pct": 0.95},
        {"size": {"height": 50, "width": 50}, "crop_size": 48}, {"do_resize": False},
    ],
    "Pvt": [{}, {"size": 64}],
    "Segformer": [{}, {"size": 64, "do_center_crop": True, "crop_size": 32}],
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_processors_of_classifiers_equal_those_of_hugging_face(name: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for changes in CLASSIFIERS[name]:
        written = {"image_processor_type": f"{name}ImageProcessor", **changes}
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
        ours = load_image_processor(tmp_path)
        reference = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
        for size in ((1, 1), (30, 50), (300, 20)):
            image = Image.fromarray(generator.integers(0, 256, (*size, 3), np.uint8))
            wanted = reference(image, return_tensors="np")["pixel_values"]
            np.testing.assert_array_equal(ours([image])["pixel_values"], wanted, str(changes))


def test_a_photograph_is_turned_and_an_animation_is_its_first_frame() -> None:
    assert [read_image(turned(how)).shape[:2] for how in (1, 6)] == [(13, 7), (7, 13)]
    np.testing.assert_array_equal(read_image(moving("PNG")), COLOURS)


def test_sixteen_bits_of_grey_lose_their_low_ones() -> None:
    """Pillow, and so transformers, makes all but the darkest white."""
    grey = np.arange(0, 65536, 4096, dtype=np.uint16).reshape(4, 4)
    found = read_image(written(Image.fromarray(grey)))
    np.testing.assert_array_equal(found[..., 1], grey >> 8)


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png(width: int, height: int, *, described: bytes = b"") -> bytes:
    """Write a PNG of black and white that says how large it is, and is empty."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    rows = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + header + described + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


WHOLE = written(IMAGE.resize((64, 64)), "JPEG")
WRONG: dict[str, tuple[Any, str]] = {
    "nothing": (b"", r"is empty\. Expected a whole file"),
    "a text": (b"hello", r"it is text\. Expected one of PNG"),
    "a drawing": (
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        r"it is an SVG drawing\. Expected one of PNG",
    ),
    "a JPEG of four bytes": (WHOLE[:4], "it is a JPEG image whose header is damaged"),
    "numbers": (bytes(range(128, 256)), r"it is of an unknown kind\. Expected one of PNG"),
    "a header alone": (written(IMAGE)[:20], "its header is damaged"),
    "a truncated JPEG": (WHOLE[: len(WHOLE) // 2], "cut short"),
    "a truncated PNG": (written(IMAGE)[:150], "cut short"),
    "100 megapixels": (png(10_000, 10_000), r"100,000,000 pixels. Expected at most 80,000,000"),
    "a decompression bomb": (png(60_000, 60_000), "more pixels than Pillow opens"),
    "a bomb of words": (
        png(8, 8, described=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(100_000_000)))),
        "Decompressed data too large",
    ),
    "32 bits": (written(Image.new("F", (4, 4)), "TIFF"), "whose black and white are undefined"),
    "no file": ("no/such/picture.png", "image 'no/such/picture.png': No such file"),
    "a folder": (str(Path(__file__).parent), "Is a directory"),
    "a URL": ("https://images.example/a.png", "is a URL. Expected .* Download it"),
    "nobody": (None, "of type NoneType; expected a path"),
    "a number": (5, "of type int; expected a path"),
    "an array of floats": (np.zeros((4, 4, 3)), "expected uint8"),
    "an array without rows": (np.zeros((0, 4, 3), np.uint8), "expected uint8"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_no_image_is_refused(what: str) -> None:
    """Before it is decoded where it is too large; no warning of another library, and nothing of ours, stands in it."""
    given, message = WRONG[what]
    with warnings.catch_warnings(record=True) as given_settings:
        warnings.simplefilter("always")
        with pytest.raises(MediaError, match=message) as found:
            read_image(given)
    assert not given_settings
    assert " object at 0x" not in str(found.value)
    assert "[Errno" not in str(found.value)


def test_one_pixel_is_an_image() -> None:
    found = read_image(written(Image.new("RGB", (1, 1), (1, 2, 3))))
    assert found.tolist() == [[[1, 2, 3]]]
    with pytest.raises(MediaError, match="Expected at most 90"):
        read_image(IMAGE, ImageLimits(pixels=90))


SIDES = st.integers(1, 40)


@settings(max_examples=100, derandomize=True, database=None)
@given(size=st.tuples(SIDES, SIDES), new=st.tuples(SIDES, SIDES), strip=st.integers(1, 400))
@pytest.mark.parametrize("resample", Image.Resampling)
def test_strips_resize_to_the_same_pixels(
    resample: int, size: tuple[int, int], new: tuple[int, int], strip: int
) -> None:
    given = np.random.default_rng(strip).integers(0, 256, (*size, 3), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pixels, "_LARGE", 0)
        patch.setattr(pixels, "_STRIP", strip)
        found = pixels.resize(given, *new, resample)
    assert np.array_equal(found, np.asarray(Image.fromarray(given).resize(new[::-1], resample)))


def test_a_large_image_is_resized_in_strips() -> None:
    given = np.repeat(np.repeat(COLOURS, 120, 0), 120, 1)
    found = pixels.resize(given, 33, 44, Image.Resampling.LANCZOS)
    expected = Image.fromarray(given).resize((44, 33), Image.Resampling.LANCZOS)
    assert np.array_equal(found, np.asarray(expected))

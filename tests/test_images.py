# SPDX-License-Identifier: Apache-2.0
"""Pictures and processors: bit for bit what transformers' PIL backend makes of them, and clear errors for the rest."""

import importlib
import json
import random
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from qeff_zoo.errors import CheckpointError, MediaError, UnsupportedModelError
from qeff_zoo.media.image_processor import PROCESSORS, image_processor, load_image_processor
from qeff_zoo.media.images import LIMITS, ImageLimits, read_image
from qeff_zoo.media.pixels import between_edges, resize

NUMBERS = np.random.default_rng(0)


def noise(width: int, height: int, channels: int = 3) -> Image.Image:
    """A picture with edges and smooth parts: noise at two scales."""
    coarse = NUMBERS.integers(0, 256, (5, 7, channels), dtype=np.uint8)
    fine = NUMBERS.integers(0, 256, (height, width, channels), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return Image.fromarray((np.asarray(smooth) // 4 * 3 + fine // 4).astype(np.uint8))


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


# --- processors --------------------------------------------------------------------------------------------------

MODULES = {
    "Beit": "beit", "Bit": "bit", "CLIP": "clip", "ConvNext": "convnext", "DeiT": "deit", "Gemma3": "gemma3",
    "GotOcr2": "got_ocr2", "Idefics3": "idefics3", "Llava": "llava", "LlavaNext": "llava_next", "Pixtral": "pixtral",
    "Qwen2VL": "qwen2_vl", "Siglip": "siglip", "SmolVLM": "smolvlm", "ViT": "vit",
}  # fmt: skip

SMALL = {"height": 40, "width": 56}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in PROCESSORS),
    ("BeitImageProcessor", {"size": SMALL, "do_center_crop": True, "crop_size": 33}),
    ("CLIPImageProcessor", {"size": 97, "crop_size": {"height": 101, "width": 64}, "resample": 1}),
    ("CLIPImageProcessor", {"do_resize": False, "crop_size": 300, "do_normalize": False}),
    ("CLIPImageProcessor", {"size": {"shortest_edge": 61, "longest_edge": 130}, "crop_size": 60}),
    ("CLIPImageProcessor", {"do_center_crop": False, "do_pad": True, "size": 30}),
    ("CLIPImageProcessor", {"size": {"max_height": 60, "max_width": 80}, "crop_size": 50}),
    ("ConvNextImageProcessor", {"size": 100, "crop_pct": 0.9}),
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}, "resample": 3}),
    ("Gemma3ImageProcessor", {
        "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 50, "pan_and_scan_max_num_crops": 4,
        "pan_and_scan_min_ratio_to_activate": 1.2, "size": SMALL,
    }),
    ("GotOcr2ImageProcessor", {"crop_to_patches": True, "size": SMALL}),
    ("GotOcr2ImageProcessor", {"crop_to_patches": True, "size": 64, "min_patches": 2, "max_patches": 6}),
    ("Idefics3ImageProcessor", {"size": {"longest_edge": 150}, "max_image_size": {"longest_edge": 64}}),
    ("Idefics3ImageProcessor", {"do_image_splitting": False, "max_image_size": {"longest_edge": 64}}),
    ("LlavaImageProcessor", {"do_pad": True, "size": 61, "crop_size": 61}),
    ("LlavaNextImageProcessor", {
        "image_grid_pinpoints": [[64, 96], [96, 64], [96, 96]], "size": {"shortest_edge": 32}, "crop_size": 32,
    }),
    ("PixtralImageProcessor", {"patch_size": 14, "size": {"longest_edge": 100}}),
    ("Qwen2VLImageProcessor", {"patch_size": 16, "min_pixels": 4096, "max_pixels": 40000}),
    ("Qwen2VLImageProcessor", {
        "size": {"shortest_edge": 65536, "longest_edge": 99999}, "patch_size": 8,
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }),
    ("SiglipImageProcessor", {"size": SMALL, "rescale_factor": 1 / 127.5}),
    ("ViTImageProcessor", {"size": 31, "do_rescale": False}),
    ("ViTImageProcessor", {"size": [33, 47], "do_rescale": False, "do_normalize": False}),
]  # fmt: skip


def theirs(name: str, settings: dict[str, Any], pictures: list[Image.Image]) -> dict[str, Any]:
    """What transformers' PIL backend makes of the pictures."""
    stem = name.removesuffix("ImageProcessor")
    module = f"transformers.models.{MODULES[stem]}.image_processing_pil_{MODULES[stem]}"
    processor = getattr(importlib.import_module(module), f"{name}Pil")(**settings)
    more = {"return_row_col_info": True} if hasattr(processor, "return_row_col_info") else {}
    return dict(processor(pictures, return_tensors="np", **more))


def agree(ours: dict[str, Any], hf: dict[str, Any]) -> None:
    assert ours.keys() == hf.keys()
    for key, value in hf.items():
        assert ours[key].shape == np.shape(value), key
        assert ours[key].dtype == np.asarray(value).dtype, key
        assert np.array_equal(ours[key], value), key


@pytest.mark.parametrize(
    ("name", "settings"), SETTINGS, ids=lambda value: value if isinstance(value, str) else None
)
@pytest.mark.parametrize("size", [(93, 61), (37, 120), (1, 1), (225, 224)], ids=str)
def test_processors_are_transformers_own(
    name: str, settings: dict[str, Any], size: tuple[int, int]
) -> None:
    pictures = [noise(*size)]
    agree(
        image_processor({"image_processor_type": name, **settings})(pictures),
        theirs(name, settings, pictures),
    )


@pytest.mark.parametrize(
    ("name", "settings"), [case for case in SETTINGS if case[1].get("do_resize", True)],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_several_pictures_at_once(name: str, settings: dict[str, Any]) -> None:
    pictures = [noise(80, 61), noise(50, 90)]
    if settings.get("size") == {"shortest_edge": 61, "longest_edge": 130}:
        settings = {**settings, "crop_size": 61}
    agree(
        image_processor({"image_processor_type": name, **settings})(pictures),
        theirs(name, settings, pictures),
    )


def test_sizes_at_random_are_transformers_own() -> None:
    """Roundings differ at single sizes: many sizes for each rule that computes one."""
    draw = random.Random(5)
    kinds = [
        ("CLIPImageProcessor", {"size": 9, "crop_size": 8}),
        ("ConvNextImageProcessor", {"size": 9}),
        ("GotOcr2ImageProcessor", {"crop_to_patches": True, "size": 5}),
        ("Idefics3ImageProcessor", {"size": {"longest_edge": 21}, "max_image_size": {"longest_edge": 7}}),
        ("LlavaNextImageProcessor", {
            "image_grid_pinpoints": [[6, 12], [12, 6], [12, 12], [18, 6], [6, 18]], "size": 6, "crop_size": 6,
        }),
        ("PixtralImageProcessor", {"patch_size": 3, "size": {"longest_edge": 20}}),
        ("Qwen2VLImageProcessor", {"patch_size": 2, "min_pixels": 64, "max_pixels": 400}),
    ]  # fmt: skip
    for name, settings in kinds:
        processor = image_processor({"image_processor_type": name, **settings})
        for _ in range(40):
            pictures = [noise(draw.randint(1, 60), draw.randint(1, 60))]
            try:
                expected = theirs(name, settings, pictures)
            except ValueError:  # a side of 0 pixels
                with pytest.raises(MediaError, match=r"too narrow|200 times"):
                    processor(pictures)
                continue
            agree(processor(pictures), expected)


@pytest.mark.parametrize(
    ("document", "name", "size"),
    [
        ({"feature_extractor_type": "CLIPFeatureExtractor", "size": 224}, "CLIP", {"shortest_edge": 224}),
        ({"image_processor_type": "ViTFeatureExtractor", "size": 99}, "ViT", {"height": 99, "width": 99}),
        ({"image_processor_type": "SiglipImageProcessorFast"}, "Siglip", {"height": 224, "width": 224}),
        ({"image_processor_type": "ConvNextFeatureExtractor", "size": 224}, "ConvNext", {"shortest_edge": 224}),
        (
            {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 5000},
            "Qwen2VL",
            {"shortest_edge": 3136, "longest_edge": 5000},
        ),
        (
            {"image_processor_type": "Qwen2VLImageProcessor", "size": {"min_pixels": 4, "max_pixels": 9}},
            "Qwen2VL",
            {"shortest_edge": 4, "longest_edge": 9},
        ),
        (
            {"image_processor": {"image_processor_type": "PixtralImageProcessor"}, "patch_size": 1},
            "Pixtral",
            {"longest_edge": 1024},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_old_and_new_spellings(
    document: dict[str, Any], name: str, size: dict[str, int], tmp_path: Path
) -> None:
    file = "processor_config.json" if "image_processor" in document else "preprocessor_config.json"
    (tmp_path / file).write_text(json.dumps(document))
    (tmp_path / "processor_config.json").touch()
    if not (tmp_path / "processor_config.json").read_text():
        (tmp_path / "processor_config.json").write_text('{"processor_class": "P", "patch_size": 3}')
    processor = load_image_processor(tmp_path)
    assert (processor.name, processor.settings["size"]) == (f"{name}ImageProcessor", size)


def test_a_model_may_choose_otherwise_than_the_file() -> None:
    document = {"image_processor_type": "GotOcr2ImageProcessor", "crop_to_patches": None}
    assert image_processor(document).settings["crop_to_patches"] is False
    assert image_processor(document, crop_to_patches=True).settings["crop_to_patches"] is True
    assert image_processor({"size": 3}, "ViTImageProcessor").name == "ViTImageProcessor"


@pytest.mark.parametrize(
    ("document", "error", "text"),
    [
        ({"image_processor_type": "Sam3ImageProcessor"}, UnsupportedModelError, "'Sam3ImageProcessor'"),
        ({"size": 224}, CheckpointError, "names no `image_processor_type`"),
        ({"image_processor_type": "ViTImageProcessor", "size": "big"}, CheckpointError, "`size` is 'big'"),
        ({"image_processor_type": "ViTImageProcessor", "size": {"side": 3}}, CheckpointError, "`size` is"),
        ({"image_processor_type": "ViTImageProcessor", "size": 0}, CheckpointError, "`size` is 0"),
        ({"image_processor_type": "ViTImageProcessor", "image_mean": [1, 2]}, CheckpointError, "`image_mean`"),
    ],
    ids=str,
)  # fmt: skip
def test_processors_that_are_refused(document: dict[str, Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        image_processor(document)


def test_folders_without_a_processor_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no settings of a processor"):
        load_image_processor(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        load_image_processor(tmp_path)


# --- pictures ----------------------------------------------------------------------------------------------------


def palette_with_transparency() -> Image.Image:
    image = noise(31, 23).quantize(20)
    image.info["transparency"] = 3
    return image


KINDS: dict[str, Callable[[], Image.Image]] = {
    "1 bit": lambda: noise(31, 23).convert("1"),
    "grey": lambda: noise(31, 23).convert("L"),
    "grey and alpha": lambda: noise(31, 23, 2),
    "palette": lambda: noise(31, 23).quantize(17),
    "palette with transparency": palette_with_transparency,
    "alpha": lambda: noise(31, 23, 4),
    "CMYK": lambda: noise(31, 23).convert("CMYK"),
    "YCbCr": lambda: noise(31, 23).convert("YCbCr"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_pixel_is_read_as_transformers_does(kind: str) -> None:
    picture = KINDS[kind]()
    ours = image_processor({"image_processor_type": "CLIPImageProcessor"})([picture])
    agree(ours, theirs("CLIPImageProcessor", {}, [picture]))


@pytest.mark.parametrize(
    ("kind", "format"),
    [
        ("1 bit", "PNG"), ("palette with transparency", "PNG"), ("palette with transparency", "GIF"),
        ("alpha", "WEBP"), ("CMYK", "JPEG"), ("CMYK", "TIFF"), ("grey", "BMP"), ("grey and alpha", "PNG"),
    ],
)  # fmt: skip
def test_files_are_read_as_transformers_does(kind: str, format: str, tmp_path: Path) -> None:
    path = tmp_path / "picture"
    path.write_bytes(encoded(KINDS[kind](), format))
    with Image.open(path) as picture:
        expected = theirs("CLIPImageProcessor", {}, [picture])
    processor = image_processor({"image_processor_type": "CLIPImageProcessor"})
    for source in (path, str(path), path.read_bytes()):
        agree(processor([source]), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = encoded(noise(31, 23), "JPEG", exif=exif, quality=95)
    expected = ImageOps.exif_transpose(Image.open(BytesIO(file)))
    assert np.array_equal(read_image(file), np.asarray(expected.convert("RGB")))
    assert read_image(file).shape == ((23, 31, 3) if orientation < 5 else (31, 23, 3))


def test_16_bits_of_grey_keep_their_high_ones() -> None:
    """Pillow clips them, and all but the darkest become white."""
    values = np.array([[0, 255, 256, 4660, 65535]], np.uint16)
    for format, options in (("PNG", {}), ("TIFF", {}), ("PNG", {"transparency": 256})):
        grey = read_image(encoded(Image.fromarray(values), format, **options))[0, :, 0]
        assert grey.tolist() == [0, 0, 255 if options else 1, 18, 255]


def test_the_first_frame_of_an_animation_counts() -> None:
    frames = [noise(31, 23) for _ in range(3)]
    for format, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        file = encoded(frames[0], format, save_all=True, append_images=frames[1:], **options)
        assert np.array_equal(read_image(file), np.asarray(frames[0]))
    file = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.array_equal(read_image(file), np.asarray(Image.open(BytesIO(file)).convert("RGB")))


def test_arrays_are_pictures() -> None:
    grey, color, alpha = (noise(31, 23, count) for count in (1 + 1, 3, 4))
    assert np.array_equal(read_image(np.asarray(color)), np.asarray(color))
    assert np.array_equal(read_image(np.asarray(alpha)), read_image(alpha))
    values = np.asarray(grey)[:, :, 0]
    assert np.array_equal(read_image(values), read_image(values[:, :, None]))
    channels_first = np.zeros((3, 9, 9), np.uint8)
    for wrong in (values.astype(np.float32), values[None, None], values[:0], channels_first):
        with pytest.raises(MediaError, match="Cannot read a picture in an array"):
            read_image(wrong)


def test_what_is_read_is_left_as_it_was() -> None:
    picture = noise(31, 23)
    before = picture.tobytes()
    processor = image_processor({"image_processor_type": "ViTImageProcessor", "do_resize": False})
    processor([picture])[("pixel_values")][:] = 0
    assert picture.tobytes() == before


# --- bad input ---------------------------------------------------------------------------------------------------


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes that says it has many pixels."""
    file = bytearray(encoded(Image.new("1", (1, 1))))
    file[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    file[29:33] = zlib.crc32(file[12:29]).to_bytes(4, "big")
    return bytes(file)


@pytest.mark.parametrize(
    "size", [(10_000, 8_001), (10_000, 10_000), (40_000, 40_000), (1, 2**31 - 1)]
)
@pytest.mark.filterwarnings("default::PIL.Image.DecompressionBombWarning")
def test_bombs_are_refused_before_they_are_decoded(size: tuple[int, int]) -> None:
    with pytest.raises(MediaError, match=r"pixels.*at most 80,000,000"):
        read_image(bomb(*size))


def test_limits_are_the_callers() -> None:
    file = encoded(noise(31, 23))
    for limits in (ImageLimits(pixels=712), ImageLimits(file_bytes=100)):
        with pytest.raises(MediaError, match="at most"):
            read_image(file, limits)
        with pytest.raises(MediaError, match="at most"):
            image_processor({}, "ViTImageProcessor")([file], limits)
    with pytest.raises(MediaError, match="at most 712"):
        read_image(noise(31, 23), ImageLimits(pixels=712))
    assert LIMITS.pixels < Image.MAX_IMAGE_PIXELS  # what is accepted raises no warning of Pillow's


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.filterwarnings("ignore:Truncated File Read")
def test_truncated_files_are_refused(format: str, part: float) -> None:
    file = encoded(noise(61, 43), format)
    with pytest.raises(MediaError, match=r"Cannot read a picture of [\d,]+ bytes: .*(damaged|no picture)"):  # fmt: skip
        read_image(file[: int(len(file) * part)])


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF"])
@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_pixels_or_an_error(format: str) -> None:
    draw = random.Random(7)
    whole = encoded(noise(31, 23), format)
    for _ in range(150):
        file = bytearray(whole)
        for _ in range(draw.randint(1, 8)):
            where = draw.choice([len(file), 120])  # headers are damaged as often as the rest
            file[draw.randrange(min(len(file), where))] = draw.randrange(256)
        try:
            pixels = read_image(bytes(file), ImageLimits(pixels=10_000_000))
        except MediaError:
            continue
        assert pixels.dtype == np.uint8
        assert pixels.shape[2] == 3


@pytest.mark.parametrize(
    "file", [b"", b"hello", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg/>"]
)
def test_what_is_no_picture_is_refused(file: bytes) -> None:
    with pytest.raises(MediaError, match=r"it is no picture.*Expected one of PNG, JPEG"):
        read_image(file)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    for path in (tmp_path / "none.png", tmp_path, "a\0b"):
        with pytest.raises(MediaError, match=r"Cannot read the picture '.*Correct the path"):
            read_image(path)


def test_32_bit_pictures_are_refused() -> None:
    for mode in ("I", "F"):
        with pytest.raises(MediaError, match="32-bit numbers"):
            read_image(Image.new(mode, (3, 3)))


def test_no_pictures() -> None:
    with pytest.raises(MediaError, match="the list is empty"):
        image_processor({}, "ViTImageProcessor")([])


def test_long_narrow_pictures_do_not_explode() -> None:
    """Resizing the short side of 1 x 500,000 pixels to 224 would make 25 gigapixels."""
    with pytest.raises(MediaError, match="too narrow"):
        image_processor({}, "CLIPImageProcessor")([Image.new("RGB", (500_000, 1))])
    with pytest.raises(MediaError, match="200 times"):
        image_processor({}, "Qwen2VLImageProcessor")([Image.new("RGB", (201, 1))])
    with pytest.raises(MediaError, match="too narrow"):
        resize(np.zeros((2, 2, 3), np.uint8), 0, 5, 2)


def test_pictures_of_different_sizes_need_a_common_one() -> None:
    with pytest.raises(MediaError, match="Cannot put 2 pictures into one array"):
        image_processor({"do_resize": False}, "ViTImageProcessor")([noise(3, 4), noise(4, 3)])


def test_sides_are_kept_where_they_are_right() -> None:
    assert between_edges(np.zeros((10, 15, 3), np.uint8), 10, 99) == (10, 15)

# SPDX-License-Identifier: Apache-2.0
"""Images, read without trust: a path, bytes, a Pillow image or an array in, RGB pixels out.

Pixels equal those of Hugging Face's processors, with two bugs fixed: a photograph is rotated by its EXIF orientation,
and 16-bit grey is reduced to 8 bits by dropping the low ones, where Pillow turns all but the darkest pixels white.
Alpha is handled as there: the alpha of a file is dropped, since transformers drops it on loading, and an image or
array of the caller is composed onto white, as is any image with a transparent color. Of an animation, the first frame
is read.
"""

import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.errors import MediaError
from qeff_zoo.media.signatures import described

if TYPE_CHECKING:
    from PIL import Image

ImageSource: TypeAlias = Union[str, "os.PathLike[str]", bytes, "Image.Image", NDArray[Any]]
Pixels: TypeAlias = NDArray[np.uint8]  # (height, width, 3): red, green, blue

# Formats of images alone: others are drawings or containers, and Pillow starts programs to read some of them.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")

# Errors that Pillow's decoders raise for a file whose contents do not match its header.
_DAMAGED = (
    OSError, RuntimeError, SyntaxError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, EOFError,
    struct.error, zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class ImageLimits:
    """Maximum size of an image, checked before anything is decoded.

    Attributes:
        pixels: Height times width.
        side: Height or width.
        file_bytes: Bytes of the encoded image.
        seconds: Time for the download of an image from a web server.
        frames: Number of frames in a video.
        decoded_pixels: Pixels of all frames of a compressed video, which are decoded one after the other.
    """

    pixels: int = 80_000_000
    side: int = 65_535
    file_bytes: int = 100_000_000
    seconds: float = 30.0
    frames: int = 16_384
    decoded_pixels: int = 20_000_000_000


LIMITS = ImageLimits()
#: Memory for each pixel of an image that is decoded, by the decoder with the largest need; and of a WebP image, whose
#: decoder holds canvases of an animation.
_BYTES_OF_PIXEL, _BYTES_OF_WEBP = 12, 22
_SIDEWAYS = range(5, 9)  # EXIF orientations that swap width and height
_STRIP = 1 << 16  # pixels converted at a time
#: Reads of a header, each of which takes Python microseconds, and some formats byte by byte. Photographs have hundreds.
_READS = 10_000
_BYTES_OF_READ = (
    64  # of the contents behind it, at least; encoders of PNG write 4 KiB or more in a chunk
)
#: Scans of a JPEG image, and pixels of all its scans, each of which is decoded for the whole image; encoders write 10.
_SCANS = 100
_SCANNED = 1_500_000_000
_SCAN = b"\xff\xda"


def read_image(source: ImageSource, limits: ImageLimits = LIMITS) -> Pixels:
    """Read one image.

    Args:
        source: A path, the bytes of a file, a Pillow image, or an array of uint8: (height, width) of grey, or
            (height, width, channels) with 1, 3 or 4 channels (grey; red, green, blue; and alpha).
        limits: Maximum size.

    Raises:
        MediaError: If the image cannot be read, is damaged, is too large, or has no 8-bit pixels.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MediaError(
            "Cannot read images: Pillow is not installed. Run `pip install 'qeff-zoo[media]'`."
        ) from error

    name = _name(source)
    if isinstance(source, np.ndarray):
        return _pixels(_from_array(source, name, limits), name)
    if isinstance(source, Image.Image):
        check_size(source.size, name, limits)
        return _pixels(source, name)
    return _pixels(open_image(source, limits), name, opaque=True)


def size_of(source: ImageSource, limits: ImageLimits = LIMITS) -> tuple[int, int]:
    """Return the width and height of an image; only the header of a file is read.

    Args:
        source: The image, in any form that `read_image` accepts.
        limits: Largest size.

    Raises:
        MediaError: If it is no image, or too large.
    """
    if isinstance(source, np.ndarray):
        return source.shape[1], source.shape[0]
    if isinstance(source, str | bytes | os.PathLike):
        return _turned(open_image(source, limits))
    size: tuple[int, int] = source.size
    return size


def decoded_bytes_of(source: ImageSource, size: tuple[int, int]) -> int:
    """Return the memory of an image during its decoding.

    Args:
        source: The image, in any form that `read_image` accepts.
        size: Width and height, see `size_of`.
    """
    is_webp = isinstance(source, bytes) and source[8:12] == b"WEBP"
    return (_BYTES_OF_WEBP if is_webp else _BYTES_OF_PIXEL) * size[0] * size[1]


def blank(height: int, width: int) -> Pixels:
    """Return an image without contents, which takes no memory, for the computation of shapes."""
    return np.broadcast_to(np.uint8(0), (height, width, 3))


def is_blank(array: NDArray[Any]) -> bool:
    """Return whether an array has only a shape, as `blank` and the results of its processing."""
    return not any(array.strides)


def open_image(
    source: "str | os.PathLike[str] | bytes",
    limits: ImageLimits = LIMITS,
    *,
    expected: str = f"one of {', '.join(FORMATS)}",
) -> "Image.Image":
    """Read the header of an image file; errors are those of `read_image`.

    Args:
        source: A path, or the bytes of a file.
        limits: Maximum size.
        expected: Formats that an error names.
    """
    from PIL import Image, UnidentifiedImageError

    name = _name(source)
    content = content_of(source, name, limits)
    file = _File(content)
    try:
        with warnings.catch_warnings():  # about a size that is checked here
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(file, formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise MediaError(_too_large(name, "more pixels than Pillow opens", limits)) from error
    except _DAMAGED as error:
        unknown = isinstance(error, UnidentifiedImageError)
        problem = _not_opened(content) if unknown else f"its header is damaged ({_reason(error)})"
        raise MediaError(
            f"Cannot read {name}: {problem}. Expected {expected}. Open it in another program to see whether it is "
            "whole, or convert it."
        ) from error
    check_size(image.size, name, limits)
    if image.format in ("JPEG", "MPO"):
        _check_scans(content.count(_SCAN), image.size, name)
    file.reads = _READS + len(content) // _BYTES_OF_READ
    return image


class _File(BytesIO):
    """File with a limited number of reads.

    Args:
        content: Content of the file.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        #: Number of further reads.
        self.reads = _READS

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes.

        Raises:
            OSError: There were too many reads.
        """
        self.reads -= 1
        if self.reads < 0:
            raise OSError("it has too many parts")
        return super().read(size)


def _check_scans(count: int, size: tuple[int, int], name: str) -> None:
    width, height = size
    if count > _SCANS or count * width * height > _SCANNED:
        most = min(_SCANS, _SCANNED // (width * height))
        raise MediaError(
            f"Cannot read {name}: it is a JPEG of {width} x {height} pixels with {count:,} scans. Expected at most "
            f"{most:,}. Save it again, without progressive encoding."
        )


def _not_opened(content: bytes) -> str:
    """Return what a file is that Pillow does not recognize."""
    kind = described(content)
    is_damaged = kind.upper().endswith(tuple(f" {format} IMAGE" for format in FORMATS))
    return f"it is {kind} whose header is damaged" if is_damaged else f"it is {kind}"


def _turned(image: "Image.Image") -> tuple[int, int]:
    """Return the width and height of an image after rotation by its EXIF orientation."""
    from PIL import ExifTags, Image

    width, height = image.size
    try:
        # Not the format's own method, which may decode the whole image to look for metadata behind it.
        tag = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    except _DAMAGED:
        tag = 1
    sideways = tag in _SIDEWAYS and image.format != "TIFF"  # Pillow rotates TIFF itself
    return (height, width) if sideways else (width, height)


def _pixels(image: "Image.Image", name: str, *, opaque: bool = False) -> Pixels:
    """Decode an image, rotate it by its EXIF orientation, and convert it to RGB; `opaque` drops alpha."""
    from PIL import ImageOps

    if image.mode in ("I", "F"):
        raise MediaError(
            f"Cannot read {name}: its pixels are 32-bit numbers (mode {image.mode!r}), whose black and white are "
            "undefined. Expected 8 or 16 bits. Convert it to 8 bits."
        )
    with reading_pixels(name):
        if opaque:
            ImageOps.exif_transpose(image, in_place=True)
        else:  # the image belongs to the caller
            image = ImageOps.exif_transpose(image)
        return _colors(image, opaque=opaque)


@contextmanager
def reading_pixels(name: str) -> Iterator[None]:
    """Convert the errors of Pillow, behind a file's header, into errors of the image.

    Args:
        name: Description of the image for errors.
    """
    from PIL import Image

    try:
        yield
    except (*_DAMAGED, Image.DecompressionBombError) as error:
        raise MediaError(
            f"Cannot read {name}: its contents are damaged or cut short ({_reason(error)}). Expected a whole "
            "image. Get the file again."
        ) from error


def _colors(image: "Image.Image", *, opaque: bool) -> Pixels:
    """Convert an image to RGB strip by strip, so that a large image is in memory twice and not five times."""
    width, height = image.size
    colors = np.empty((height, width, 3), np.uint8)
    lines = max(1, _STRIP // width)
    for top in range(0, height, lines):
        strip = image.crop((0, top, width, min(top + lines, height)))
        colors[top : top + lines] = _strip(strip, opaque=opaque)
    return colors


def _strip(image: "Image.Image", *, opaque: bool) -> Pixels:
    from PIL import Image

    if opaque and not image.mode.startswith("I;16"):
        if isinstance(image.info.get("transparency"), bytes):
            del image.info[
                "transparency"
            ]  # alpha of a palette; Pillow would drop it with a warning
        image = image.convert("RGB")
    key = image.info.get("transparency")
    if image.mode.startswith("I;16"):
        values = np.asarray(image)
        grey = (values >> 8).astype(np.uint8)
        if isinstance(key, int):
            grey[values == key] = 255
        return np.repeat(grey[:, :, None], 3, axis=2)
    if "A" in image.getbands() or key is not None:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return np.asarray(image.convert("RGB"))


def _from_array(array: NDArray[Any], name: str, limits: ImageLimits) -> "Image.Image":
    from PIL import Image

    channels = array.shape[2] if array.ndim == 3 else 1
    if (
        array.dtype != np.uint8
        or array.ndim not in (2, 3)
        or channels not in (1, 3, 4)
        or not array.size
    ):
        raise MediaError(
            f"Cannot read {name}: expected uint8 with the shape (height, width) or (height, width, channels) and 1, 3 "
            "or 4 channels. Convert it, or give a Pillow image."
        )
    check_size((array.shape[1], array.shape[0]), name, limits)
    return Image.fromarray(array[:, :, 0] if array.ndim == 3 and channels == 1 else array)


def content_of(source: "str | os.PathLike[str] | bytes", name: str, limits: ImageLimits) -> bytes:
    """Return the content of a file after a check of its size."""
    if isinstance(source, bytes):
        size = len(source)
    elif isinstance(source, str) and "://" in source:
        raise MediaError(
            f"Cannot read {name}: it is a URL. Expected the path of a file, its bytes, a Pillow image or an array. "
            "Download it."
        )
    elif isinstance(source, str | os.PathLike):
        try:
            size = Path(source).stat().st_size
        except (OSError, ValueError) as error:
            raise MediaError(
                f"Cannot read {name}: {_reason(error)}. Expected the path of a file. Correct the path."
            ) from error
    else:
        raise MediaError(
            f"Cannot read an image of type {type(source).__name__}; expected a path, the bytes of a file, a Pillow "
            "image or an array of uint8. Convert it."
        )
    if not size:
        raise MediaError(f"Cannot read {name}: it is empty. Expected a whole file. Get it again.")
    if size > limits.file_bytes:
        raise MediaError(
            f"Cannot read {name}: its file has {size:,} bytes. Expected at most {limits.file_bytes:,}. Save it "
            "smaller."
        )
    if isinstance(source, bytes):
        return source
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise MediaError(
            f"Cannot read {name}: {_reason(error)}. Expected a file that can be read. Correct the path or its "
            "permissions."
        ) from error


def check_size(size: tuple[int, int], name: str, limits: ImageLimits) -> None:
    """Check the width and height of an image, or of a frame of a video.

    Raises:
        MediaError: If they exceed the limits.
    """
    width, height = size
    if max(width, height) > limits.side:
        raise MediaError(
            f"Cannot read {name}: it is {width} pixels wide and {height} high. Expected at most {limits.side:,} on a "
            "side. Crop it."
        )
    if width * height > limits.pixels:
        raise MediaError(
            _too_large(name, f"{width} x {height} = {width * height:,} pixels", limits)
        )
    if not width * height:
        raise MediaError(
            f"Cannot read {name}: it is {width} pixels wide and {height} high. Expected at least one pixel. Give "
            "another image."
        )


def _too_large(name: str, size: str, limits: ImageLimits) -> str:
    return (
        f"Cannot read {name}: it has {size}. Expected at most {limits.pixels:,}. Make it smaller."
    )


def _name(source: ImageSource) -> str:
    """Return the description of an image for errors."""
    if isinstance(source, bytes):
        return f"an image of {len(source):,} bytes"
    if isinstance(source, np.ndarray):
        return f"an image in an array of {source.dtype} with the shape {source.shape}"
    if isinstance(source, str | os.PathLike):
        return f"the image {os.fspath(source)!r}"
    return "an image"


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:  # without the number and the path
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")

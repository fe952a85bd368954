# SPDX-License-Identifier: Apache-2.0
"""Whether a package makes the same arrays of images as transformers' own processor, on a few awkward ones."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qeff_zoo.checkpoint import processors
from qeff_zoo.checkpoint.files import PROCESSOR_SETTINGS
from qeff_zoo.errors import CheckpointError, MediaError, ParityError, UnsupportedModelError
from qeff_zoo.media.image_processor import ImageProcessor, load_image_processor

if TYPE_CHECKING:
    from PIL import Image

#: (height, width) of images: wide, high, square and tiny.
AWKWARD = (211, 317), (150, 40), (33, 33), (5, 90)
#: What transformers' processors raise for an image that they do not take.
_REFUSALS = ValueError, ZeroDivisionError, OverflowError, RuntimeError


def compare(package: Path, processor: Any) -> dict[str, str]:
    """Compare a package's image processor with transformers' PIL backend.

    Args:
        package: With the settings that a build wrote.
        processor: Processor of the checkpoint, from `processors.load`; nothing is compared for audio alone.

    Returns:
        `images`, in words, for a record.

    Raises:
        ParityError: An array differs.
    """
    if processors.is_audio_only(processor):
        return {}
    from PIL import Image

    reference = getattr(processor, "image_processor", processor)
    name = type(reference).__name__
    if getattr(reference, "backend", "") != "pil":
        return {"images": f"not compared: transformers has no PIL backend of {name} here"}
    try:
        ours = load_image_processor(package)
    except (CheckpointError, UnsupportedModelError) as error:
        return {"images": f"not compared: {error}"}
    options = processors.options_of(processor)
    for size in AWKWARD:
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        if problem := difference(ours, reference, Image.fromarray(pixels), options):
            raise ParityError(
                f"An image of {size[1]} x {size[0]} pixels is processed otherwise than by transformers' {name}: "
                f"{problem}. Expected the same arrays. Compare the settings in "
                f"{PROCESSOR_SETTINGS} with those of the checkpoint."
            )
    return {"images": f"{len(AWKWARD)} images bit for bit as transformers' {name} makes them"}


def difference(
    ours: ImageProcessor,
    reference: Any,
    image: "Image.Image",
    options: Mapping[str, Any],
    within: float = 0.0,
) -> str | None:
    """Return in words what differs between the arrays of two processors; None for nothing.

    Args:
        ours: Image processor of the package.
        reference: Image processor of transformers, with the PIL backend, or the torchvision one if it has no other.
        image: Image for both.
        options: Options of the call of transformers' processor.
        within: Largest difference of two numbers that counts as none.
    """
    arguments = {name: option for name, option in options.items() if name != "return_tensors"}
    if getattr(reference, "backend", "") == "torchvision":  # some join no arrays otherwise
        arguments["return_tensors"] = "pt"
    if "boxes" in inspect.signature(reference.preprocess).parameters:  # parts of the whole image
        arguments["boxes"] = [[[0, 0, image.width, image.height]]]
    try:
        with _one_thread():
            expected = reference([image], **arguments)
    except _REFUSALS as error:
        try:
            ours([image])
        except (CheckpointError, MediaError):
            return None
        return f"transformers refuses it ({error})"
    try:
        arrays = ours([image])
    except (CheckpointError, MediaError) as error:
        return f"it is refused ({error})"
    if "pixel_values_images" in expected:  # an old name, which the model takes no more
        expected["pixel_values"] = expected["pixel_values_images"]
    for name, array in arrays.items():
        if name not in expected:
            continue
        right = _array(expected[name])
        if right.shape != array.shape:
            return f"{name} has the shape {array.shape}, not {right.shape}"
        if not np.array_equal(right, array):
            largest = np.abs(right.astype(np.float64) - array).max()
            if largest <= within:
                continue
            return f"{name} differs by up to {largest:.3g}"
    return None


def _array(values: Any) -> np.ndarray[Any, Any]:
    """Return an output of a processor as an array; NumPy has no numbers of bfloat16, as Llama 4's are."""
    import torch

    if isinstance(values, list):
        return np.asarray([_array(value) for value in values])
    if isinstance(values, torch.Tensor) and values.dtype == torch.bfloat16:
        values = values.float()
    return np.asarray(values)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch compute in one thread: in more it sums interpolated pixels in another order."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

# SPDX-License-Identifier: Apache-2.0
"""Stand-in of qwen-vl-utils, which imports torchvision: images of a conversation, resized for Qwen's models."""

import io
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, sqrt
from typing import Any

_MERGED = 2  # patches on a side of a token
_LEAST, _MOST = 4, 16_384  # tokens of an image


def smart_resize(
    height: int,
    width: int,
    factor: int,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> tuple[int, int]:
    """Return height and width that are multiples of a factor, with a number of pixels within bounds."""
    least = _LEAST * factor**2 if min_pixels is None else min_pixels
    most = _MOST * factor**2 if max_pixels is None else max_pixels
    sides = [max(1, round(side / factor)) for side in (height, width)]
    pixels = sides[0] * sides[1] * factor**2
    if pixels > most:
        scale = sqrt(most / (height * width))
        sides = [floor(side * scale / factor) for side in (height, width)]
    elif pixels < least:
        scale = sqrt(least / (height * width))
        sides = [ceil(side * scale / factor) for side in (height, width)]
    return sides[0] * factor, sides[1] * factor


def process_vision_info(
    conversations: Any,
    return_video_kwargs: bool = False,
    return_video_metadata: bool = False,
    image_patch_size: int = 14,
) -> tuple[Any, ...]:
    """Return the images of conversations, None for videos, and the arguments of a processor for them if asked for."""
    images = [_resized(part, image_patch_size * _MERGED) for part in _parts(conversations)]
    more = {"do_sample_frames": False} | ({} if return_video_metadata else {"fps": []})
    return (images or None, None, more) if return_video_kwargs else (images or None, None)


def _parts(conversations: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of messages that are images."""
    for message in conversations:
        if not isinstance(message, Mapping):
            yield from _parts(message)
            continue
        content = message["content"]
        for part in content if isinstance(content, list) else ():
            if "video" in part:
                raise NotImplementedError("The stand-in of qwen_vl_utils reads no videos.")
            if "image" in part or "image_url" in part:
                yield part


def _resized(part: Mapping[str, Any], factor: int) -> Any:
    """Return the image of a part, in the size that the part or its pixels determine."""
    import requests
    from PIL import Image

    source = part.get("image", part.get("image_url"))
    if isinstance(source, str):
        is_remote = source.startswith(("http://", "https://"))
        file = io.BytesIO(requests.get(source, timeout=30).content) if is_remote else source
        source = Image.open(file)
    image = source.convert("RGB")
    bounds = {name: part[name] for name in ("min_pixels", "max_pixels") if name in part}
    if "resized_height" in part:
        height, width = smart_resize(part["resized_height"], part["resized_width"], factor)
    else:
        height, width = smart_resize(image.height, image.width, factor, **bounds)
    return image.resize((width, height))

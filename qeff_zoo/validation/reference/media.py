# SPDX-License-Identifier: Apache-2.0
"""The images or audio in the reference's sequences, as inputs of transformers' forward.

Only the reference process imports this.
"""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers.models.auto import processing_auto, video_processing_auto
from transformers.models.auto.configuration_auto import model_type_to_module_name

from qeff_zoo.multimodal.manifest import audio_of, images_of

_PROCESSORS: Mapping[str, Any] = vars(processing_auto)["PROCESSOR_MAPPING_NAMES"]
_VIDEO_PROCESSORS: Mapping[str, Any] = vars(video_processing_auto)["VIDEO_PROCESSOR_MAPPING_NAMES"]
_TILE_MASK = "cross_attention_mask"
#: Of models with experts of images: which tokens are an image's, or begin or end one.
_ROUTES = "moe_mm_token_type_ids"


def require_videos(model_type: str) -> None:
    """Raise ValueError if transformers' processor of a model takes no videos, which no sample here shows.

    Args:
        model_type: `model_type` of the model, whose recipe declares videos.
    """
    # A part of a model, such as an Omni's thinker, has the processor of the whole, after which its module is named.
    types = {model_type, model_type_to_module_name(model_type)}
    names = (_PROCESSORS[one] for one in types & _PROCESSORS.keys())
    processor = next((getattr(transformers, name) for name in names if name), None)
    takes = processor and "video_processor" in inspect.signature(processor.__init__).parameters
    if not takes and not types & _VIDEO_PROCESSORS.keys():
        kind = processor.__name__ if processor else "AutoProcessor"
        raise ValueError(
            f"The recipe of {model_type!r} declares videos, which transformers' {kind} does not take."
        )


class Media:
    """Arguments of a forward besides its tokens.

    Args:
        request: With `media`, how many each sequence has, and `of_media`, the recipe's values for them.
        arrays: `media.sequence.number.name`, as a processor prepares each.
        model: Hugging Face's model, which takes some outputs of a processor, and ignores the rest.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray[Any, Any]],
        model: Any,
    ) -> None:
        self._module = type(model).__module__
        self._taken = inspect.signature(model.forward).parameters.keys()
        self._counts: list[int] = request.get("media") or []
        settings = request.get("of_media") or {}
        self._placeholder = settings.get("placeholder")
        self._images = images_of(settings["images"]) if "images" in settings else None
        self._audio = audio_of(settings["audio"]) if "audio" in settings else None
        if self._images and self._images.video:
            require_videos(model.config.model_type)
        self._media = [one for one in (self._images, self._audio) if one]
        self._around = [
            value
            for name, value in vars(model.config).items()
            if name.startswith(("image_", "video_")) and name.endswith("_token_id")
        ]
        self._among = [
            getattr(model.config, name) for medium in self._media[:1] for name in medium.among
        ]
        self._arrays = {
            name: torch.from_numpy(array)
            for name, array in arrays.items()
            if name.startswith("media.")
        }

    def of(
        self, numbers: Sequence[int], input_ids: Tensor, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Return the images or audio of some sequences, and a mask of their tokens.

        Args:
            numbers: Numbers of the sequences, a row each.
            input_ids: (rows, tokens).
            dtype: Type of the model's computation.
        """
        if not self._counts:
            return {}
        joined: dict[str, list[Tensor]] = {}
        for number in numbers:
            for index in range(self._counts[number]):
                prefix = f"media.{number}.{index}."
                for name in self._arrays:
                    plain = name.removeprefix(prefix)
                    if plain != name and plain in self._taken:
                        joined.setdefault(plain, []).append(self._arrays[name])
        images = self._images
        if joined and images and images.pixels in joined:
            joined = images.joined(joined)
        crossing = bool(images and images.by_cross_attention)
        masks = {medium.mask for medium in self._media}
        shown = {
            name: torch.cat(_alike(parts, of_mask=name in masks), int(crossing))
            for name, parts in joined.items()
        }
        if images and crossing and shown:
            shown[_TILE_MASK] = self._tile_mask(input_ids, shown[images.mask])
        shown |= {
            name: tensor.to(dtype) for name, tensor in shown.items() if tensor.is_floating_point()
        }
        media = next(iter(self._media), None)
        if media and (types := media.types) and shown:
            own = torch.tensor([self._placeholder, *self._among])
            shown[types] = self._types(torch.isin(input_ids, own))
        if _ROUTES in self._taken and shown:
            shown[_ROUTES] = torch.isin(input_ids, torch.tensor(self._around)).long()
        if media and media.begun:  # which is looked for among tokens that are said to be there
            shown["attention_mask"] = torch.ones_like(input_ids)
        return shown

    def among(self, number: int) -> bool:
        """Whether a sequence has images or audio."""
        return bool(self._counts) and self._counts[number] > 0

    @property
    def together(self) -> bool:
        """Whether sequences may be rows of one call: not where a row would see what fills up those of another."""
        images, audio = self._images, self._audio
        return not ((audio and audio.separate) or (images and images.by_cross_attention))

    def behind(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the inputs of tokens behind a prompt, as `generate` sets them.

        Args:
            given: Result of `of` for the prompt.
        """
        return {_TILE_MASK: given[_TILE_MASK][:, -1:]} if _TILE_MASK in given else {}

    def _tile_mask(self, input_ids: Tensor, there: Tensor) -> Tensor:
        """Return the tiles that each token attends to, by the rule of transformers' own processor."""
        rule = importlib.import_module(self._module.replace("modeling_", "processing_"))
        (tokens,), counts = input_ids.tolist(), there.sum(2).tolist()
        mask = rule.get_cross_attention_token_mask(tokens, self._placeholder)
        dense = rule.convert_sparse_cross_attention_mask_to_dense(
            [mask], counts, there.shape[2], len(tokens)
        )
        return torch.from_numpy(dense)

    def _types(self, placeholders: Tensor) -> Tensor:
        """Mark image tokens by 1; or prompt tokens, which end with the last image, by 0."""
        if not any(medium.whole == "prompt" for medium in self._media[:1]):
            return placeholders.long()
        before = placeholders.flip(1).cumsum(1).flip(1)  # placeholders from here on
        return (before == 0).long()


def of_tokens(model: Any) -> Any:
    """Return the model for tokens alone: the language model of `generate`, if a forward always requires pixels.

    Args:
        model: Hugging Face's.
    """
    pixels = inspect.signature(model.forward).parameters.get("pixel_values")
    requires_pixels = pixels is not None and pixels.default is inspect.Parameter.empty
    return model.get_decoder() if requires_pixels else model


def _alike(parts: list[Tensor], *, of_mask: bool) -> list[Tensor]:
    """Pad images of several sizes or numbers of tiles with zeros, and patch positions with -1, as processors do."""
    if len({part.shape[1:] for part in parts}) == 1:
        return parts
    most = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    filled = -1 if parts[0].dtype is torch.int64 and not of_mask else 0
    wide = [part.new_full((len(part), *most), filled) for part in parts]
    for part, room in zip(parts, wide, strict=True):
        room[tuple(slice(size) for size in part.shape)] = part
    return wide


def processor_of(request: Mapping[str, Any]) -> Any:
    """Return transformers' processor of images."""
    return transformers.AutoImageProcessor.from_pretrained(
        request["checkpoint"], backend="pil", local_files_only=True
    )

# SPDX-License-Identifier: Apache-2.0
"""Calls of the two programs of a vision-language package, with QEfficient's names for image features."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from qeff_zoo.checkpoint.config import model_config, token_of
from qeff_zoo.errors import GenerationError
from qeff_zoo.media.images import blank
from qeff_zoo.multimodal.encoding.vision_encoder import GRID, Vision
from qeff_zoo.multimodal.manifest import images_of
from qeff_zoo.package import Package
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.decoding.call_inputs import AXES, OF_CONTEXT
from qeff_zoo.runtime.program import Array, Program

from .calls import Calls, Described

if TYPE_CHECKING:
    from qeff_zoo.media.image_processor import ImageProcessor

_EMBEDS, _ROWS = "image_embeds", "image_rows"
_FEATURES, _FINER = "vision_embeds", "deepstack_features"
_INDEX, _PLACE, _NEXT = "image_index", "image_idx", "image_idx_output"


class VisionCalls(Calls):
    """Calls of a vision encoder: arrays of the checkpoint's processor in, image features out."""

    accepts: ClassVar[set[str]] = {
        "pixel_values", GRID, "image_sizes", "image_position_ids", "aspect_ratios", "aspect_ratio_ids",
        "aspect_ratio_mask", "num_patches", "num_crops", "spatial_shapes", "pixel_attention_mask", "grid_thws",
    }  # fmt: skip

    @classmethod
    def inputs_by_name(cls, described: dict[str, Described]) -> dict[str, Described]:
        """Return the arrays of a processor."""
        given = {name: value for name, value in described.items() if name in cls.accepts}
        is_patches = len(described.get("pixel_values", ("", ()))[1]) == 2
        return {**given, GRID: ("int64", (1, 3))} if is_patches else given

    @classmethod
    def outputs_by_name(cls, described: dict[str, Described]) -> dict[str, Described]:
        """Return image features by QEfficient's names."""
        return _features(described)

    def __init__(self, package: Package, program: Program, image_sizes: Sequence[str] = ()) -> None:
        super().__init__(package, program, image_sizes)
        images = images_of(package.manifest["spec"]["task"]["images"])
        self._vision = Vision(program, _config(package), 0, images)

    def run(self, given: Mapping[str, Array], wanted: Collection[str]) -> dict[str, Array]:
        """Return `vision_embeds`, (1, image tokens, width), and `deepstack_features`, (levels, image tokens, width)."""
        patches = len(self.program.inputs["pixel_values"].shape) == 2
        if patches and GRID not in given and np.ndim(given["pixel_values"]) == 2:
            given = {**given, GRID: self._grids(len(given["pixel_values"]))}
        encoded = [self._vision.look(image) for image in _images(given)]
        names = [*encoded[0].features]
        joined = {
            name: np.concatenate([encoding.features[name] for encoding in encoded])
            for name in names
        }
        finer = [joined[name] for name in names if name != _EMBEDS]
        more = {_FINER: np.stack(finer)} if finer else {}
        outputs = {_FEATURES: joined[_EMBEDS][None], **more}
        return {name: value for name, value in outputs.items() if name in wanted}

    @cached_property
    def _processor(self) -> "ImageProcessor":
        """The package's image processor, read when the first call needs it."""
        from qeff_zoo.media.image_processor import load_image_processor

        return load_image_processor(self.package.path)

    def _grids(self, patches: int) -> Array:
        """Return the grids of images of one of the sizes that `compile` was given, which have so many patches."""
        for size in self.image_sizes:
            tall, wide = map(int, size.split("x"))
            grid = np.asarray(self._processor.arrays([blank(tall, wide)])[GRID])
            if patches % grid.prod() == 0:
                return np.tile(grid, (patches // int(grid.prod()), 1))
        sizes = ", ".join(self.image_sizes) or "none"
        raise GenerationError(
            f"The call has {patches:,} patches of pixel_values and no {GRID!r}; expected both, or images of a size "
            f"that `compile` was given: {sizes}. Add the processor's {GRID!r}."
        )


class ImageCalls(Calls):
    """Calls of a language model whose prompts have images."""

    accepts: ClassVar[set[str]] = {*Calls.accepts, _FEATURES, _FINER, _PLACE, "mm_token_type_ids"}

    @classmethod
    def inputs_by_name(cls, described: dict[str, Described]) -> dict[str, Described]:
        """Return inputs by QEfficient's names: features, and the number of those that earlier calls took."""
        given = _features(described)
        if axes := given.pop(AXES, None):
            given["position_ids"] = "int64", (1 + int(str(axes[1][0])), "batch_size", "seq_len")
        return {_PLACE if name == _INDEX else name: array for name, array in given.items()}

    @classmethod
    def outputs_by_name(cls, described: dict[str, Described]) -> dict[str, Described]:
        """Return outputs by QEfficient's names."""
        return {**described, _NEXT: ("int64", (1, 1))}

    def __init__(self, package: Package, program: Program, image_sizes: Sequence[str] = ()) -> None:
        super().__init__(package, program, image_sizes)
        images = images_of(package.manifest["spec"]["task"]["images"])
        config = _config(package)
        #: Tokens in place of image features.
        self._placeholders = [token_of(config, images.token), *config.get(images.around, ())]
        #: Inputs with image features; the first replace token embeddings.
        self._features = [name for name, value in program.inputs.items() if value.shape[0] == _ROWS]

    def run(self, given: Mapping[str, Array], wanted: Collection[str]) -> dict[str, Array]:
        """Run one call; `image_idx_output` is the number of image features so far, for the next call."""
        outputs = super().run(given, wanted)
        count = int(np.isin(given["input_ids"], self._placeholders).sum())
        kept = {f"{_FEATURES}_RetainedState": given[_FEATURES]} if _FEATURES in given else {}
        return {**outputs, **kept, _NEXT: np.array([[_number(given) + count]], np.int64)}

    def shown(
        self, given: Mapping[str, Array], tokens: Array, part: Sequence[int]
    ) -> dict[str, Array]:
        """Return the index of each token's image feature, and the features."""
        shown = np.isin(tokens, self._placeholders)
        if tokens.shape[1] == 1 and _FEATURES not in given:  # generated, not of an image
            shown[:] = False
        if shown.any() and AXES in self.program.inputs and given["position_ids"].ndim != 3:
            raise GenerationError(
                f"position_ids has {given['position_ids'].ndim} axes, and the call has image tokens; expected 3: "
                f"(1 + {self.program.inputs[AXES].shape[0]}, rows, tokens). Use `positions.with_positions`."
            )
        if shown.any() and _FEATURES not in given:
            raise GenerationError(
                f"The call has {int(shown.sum())} image tokens and no {_FEATURES!r}; expected the outputs of the "
                "vision program. Give them to `set_buffers`."
            )
        index = np.where(shown, _number(given) + np.cumsum(shown, axis=1) - 1, -1)
        features = {name: self.program.inputs[name] for name in self._features}
        types = self._types(given, shown, part)
        if not shown.any():
            return {
                **types,
                _INDEX: index,
                **{
                    name: np.zeros((1, *map(int, feature.shape[1:])), feature.dtype)
                    for name, feature in features.items()
                },
            }
        every = given[_FEATURES]
        if len(every) > 1:  # a list for each row
            index = np.where(shown, index + every.shape[1] * np.asarray(part)[:, None], -1)
        values = {_EMBEDS: every.reshape(-1, every.shape[-1])}
        index = np.where(index < len(values[_EMBEDS]), index, -1)  # generated, not of an image
        values |= {name: given[_FINER][level] for level, name in enumerate(self._features[1:])}
        return {
            **types,
            _INDEX: index,
            **{
                name: np.ascontiguousarray(values[name], feature.dtype)
                for name, feature in features.items()
            },
        }

    def _types(
        self, given: Mapping[str, Array], shown: Array, part: Sequence[int]
    ) -> dict[str, Array]:
        """Return which positions of the context have tokens of an image, for models whose attention reads it.

        Those of earlier calls are not marked: causal attention includes them.
        """
        positions = np.asarray(given["position_ids"])[..., part, : shown.shape[1]]
        masks = {
            name: np.zeros((len(part), self._ctx_len), np.int64)
            for name in self.program.inputs
            if name.startswith(OF_CONTEXT)
        }
        for types in masks.values():
            for number, row in enumerate(positions.reshape(-1, *shown.shape)[0]):
                types[number, row[shown[number] & (row >= 0)]] = 1
        return masks


def _features(described: Mapping[str, Described]) -> dict[str, Described]:
    """Return inputs or outputs with QEfficient's names of image features."""
    levels = sum(axes == described.get(_EMBEDS, ("", ()))[1] for _, axes in described.values()) - 1
    features: dict[str, Described] = {}
    for name, (dtype, axes) in described.items():
        if name == _EMBEDS:
            features[_FEATURES] = dtype, (1, *axes)
        elif _EMBEDS in described and axes == described[_EMBEDS][1]:
            features[_FINER] = dtype, (levels, *axes)
        else:
            features[name] = dtype, axes
    return features


def _config(package: Package) -> Mapping[str, Any]:
    return model_config(read_json(package.path / "config.json"))


def _number(given: Mapping[str, Array]) -> int:
    """Return the number of image features that earlier calls took."""
    return int(given[_PLACE].max()) if _PLACE in given else 0


def _images(given: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield the arrays of each image; QEfficient's grid of an image may be the shape of an array of zeros."""
    arrays = {name: np.asarray(array) for name, array in given.items()}
    if GRID not in arrays:
        padded = arrays["pixel_values"].ndim == 3  # patches of each image
        count = len(arrays["pixel_values"]) if padded else 1
        for at in range(count):
            yield {name: array[at : at + 1] for name, array in arrays.items()} if padded else arrays
        return
    grids = arrays[GRID]
    if grids.ndim == 4:
        grids = np.tile(np.array([grids.shape[1:]]), (len(grids), 1))
    ends = grids.prod(axis=1).cumsum()
    pixels = arrays["pixel_values"].astype(np.float32)
    for grid, stop in zip(grids, ends, strict=True):
        yield {"pixel_values": pixels[stop - grid.prod() : stop], GRID: grid[None]}

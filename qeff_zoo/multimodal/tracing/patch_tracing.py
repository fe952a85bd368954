# SPDX-License-Identifier: Apache-2.0
"""Patches of an image of any size through a vision encoder, for tracing: program `vision`.

IN   pixel_values (patches, values) f32                 or (patches, channels, rows, columns), ordered by the squares
                                                        that are merged
     position_ids (patches, 2) i64                      row and column of each, perhaps after the frame; column and row
                                                        for processors that return these
     cu_seqlens (segments,) i64                         boundaries of the images among the patches
     [window_index, cu_window_seqlens, interp_indices, interp_weights, for encoders with windows or a table]; or
     interp_weights (patches, positions) f32            in place of position_ids: weight of each learned position for
                                                        every patch, if a patch may combine all of them
OUT  outputs of `qeff_zoo.multimodal.tracing.vision_tracing`
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.overrides import TorchFunctionMode

from qeff_zoo.contract import Tracing
from qeff_zoo.errors import ExportError
from qeff_zoo.export.concrete import Concrete
from qeff_zoo.multimodal.encoding.patch_positions import PatchEncoder, PatchGeometry
from qeff_zoo.recipe_media import ImageEncoder, Media

_UNIT = 4  # patches of the example, per merged square
_MOST = 1 << 20  # patches
#: Arguments of some encoders that their models compute from sizes with Python's numbers, as functions of the number of
#: patches and the patches on a side of a merged square, for one image whose patches are ordered already.
_MADE: Mapping[str, Callable[[int, int], Tensor]] = {
    "frame_index": lambda count, merge: torch.zeros(count, dtype=torch.long),
    "temporal_merge_index": lambda count, merge: torch.arange(count).reshape(-1, 1, merge**2),
}


#: Function that joins rows of even and odd steps of a video by their numbers; those of an image are joined with
#: themselves.
_JOINS = "_temporal_slicing"


#: Function that interpolates a table of learned positions, (rows, columns, width), to the sizes of images.
_RESIZES = "resize_positional_embeddings"


def _placed(shares: Tensor, table: Tensor, *_: Any) -> Tensor:
    """Return the positions of patches, as weighted sums of the table's positions."""
    return shares @ table.flatten(0, 1)


def _twice(rows: Tensor, _: Any) -> Tensor:
    return torch.cat([rows, rows], dim=-1)


class _Unpadded(TorchFunctionMode):
    """Keeps all patches if a forward would select those without padding: there is none.

    Args:
        merge: Number of patches on a side of a merged square.
    """

    def __init__(self, merge: int) -> None:
        super().__init__()
        self.merge = merge

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor):
            values, where = args
            if where.dtype is torch.bool and where.shape == values.shape[:2]:
                return values.flatten(0, 1)
        # Squares of one patch are interpolated to their own size.
        if func is nn.functional.interpolate and kwargs["size"] == tuple(args[0].shape[2:]):
            return args[0]
        if func is nn.functional.interpolate and self.merge == 2:  # the middle of four
            return nn.functional.avg_pool2d(args[0], self.merge)
        return func(*args, **(kwargs or {}))


class _Sampled(TorchFunctionMode):
    """Interpolates a table at the points of the inputs, if a forward would compute these from sizes.

    Args:
        arguments: Indices of the positions around each patch, and their weights.
    """

    def __init__(self, arguments: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.taps, self.weights = arguments["interp_indices"], arguments["interp_weights"]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not nn.functional.grid_sample:
            return func(*args, **(kwargs or {}))
        table = args[0][0].flatten(1).T
        # (patches, taps, channels) to (1, channels, patches, 1)
        return (table[self.taps] * self.weights[..., None]).sum(1).T[None, :, :, None]


class Sizes(list[Any]):
    """Symbolic sizes of images, where a forward expects a tensor of numbers."""

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, tuple):
            return super().__getitem__(index)
        if isinstance(index[0], Tensor):  # per patch, for given points: see `_Sampled`
            return torch.ones(index[0].shape)
        return Sizes([row[index[1]] for row in self[index[0]]])

    def __floordiv__(self, size: int) -> "Sizes":
        return Sizes([one // size for one in self])

    def __pow__(self, power: int) -> Any:
        (size,) = self
        return size**power

    def prod(self, *_: Any, **__: Any) -> "Sizes":
        return Sizes([math.prod(row) for row in self])

    def tolist(self) -> list[Any]:
        return list(self)


class Patches(nn.Module):
    """Patches of an image of any size, and their positions, up to its features.

    The forward is independent of the image's shape: merged squares of patches form one column, since the position of
    each patch is an input.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        names: Names of the inputs after the patches.
        geometry: Geometry of patches in the vision encoder.
        arguments: Number of patches on a side of a merged square, if the forward takes it; else 0.
    """

    def __init__(
        self, model: Any, names: Sequence[str], geometry: PatchGeometry, arguments: int
    ) -> None:
        super().__init__()
        self.model, self.names, self.arguments = model, names, arguments
        self.merge, self.placed = geometry.merge, bool(geometry.positions)

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows, and those of deepstack layers."""
        pixels, *lie = given
        arguments: dict[str, Any] = dict(zip(self.names, lie, strict=True))
        arguments["max_seqlen"] = 1
        if "window_index" in arguments:
            arguments["max_window_seqlen"] = 1
        module = sys.modules[type(self.model).__module__]
        for name, made in _MADE.items():
            if hasattr(module, f"get_vision_{name}"):
                arguments[name] = made(pixels.shape[0], self.merge)
        rows = pixels.shape[0] // self.merge**2
        grid = Sizes([[1, self.merge * rows, self.merge]])
        with ExitStack() as changed:
            for part in self.model.modules():
                if hasattr(type(part), _JOINS):
                    changed.enter_context(mock.patch.dict(vars(part), {_JOINS: _twice}))
                if hasattr(type(part), _RESIZES):
                    interpolate = partial(_placed, arguments.pop("interp_weights"))
                    changed.enter_context(mock.patch.dict(vars(part), {_RESIZES: interpolate}))
            changed.enter_context(Concrete())
            changed.enter_context(_Unpadded(self.arguments))
            if "interp_indices" in arguments:
                changed.enter_context(_Sampled(arguments))
            if self.arguments:
                arguments["image_merge_sizes"] = Sizes([self.arguments])
            if self.placed:
                output = self.model.get_image_features(pixels[None], lie[0][None])
            else:
                output = self.model.get_image_features(pixels, grid, **arguments)
        deep = getattr(output, "deepstack_features", None) or []
        return tuple(rows_of(part) for part in (output.pooler_output, *deep))


def rows_of(part: Any) -> Tensor:
    """Return the concatenated features of images, (rows, width)."""
    parts = part if isinstance(part, list | tuple) else [part]
    return torch.cat([one.reshape(-1, one.shape[-1]) for one in parts])


def deepstack_layers(images: Media | PatchEncoder, config: Any) -> Sequence[int]:
    """Return the vision layers whose features are added in the language model.

    Args:
        images: Image or audio input of the recipe.
        config: Config of the model.

    Raises:
        ExportError: The config sets such layers, and the recipe names no field of them.
    """
    vision = getattr(config, "vision_config", None)
    if images.deepstack:
        layers: Sequence[int] = getattr(vision, images.deepstack)
        return layers
    fields = vars(vision) if vision is not None and isinstance(images, ImageEncoder) else {}
    for name, value in fields.items():
        if name.startswith("deepstack") and value:
            raise ExportError(
                f"The vision config of model_type {config.model_type!r} sets {name!r} to {value}, and the recipe sets "
                f"no `deepstack`. Expected the name of this field. Add deepstack={name!r} to `images` of the recipe."
            )
    return ()


class Rows(nn.Module):
    """Patches or frames of samples, (rows, …), each of which becomes a feature row without an encoder.

    Args:
        model: Hugging Face model.
        make: Function that makes feature rows, by the model's own method.
    """

    def __init__(self, model: Any, make: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.model, self.make = model, make

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows, (rows, hidden)."""
        (values,) = given
        return (rows_of(self.make(self.model, values)),)


def tracing(model: Any, images: PatchEncoder) -> Tracing:
    """Describe how to trace the encoder of patches.

    Args:
        model: Model from `loader.load_meta`.
        images: Image input of the recipe.
    """
    vision = model.config.vision_config
    geometry = images.geometry(model.config.to_dict())
    merged = geometry.merge**2
    count = _UNIT * merged
    channels: Any = getattr(vision, "in_channels", None) or getattr(vision, "num_channels", 3)
    side = geometry.unit // geometry.merge
    values = [channels, side, side]
    if not images.planes:
        values = [math.prod(values) * getattr(vision, "temporal_patch_size", 1)]
    rows = Dim("image_rows", min=2, max=_MOST)
    ends = torch.tensor([0, count // 2, count])
    whole = {"pixel_values": (torch.zeros(count, *values), {0: merged * rows})}
    if images.placed:
        positions = torch.zeros(count, 3 if geometry.frames else 2, dtype=torch.long)
        whole["position_ids"] = positions, {0: merged * rows}
    if not geometry.positions:
        whole["cu_seqlens"] = ends, {0: Dim("segments", min=3, max=_MOST)}
    if geometry.window:
        whole["window_index"] = torch.arange(_UNIT), {0: rows}
        whole["cu_window_seqlens"] = ends.clone(), {0: Dim("windows", min=3, max=_MOST)}
    if geometry.side and geometry.taps == "antialiased":
        whole["interp_weights"] = torch.zeros(count, geometry.side**2), {0: merged * rows}
    elif geometry.side:
        taps = {"bicubic": 16, "nearest": 1}.get(geometry.taps, 4)
        whole["interp_indices"] = torch.zeros(count, taps, dtype=torch.long), {0: merged * rows}
        if taps > 1:
            whole["interp_weights"] = torch.zeros(count, taps), {0: merged * rows}
    names = list(whole)
    deep = deepstack_layers(images, model.config)
    return Tracing(
        module=images.traced_module(model, geometry, names).eval(),
        inputs={"given": [example for example, _ in whole.values()]},
        dynamic_shapes={"given": [axes for _, axes in whole.values()]},
        input_names=names,
        output_names=["image_embeds", *(f"deepstack.{index}" for index in range(len(deep)))],
        then=_name_patches,
    )


def _name_patches(graph: Any) -> None:
    """Name the symbol of the number of patches, in place of its expression by the number of rows."""
    rename(graph.graph.inputs, lambda dim, _: "patches" if "*" in str(dim) else dim)
    rename(graph.graph.outputs, lambda dim, axis: dim if axis else "image_rows")


def rename(values: Any, name: Callable[[Any, int], Any]) -> None:
    """Rename the symbols of tensors, by a function of the old name and the axis."""
    for value in values:
        value.shape = type(value.shape)([name(dim, axis) for axis, dim in enumerate(value.shape)])

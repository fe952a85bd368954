# SPDX-License-Identifier: Apache-2.0
"""Positions of image patches, as inputs of vision encoders for images of any size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from qeff_zoo.runtime.program import Array


class PatchEncoder(Protocol):
    """Image encoder that takes patches, as `qeff_zoo.multimodal.patch_grid` implements it."""

    @property
    def deepstack(self) -> str:
        """Field of the vision config that lists the layers whose features are added in the language model."""

    @property
    def taps(self) -> str:
        """Interpolation of learned positions."""

    @property
    def lines(self) -> bool:
        """Whether the processor orders patches in row-major order, and not by merged square."""

    @property
    def planes(self) -> bool:
        """Whether patches are (channels, rows, columns), and not one list of values."""

    @property
    def frames(self) -> bool:
        """Whether positions of patches include the frame."""

    @property
    def positions(self) -> str:
        """Array of the processor with the columns and rows of patches; empty if it returns none."""

    @property
    def placed(self) -> bool:
        """Whether the program takes `position_ids`."""

    def geometry(self, config: Mapping[str, Any]) -> "PatchGeometry":
        """Return the geometry of patches."""

    def traced_module(self, model: Any, geometry: "PatchGeometry", names: list[str]) -> Any:
        """Return the module to trace."""


@dataclass(frozen=True, kw_only=True)
class PatchGeometry:
    """Geometry settings of a vision encoder.

    Args:
        merge: Patches on a side of the square that becomes an image token.
        window: Image tokens on a side of an attention window; 0 without windows.
        side: Positions on a side of the table of learned positions; 0 without one.
        taps: Interpolation of learned positions, as in `PatchGrid`.
        lines: Whether a processor returns patches in row-major order.
        frames: Whether positions of patches include the frame.
        positions: Array of the processor with the columns and rows of patches, if any.
        unit: Pixels on a side of the square that becomes an image token.
        inner: Patches on a side of the squares that are merged first, within the encoder.
    """

    merge: int
    inner: int = 1
    window: int = 0
    side: int = 0
    taps: str = ""
    lines: bool = False
    frames: bool = False
    positions: str = ""
    unit: int = 0

    @classmethod
    def read(
        cls,
        config: Mapping[str, Any],
        images: PatchEncoder,
        merge: int,
        inner: int = 1,
        row: int = 0,
    ) -> "PatchGeometry":
        """Return the geometry for a model's config.json.

        Args:
            config: Content of config.json.
            images: Image encoder of a recipe.
            merge: Patches on a side of the square that becomes an image token.
            inner: Patches on a side of the squares that the encoder merges first.
            row: Patches on a side of an image token, if a processor merges them; else `merge`.
        """
        vision = config["vision_config"]
        patch, taps = int(vision.get("patch_size", 14)), images.taps
        side = int(vision.get("num_position_embeddings", 0) ** 0.5)
        if "num_patches" in vision:
            side = int(vision["num_patches"] ** 0.5)
        elif taps:
            side = int(vision.get("pos_emb_height") or vision["image_size"] // patch)
        return cls(
            merge=merge,
            inner=inner,
            unit=patch * (row or merge),
            window=int(vision.get("window_size", 0)) // merge // patch,
            side=side,
            taps=taps,
            lines=images.lines,
            frames=images.frames,
            positions=images.positions,
        )

    def unpadded(self, prepared: Mapping[str, Array]) -> dict[str, Array]:
        """Return the patches of an image, (patches, …), and their columns and rows, without padding."""
        positions = prepared[self.positions].reshape(-1, 2)
        real = (positions >= 0).all(1)
        pixels = prepared["pixel_values"]
        return {
            "pixel_values": pixels.reshape(-1, pixels.shape[-1])[real],
            "position_ids": positions[real],
        }

    def cut(self, image: Array, patch: int) -> Array:
        """Return patches (patches, channels, rows, columns) of an image (channels, height, width), in row-major order.

        Args:
            image: Image of whole patches.
            patch: Pixels on a side of a patch.
        """
        channels, height, width = image.shape
        shape = channels, height // patch, patch, width // patch, patch
        return image.reshape(shape).transpose(1, 3, 0, 2, 4).reshape(-1, channels, patch, patch)

    def describe(self, grid: tuple[int, ...]) -> dict[str, Array]:
        """Return all position inputs that a program may take for one image.

        Args:
            grid: Time, height and width in patches.
        """
        time, height, width = grid
        rows, columns = self._places(height, width)
        positions = np.tile(np.stack([rows, columns], 1), (time, 1))
        if self.frames:
            frames = np.repeat(np.arange(time), height * width)
            positions = np.concatenate([frames[:, None], positions], axis=1)
        inputs = {
            "position_ids": positions,
            "cu_seqlens": np.arange(0, time * height * width + 1, height * width, dtype=np.int64),
        }
        if self.window:
            inputs |= self._windows(time, height // self.merge, width // self.merge)
        if self.side and self.taps == "nearest":
            down, right = (_nearest(size, self.side) for size in (height, width))
            nearest = down[rows] * self.side + right[columns]
            inputs["interp_indices"] = np.tile(nearest, time)[:, None]
        elif self.side:
            whole = self.taps == "antialiased"
            taps = self._shares if whole else self._taps
            inputs |= taps(time, rows, height, columns, width)
        # A program takes at least two segments: an empty one is added.
        for name in {"cu_seqlens", "cu_window_seqlens"} & inputs.keys():
            if len(inputs[name]) == 2:
                inputs[name] = np.append(inputs[name], inputs[name][-1:])
        return inputs

    def in_column(self, patches: Array, height: int, width: int) -> dict[str, Array]:
        """Return the program inputs of an image whose merged squares form one column.

        Patches of a last line or column without a whole square come after the squares, and take part in attention as
        all others; padding of the last square is a separate image.

        Args:
            patches: Patches in row-major order.
            height: Number of lines of patches.
            width: Number of patches in a line.
        """
        merge, numbers = self.merge, np.arange(height * width).reshape(height, width)
        whole = numbers[: height // merge * merge, : width // merge * merge]
        squares = whole.reshape(height // merge, merge, -1, merge).transpose(0, 2, 1, 3)
        order = np.concatenate([squares.reshape(-1), np.setdiff1d(numbers, whole)])
        missing = -len(order) % merge**2
        positions = np.stack(np.divmod(order, width), 1)
        return {
            "pixel_values": _extended(patches[order], missing),
            "position_ids": _extended(positions, missing),
            "cu_seqlens": np.cumsum([0, len(order), missing], dtype=np.int64),
        }

    def ordered(self, patches: Array, grid: tuple[int, ...]) -> Array:
        """Return the patches of an image ordered by merged square."""
        time, height, width = grid
        if not self.lines:
            return patches
        rows, columns = self._places(height, width)
        within = rows * width + columns
        order = (np.arange(time)[:, None] * height * width + within).reshape(-1)
        ordered: Array = patches[order]
        return ordered

    def _places(self, height: int, width: int) -> tuple[Array, Array]:
        """Return the row and column of each patch, ordered by merged square, and by inner square within it."""
        outer = self.merge // self.inner
        shape = (height // self.merge, outer, self.inner, width // self.merge, outer, self.inner)
        order = (0, 3, 1, 4, 2, 5)
        rows, columns = np.indices((height, width))
        ordered = (side.reshape(shape).transpose(order).reshape(-1) for side in (rows, columns))
        return next(ordered), next(ordered)

    def _windows(self, time: int, height: int, width: int) -> dict[str, Array]:
        """Return the image tokens ordered by window, and the end of each window among the patches."""
        numbers = np.arange(time * height * width).reshape(time, height, width)
        windows = [
            numbers[frame, top : top + self.window, left : left + self.window].reshape(-1)
            for frame in range(time)
            for top in range(0, height, self.window)
            for left in range(0, width, self.window)
        ]
        ends = np.cumsum([0, *(len(window) * self.merge**2 for window in windows)], dtype=np.int64)
        return {"window_index": np.concatenate(windows), "cu_window_seqlens": ends}

    def _taps(
        self, time: int, rows: Array, height: int, columns: Array, width: int
    ) -> dict[str, Array]:
        """Return the learned positions around each patch, and the weight of each."""
        (tops, above), (lefts, before) = (
            _between(at, size, self.side, self.taps)
            for at, size in ((rows, height), (columns, width))
        )
        indices = (tops[:, :, None] * self.side + lefts[:, None, :]).reshape(len(rows), -1)
        weights = (above[:, :, None] * before[:, None, :]).reshape(len(rows), -1)
        return {
            "interp_indices": np.tile(indices, (time, 1)),
            "interp_weights": np.tile(weights, (time, 1)),
        }

    def _shares(
        self, time: int, rows: Array, height: int, columns: Array, width: int
    ) -> dict[str, Array]:
        """Return the weight of every learned position for each patch."""
        down, right = _antialiased(height, self.side), _antialiased(width, self.side)
        weights = (down[rows][:, :, None] * right[columns][:, None, :]).reshape(len(rows), -1)
        return {"interp_weights": np.tile(weights, (time, 1))}


def merge_of(vision: Mapping[str, Any]) -> int:
    """Return the number of patches on a side of the square that becomes an image token."""
    names = "spatial_merge_size", "merge_kernel_size", "pooling_kernel_size", "downsample_factor"
    merge = next((vision[name] for name in names if name in vision), 2)
    return int(merge if isinstance(merge, int) else merge[0])


def _extended(rows: Array, count: int) -> Array:
    """Return rows padded with a number of zero rows at the end."""
    return np.pad(rows, [(0, count), *[(0, 0)] * (rows.ndim - 1)])


def _nearest(size: int, side: int) -> Array:
    """Return the table position in whose part of the axis each position begins, as in PyTorch."""
    step = 1 / side
    bounds = (step + step * np.arange(np.ceil((1 - step) / step))).astype(np.float32)
    at = np.arange(size, dtype=np.float32) / np.float32(size)
    nearest: Array = np.searchsorted(bounds, at, side="right")
    return nearest


def _between(at: Array, size: int, side: int, taps: str) -> tuple[Array, Array]:
    """Return the table positions around each position on an axis, and their weights."""
    if taps:
        position = (at.astype(np.float32) + np.float32(0.5)) * np.float32(side) / np.float32(size)
        position -= np.float32(0.5)
    else:
        position = at.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    first = np.floor(position)
    around = np.arange(-1, 3) if taps == "bicubic" else np.arange(2)
    positions = np.clip(first.astype(np.int64)[:, None] + around, 0, side - 1)
    far = np.abs(position[:, None] - first[:, None] - around)
    near = _cubic(far) if taps == "bicubic" else np.clip(1 - far, 0, None)
    return positions, near.astype(np.float32)


def _antialiased(size: int, side: int) -> Array:
    """Return the weight of each table position for each position on an axis, (size, side), as in PyTorch."""
    scale = np.float32(side) / np.float32(size)
    middle = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * scale
    far = np.abs(np.arange(side, dtype=np.float32) + np.float32(0.5) - middle[:, None])
    near = np.clip(1 - far / max(scale, np.float32(1)), 0, None)
    shares: Array = near / near.sum(1, keepdims=True)
    return shares


def _cubic(far: Array) -> Array:
    """Return interpolation weights by distance, as in PyTorch: Keys' kernel with a = -0.75."""
    a = np.float32(-0.75)
    inner = ((a + 2) * far - (a + 3)) * far * far + 1
    outer = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
    return np.where(far <= 1, inner, outer)

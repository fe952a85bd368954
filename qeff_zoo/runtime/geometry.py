# SPDX-License-Identifier: Apache-2.0
"""Where the patches of a picture lie, as vision towers are told that take pictures of any size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class Tower:
    """What of a vision tower its geometry depends on.

    Args:
        merge: Patches on a side of the square that becomes a row of features.
        window: Rows of features on a side of a window of attention; 0 without windows.
        side: Positions on a side of a table of learned positions; 0 without one.
    """

    merge: int
    window: int = 0
    side: int = 0

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Tower":
        """Read a model's config.json."""
        vision = config["vision_config"]
        merge, patch = int(vision.get("spatial_merge_size", 2)), int(vision.get("patch_size", 14))
        window = int(vision.get("window_size", 0)) // merge // patch
        return cls(
            merge=merge, window=window, side=int(vision.get("num_position_embeddings", 0) ** 0.5)
        )

    def describe(self, grid: tuple[int, ...]) -> dict[str, Array]:
        """Return all that a program may be told of one picture.

        Args:
            grid: Time, height and width in patches.
        """
        time, height, width = grid
        rows, columns = self._places(height, width)
        told = {
            "position_ids": np.tile(np.stack([rows, columns], 1), (time, 1)),
            "cu_seqlens": np.arange(0, time * height * width + 1, height * width, dtype=np.int64),
        }
        if self.window:
            told |= self._windows(time, height // self.merge, width // self.merge)
        if self.side:
            told |= self._taps(time, rows, height, columns, width)
        # A program takes two segments or more: one of nothing is none.
        for name in {"cu_seqlens", "cu_window_seqlens"} & told.keys():
            if len(told[name]) == 2:
                told[name] = np.append(told[name], told[name][-1:])
        return told

    def _places(self, height: int, width: int) -> tuple[Array, Array]:
        """Return row and column of each patch, square by square of those that are merged."""
        shape = height // self.merge, self.merge, width // self.merge, self.merge
        rows, columns = np.indices((height, width))
        ordered = (one.reshape(shape).transpose(0, 2, 1, 3).reshape(-1) for one in (rows, columns))
        return next(ordered), next(ordered)

    def _windows(self, time: int, height: int, width: int) -> dict[str, Array]:
        """Return rows of features window by window, and where each window ends among the patches."""
        numbers = np.arange(time * height * width).reshape(time, height, width)
        windows = [
            numbers[frame, top : top + self.window, left : left + self.window].reshape(-1)
            for frame in range(time)
            for top in range(0, height, self.window)
            for left in range(0, width, self.window)
        ]
        ends = np.cumsum([0, *(len(one) * self.merge**2 for one in windows)], dtype=np.int64)
        return {"window_index": np.concatenate(windows), "cu_window_seqlens": ends}

    def _taps(
        self, time: int, rows: Array, height: int, columns: Array, width: int
    ) -> dict[str, Array]:
        """Return of each patch the four learned positions around it, and the weight of each."""
        (tops, above), (lefts, before) = (
            _between(at, size, self.side) for at, size in ((rows, height), (columns, width))
        )
        indices = (tops[:, :, None] * self.side + lefts[:, None, :]).reshape(-1, 4)
        weights = (above[:, :, None] * before[:, None, :]).reshape(-1, 4)
        return {
            "interp_indices": np.tile(indices, (time, 1)),
            "interp_weights": np.tile(weights, (time, 1)),
        }


def _between(at: Array, size: int, side: int) -> tuple[Array, Array]:
    """Return of places on an axis the two positions of a table around each, and how near each is."""
    place = at.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    first = np.floor(place)
    taps = np.clip(first.astype(np.int64)[:, None] + np.arange(2), 0, side - 1)
    near = np.clip(1 - np.abs(place[:, None] - first[:, None] - np.arange(2)), 0, None)
    return taps, near.astype(np.float32)

# SPDX-License-Identifier: Apache-2.0
"""Bounds of a predicted image: clipping to a range, and dynamic thresholding."""

from dataclasses import dataclass

import numpy as np

from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, single
from qeff_zoo.tasks.diffusion.schedulers.settings import Settings


@dataclass(frozen=True, kw_only=True)
class ThresholdSettings(Settings):
    """Settings of dynamic thresholding."""

    thresholding: bool = False
    dynamic_thresholding_ratio: float = 0.995
    sample_max_value: float = 1.0

    def bounded(self, image: FloatArray) -> FloatArray:
        """Return a predicted image within its bounds."""
        return self._thresholded(image) if self.thresholding else image

    def _thresholded(self, image: FloatArray) -> FloatArray:
        """Return images clipped to a quantile of their own values, and divided by it; (batch, channels, ...)."""
        flat = image.reshape(len(image), -1)
        bounds = _quantiles(np.abs(flat), self.dynamic_thresholding_ratio)
        bounds = np.clip(bounds, 1, self.sample_max_value).astype(np.float32)[:, None]
        return (np.clip(flat, -bounds, bounds) / bounds).reshape(image.shape)


@dataclass(frozen=True, kw_only=True)
class ClippingSettings(ThresholdSettings):
    """Settings of clipping and of dynamic thresholding, which replaces it."""

    clip_sample: bool = True
    clip_sample_range: float = 1.0

    def bounded(self, image: FloatArray) -> FloatArray:
        if self.clip_sample and not self.thresholding:
            return np.clip(
                image, np.float32(-self.clip_sample_range), np.float32(self.clip_sample_range)
            )
        return super().bounded(image)


def _quantiles(values: FloatArray, ratio: float) -> FloatArray:
    """Return a quantile of each row, interpolated between its neighbors, in the rounding of `torch.quantile`."""
    rank = np.float32(ratio) * np.float32(values.shape[1] - 1)
    below, above = int(np.floor(rank)), int(np.ceil(rank))
    ordered = np.sort(values, axis=1)
    low, high, weight = ordered[:, below], ordered[:, above], rank - np.float32(below)
    if weight < 0.5:
        return single(low + weight * (high - low))
    return single(high - (high - low) * (1 - weight))

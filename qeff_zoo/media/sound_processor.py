# SPDX-License-Identifier: Apache-2.0
"""Samples in, and out what a model takes that reads sounds among text, as transformers' processors prepare it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff_zoo.errors import MediaError
from qeff_zoo.media.features import Features
from qeff_zoo.media.sound import Samples

#: What a processor calls the number of rows that a sound becomes.
ROWS = "audio_embed_sizes"
#: Frames of silence behind a sound: those that hear some of it, and as much as is mirrored behind the last.
_BEHIND = 4


@dataclass(frozen=True)
class SoundProcessor:
    """Cuts a sound into windows, of which the last is filled up with silence; not where it is read at once.

    Args:
        features: How frames of a window are computed.
        shape: Bins and frames of a window.
        told: What the recipe says of sounds.
    """

    features: Features
    shape: tuple[int, ...]
    told: Mapping[str, Any]

    @property
    def rate(self) -> int:
        """Samples a second."""
        return self.features.rate

    def __call__(self, samples: Samples) -> dict[str, Any]:
        """Prepare a sound.

        Args:
            samples: Of one channel.

        Raises:
            MediaError: It is too long.
        """
        if self.told.get("blocks"):
            return {self.features.name: self.features.compute(samples)[None]}
        if self.told.get("chunks") or self.told.get("samples"):
            self._check_length(samples, self.features.most)
            logs = self.features.compute(samples)[None]
            return {self.features.name: logs, self.told["mask"]: np.ones(logs.shape[:2], bool)}
        if self.told.get("window"):
            compute = self._filled_up if self.told.get("filled") else self.features.compute
            logs = np.ascontiguousarray(compute(samples).T)[None]
            return {self.features.name: logs, self.told["mask"]: np.ones_like(logs[:, 0], np.int64)}
        if self.told.get("span"):
            logs, merged = self.features.compute(samples), self.shape[0]
            rows = np.array([-(-len(logs) // merged)])
            return {self.features.name: logs[None], ROWS: rows}
        frames = self.shape[1]
        width = frames * self.features.step
        windows, most = -(-len(samples) // width), int(self.told.get("windows", 0))
        self._check_length(samples, most * width)
        whole = np.zeros(windows * width, np.float32)
        whole[: len(samples)] = samples
        parts = [whole] if self.told.get("together") else np.split(whole, windows)
        logs = np.concatenate([self.features.compute(part) for part in parts])
        found = {
            self.features.name: np.ascontiguousarray(
                logs.reshape(windows, frames, -1).transpose(0, 2, 1), np.float32
            )
        }
        if name := self.told.get("mask"):
            real = np.arange(windows * frames) * self.features.step < len(samples)
            found[name] = real.reshape(windows, frames).astype(np.int64)
        return found

    def _filled_up(self, samples: Samples) -> Samples:
        """Compute the frames of a sound that has silence behind it, as much as the last of them hear."""
        step, most = self.features.step, self.features.most
        self._check_length(samples, most)
        count = -(-len(samples) // step)
        whole = np.zeros(min(most, (count + _BEHIND) * step), np.float32)
        whole[: len(samples)] = samples
        return self.features.compute(whole)[:count]

    def _check_length(self, samples: Samples, most: int) -> None:
        if 0 < most < len(samples):
            raise MediaError(
                f"The sound has {len(samples) / self.rate:,.1f} seconds; expected at most "
                f"{most / self.rate:,.0f}, which is what the model hears. Cut it."
            )

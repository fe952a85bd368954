# SPDX-License-Identifier: Apache-2.0
"""A program that hears, at work: a sound in, as a processor prepares it, its rows of features out."""

from collections.abc import Mapping

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.insets import Encoded
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.reading import Reader

FEATURES = "input_features"


class Hearing(Reader):
    """Reads sounds: `input_features`, (windows, bins, frames), and of models that ask what of them is no padding."""

    kind = "sounds"

    @property
    def shape(self) -> tuple[int, ...]:
        """Bins and frames of a window."""
        return tuple(map(int, self.program.inputs[FEATURES].shape[1:]))

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        features, name = prepared[FEATURES], self._told.get("mask", "")
        if features.shape[1:] != self.shape or (name and name not in prepared):
            raise GenerationError(
                f"A sound has {FEATURES} of {features.shape} and {sorted(prepared)}; expected windows of "
                f"{self.shape}{f' and {name}' if name else ''}. Give what the checkpoint's own processor returns."
            )
        found = [self._hear(prepared, number) for number in range(len(features))]
        rows = {key: np.concatenate([one[key] for one in found]) for key in found[0]}
        if not len(next(iter(rows.values()))):
            raise GenerationError(
                "A sound is too short to become a row of features; expected a twentieth of a second or more. Give a "
                "longer one."
            )
        return Encoded(digest=digest, features=rows, kind=self.kind)

    def _hear(self, prepared: Mapping[str, Array], number: int) -> dict[str, Array]:
        """Read a window by itself: windows do not hear one another."""
        window = {name: array[number : number + 1] for name, array in prepared.items()}
        window[FEATURES] = np.ascontiguousarray(window[FEATURES], np.float32)
        found = self._run(window)
        lengths = found.pop("lengths", None)
        stop = None if lengths is None else int(lengths[0])
        return {key: rows[:stop] for key, rows in found.items()}

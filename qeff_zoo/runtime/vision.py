# SPDX-License-Identifier: Apache-2.0
"""A vision program at work: a picture in, as a processor prepares it, its rows of features out, each picture once."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from qeff_zoo.runtime.geometry import Tower
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.sights import Picture

#: What a processor says of a picture that was cut into patches: time, height and width in patches.
GRID = "image_grid_thw"


class Vision:
    """Reads pictures, and remembers what it has read up to a budget of memory; the least recently used goes first.

    Args:
        program: Opened.
        config: config.json of the model.
        budget: Bytes of features that are kept.
    """

    def __init__(self, program: Program, config: Mapping[str, Any], budget: int) -> None:
        self.program, self._budget = program, budget
        #: Of a program that takes patches: what their geometry depends on.
        self.tower = Tower.read(config) if "position_ids" in program.inputs else None
        #: Bytes in use.
        self.used = 0
        #: Pictures that the program has read.
        self.read = 0
        self._in_use = threading.Lock()
        self._known: OrderedDict[bytes, Picture] = OrderedDict()

    def look(self, prepared: Mapping[str, Array]) -> Picture:
        """Return what a picture is to the language model.

        Args:
            prepared: `pixel_values` as the program takes them, and of one in patches `image_grid_thw`, (1, 3).
        """
        digest = _digest(prepared)
        with self._in_use:  # any thread may prepare a request
            picture = self._known.get(digest)
            if picture is None:
                picture = self._look(digest, prepared)
                self._keep(picture)
            else:
                self._known.move_to_end(digest)
        return picture

    def _look(self, digest: bytes, prepared: Mapping[str, Array]) -> Picture:
        self.read += 1
        inputs = {"pixel_values": np.ascontiguousarray(prepared["pixel_values"], np.float32)}
        grid: tuple[int, int, int] | None = None
        if self.tower is not None:
            time, height, width = (int(size) for size in prepared[GRID].reshape(3))
            inputs |= self.tower.describe((time, height, width))
            grid = time, height // self.tower.merge, width // self.tower.merge
        known = {name: array for name, array in inputs.items() if name in self.program.inputs}
        return Picture(digest=digest, features=dict(self.program.run(known)), grid=grid)

    def _keep(self, picture: Picture) -> None:
        if picture.nbytes > self._budget:
            return
        self._known[picture.digest] = picture
        self.used += picture.nbytes
        while self.used > self._budget:
            _, dropped = self._known.popitem(last=False)
            self.used -= dropped.nbytes


def _digest(prepared: Mapping[str, Array]) -> bytes:
    """Name a picture by all that is read of it."""
    digest = hashlib.blake2b(digest_size=32)
    for name in sorted(prepared):
        array = np.ascontiguousarray(prepared[name])
        digest.update(f"{name} {array.dtype} {array.shape};".encode())
        digest.update(array.tobytes())
    return digest.digest()

# SPDX-License-Identifier: Apache-2.0
"""A vision program at work: a picture in, as a processor prepares it, its rows of features out, each picture once."""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qeff_zoo.runtime.geometry import Tower
from qeff_zoo.runtime.layouts import LAYOUTS
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
        images: As the recipe says of them.
    """

    def __init__(
        self, program: Program, config: Mapping[str, Any], budget: int, images: Mapping[str, Any]
    ) -> None:
        self.program, self._config, self._budget = program, config, budget
        self._images, self.layout = images, LAYOUTS[images.get("layout", "")]
        #: Of a program that takes patches: what their geometry depends on.
        self.tower = Tower.read(config, images) if "position_ids" in program.inputs else None
        #: Bytes in use.
        self.used = 0
        #: Pictures that were asked for, and of those, how many the program has read.
        self.asked = self.read = 0
        self._in_use = threading.Lock()
        self._known: OrderedDict[bytes, Picture] = OrderedDict()

    def look(self, prepared: Mapping[str, Array]) -> Picture:
        """Return what a picture is to the language model.

        Args:
            prepared: `pixel_values` as the program takes them, and of one in patches `image_grid_thw`, (1, 3).
        """
        digest = _digest(prepared)
        with self._in_use:  # any thread may prepare a request
            self.asked += 1
            if digest in self._known:
                self._known.move_to_end(digest)
                return self._known[digest]
            begun = time.perf_counter()
            picture = self._look(digest, prepared)
            self._keep(picture)
        return replace(picture, seconds=time.perf_counter() - begun)

    def forget(self) -> None:
        """Drop all that was read."""
        with self._in_use:
            self._known.clear()
            self.used = 0

    def _look(self, digest: bytes, prepared: Mapping[str, Array]) -> Picture:
        self.read += 1
        pixels = np.ascontiguousarray(prepared["pixel_values"], np.float32)
        if self.tower is None:
            return self._look_at_tiles(digest, pixels, prepared)
        if self.tower.positions:
            told = self.tower.unpadded({**prepared, "pixel_values": pixels})
            frames, (width, height) = 1, (int(one) + 1 for one in told["position_ids"].max(0))
        else:
            frames, height, width = (int(size) for size in prepared[GRID].reshape(3))
            told = {
                "pixel_values": self.tower.ordered(pixels, (frames, height, width)),
                GRID: prepared[GRID],
                **self.tower.describe((frames, height, width)),
            }
        grid = frames, height // self.tower.merge, width // self.tower.merge
        return Picture(digest=digest, features=self._run(told), grid=grid)

    def _look_at_tiles(
        self, digest: bytes, pixels: Array, prepared: Mapping[str, Array]
    ) -> Picture:
        """Read tiles one by one: they do not see one another."""
        tiles: Sequence[Array] = [*pixels.reshape(-1, *pixels.shape[-3:])]
        if (mask := prepared.get(self._images.get("mask", ""))) is not None:
            real = mask.reshape(-1, *mask.shape[-2:]) > 0
            sizes = zip(tiles, real.any(2).sum(1), real.any(1).sum(1), strict=True)
            tiles = [tile[:, :height, :width] for tile, height, width in sizes]
        found = [self._run({"pixel_values": tile[None]}) for tile in tiles]
        features = {
            name: self.layout.arrange([tile[name] for tile in found], prepared, self._config)
            for name in found[0]
        }
        grid = self.layout.grid(len(tiles), prepared, self._config)
        return Picture(digest=digest, features=features, grid=grid)

    def _run(self, told: Mapping[str, Array]) -> dict[str, Array]:
        known = {name: array for name, array in told.items() if name in self.program.inputs}
        return dict(self.program.run(known))

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

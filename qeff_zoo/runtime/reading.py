# SPDX-License-Identifier: Apache-2.0
"""A program that reads pictures or sounds: one in, as a processor prepares it, its rows of features out, each once."""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from qeff_zoo.errors import HandoffError
from qeff_zoo.runtime.insets import Encoded, Kind
from qeff_zoo.runtime.layouts import LAYOUTS
from qeff_zoo.runtime.program import Array, Program


class Reader:
    """Remembers what it has read up to a budget of memory; the least recently used goes first.

    Args:
        program: Opened; None where another process has it.
        config: config.json of the model.
        budget: Bytes of features that are kept.
        told: What the recipe says of pictures or sounds.
    """

    kind: ClassVar[Kind]
    program: Program

    def __init__(
        self,
        program: Program | None,
        config: Mapping[str, Any],
        budget: int,
        told: Mapping[str, Any],
    ) -> None:
        if program is not None:
            self.program = program
        self._config, self._budget, self._told = config, budget, told
        #: How what it reads is written into a prompt.
        self.layout = LAYOUTS[told.get("layout", "")]
        #: Bytes in use.
        self.used = 0
        #: How many it was asked for, and of those, how many the program has read.
        self.asked = self.read = 0
        self._in_use = threading.Lock()
        self._known: OrderedDict[bytes, Encoded] = OrderedDict()

    def look(self, prepared: Mapping[str, Array]) -> Encoded:
        """Return what a picture or a sound is to the language model.

        Args:
            prepared: As the model's forward takes it.
        """
        digest = digest_of(prepared)
        with self._in_use:  # any thread may prepare a request
            self.asked += 1
            if digest in self._known:
                self._known.move_to_end(digest)
                return self._known[digest]
            begun = time.perf_counter()
            encoded = self._encode(digest, prepared)
            self.read += 1
            self._keep(encoded)
        return replace(encoded, seconds=time.perf_counter() - begun)

    def forget(self) -> None:
        """Drop all that was read."""
        with self._in_use:
            self._known.clear()
            self.used = 0

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        raise NotImplementedError

    def _run(self, told: Mapping[str, Array]) -> dict[str, Array]:
        known = {name: array for name, array in told.items() if name in self.program.inputs}
        return dict(self.program.run(known))

    def _keep(self, encoded: Encoded) -> None:
        if encoded.nbytes > self._budget:
            return
        self._known[encoded.digest] = encoded
        self.used += encoded.nbytes
        while self.used > self._budget:
            _, dropped = self._known.popitem(last=False)
            self.used -= dropped.nbytes


class Distant(Reader):
    """Lets other processes read pictures, of a package of --decode-only, which has no program for that."""

    kind = "pictures"
    #: Returns how rows of features lie, and those; set by who reaches such a process.
    ask: Callable[[Mapping[str, Array]], tuple[tuple[int, int, int], dict[str, Array]]] | None = (
        None
    )

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        if self.ask is None:
            raise HandoffError(
                "The package decodes alone (--decode-only) and reads no picture itself; expected a prefill server that "
                "does. Serve it with --role decode and --prefill-from, or run a whole package."
            )
        grid, features = self.ask(prepared)
        return Encoded(digest=digest, features=features, grid=grid)


def digest_of(prepared: Mapping[str, Array]) -> bytes:
    """Name a picture or a sound by all that is read of it."""
    digest = hashlib.blake2b(digest_size=32)
    for name in sorted(prepared):
        array = np.ascontiguousarray(prepared[name])
        digest.update(f"{name} {array.dtype} {array.shape};".encode())
        digest.update(array.tobytes())
    return digest.digest()

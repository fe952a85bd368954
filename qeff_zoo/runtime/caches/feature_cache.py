# SPDX-License-Identifier: Apache-2.0
"""Encoders of images or audio with a cache: the output of a processor in, features out, each encoded once."""

import copy
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from qeff_zoo.errors import HandoffError, MediaError
from qeff_zoo.runtime.caches.image_prompt_templates import Layout
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded, Kind
from qeff_zoo.runtime.program import Array, Program, Tensor, to_numpy


class _UncountableError(Exception):
    """Only the program can determine its number of features."""


class _Arrays(dict[str, Array]):
    """Arrays of a processor, of which an absent one is the caller's error.

    Args:
        kind: Kind of the input.
        arrays: Arrays by name.
    """

    def __init__(self, kind: Kind, arrays: Mapping[str, Array]) -> None:
        super().__init__(arrays)
        self._kind = kind

    def __missing__(self, name: str) -> Array:
        raise _not_prepared(self._kind, f"as {sorted(self)}; expected {name!r} among them")


class Reader:
    """Encoder with an LRU cache of features within a memory budget.

    Args:
        program: Encoder program, opened; None if another process has it.
        config: config.json of the model.
        budget: Maximum size of the cache in bytes.
        layout: Layout of features in a prompt; None for features in their own order.
    """

    kind: ClassVar[Kind]
    program: Program

    def __init__(
        self,
        program: Program | None,
        config: Mapping[str, Any],
        budget: int,
        layout: Layout | None = None,
    ) -> None:
        if program is not None:
            self.program = program
        self._config, self._budget = config, budget
        self.layout = layout or Layout()
        #: Bytes in use.
        self.used = 0
        #: Number of requested features, and of those, the number that the program encoded.
        self.asked = self.read = 0
        self._in_use = threading.Lock()
        self._counts = False
        self._known: OrderedDict[bytes, Encoded] = OrderedDict()

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of a processor's arrays, at least one of which is required; empty if another process checks them."""
        return ()

    def look(self, prepared: Mapping[str, Array]) -> Encoded:
        """Return the features of an image or audio input.

        Args:
            prepared: Arguments of the model's forward, as numpy or torch arrays.

        Raises:
            MediaError: If the arrays are not those of the model's processor.
            HandoffError: If another process has the encoder, and there is no client of it.
        """
        prepared = self._checked(prepared)
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

    def measure(self, prepared: Mapping[str, Any]) -> Encoded | None:
        """Return the result of `look` without the values of the features; nothing is computed.

        Args:
            prepared: Arrays as for `look`; only their shapes count.

        Returns:
            Zeros in the number of the features; None if only the program can determine that.

        Raises:
            MediaError: If the shapes are not those of the model's processor.
        """
        counting = copy.copy(self)
        counting._counts = True
        try:
            arrays = _Arrays(self.kind, {name: to_numpy(array) for name, array in prepared.items()})
            return counting._encode(b"", arrays)
        except _UncountableError:
            return None

    def forget(self) -> None:
        """Clear the cache."""
        with self._in_use:
            self._known.clear()
            self.used = 0

    def _checked(self, prepared: Mapping[str, Any]) -> dict[str, Array]:
        """Return prepared inputs as checked arrays; they are untrusted."""
        arrays = {name: to_numpy(value) for name, value in prepared.items()}
        if self.needed and arrays.keys().isdisjoint(self.needed):
            wanted = " or ".join(map(repr, self.needed))
            raise _not_prepared(self.kind, f"as {sorted(arrays)}; expected {wanted} among them")
        for name, array in arrays.items():
            if array.dtype.kind not in "biuf":
                raise _not_prepared(
                    self.kind, f"and {name} is of type {array.dtype}; expected numbers"
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise _not_prepared(
                    self.kind, f"and {name} has values that are no numbers; expected finite ones"
                )
        return _Arrays(self.kind, arrays)

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        raise NotImplementedError

    def _run(
        self, arguments: Mapping[str, Array], program: Program | None = None
    ) -> dict[str, Array]:
        """Run a program, by default that of this encoder, on those of the arrays that are its inputs."""
        program = program or self.program
        known = {name: array for name, array in arguments.items() if name in program.inputs}
        for name, array in known.items():
            shape = program.inputs[name].shape
            fixed = [size if isinstance(size, int) else None for size in shape]
            if len(fixed) != array.ndim or any(
                size not in (None, found) for size, found in zip(fixed, array.shape, strict=True)
            ):
                raise _not_prepared(self.kind, f"and {name} is {array.shape}; expected {shape}")
        if self._counts:
            return {
                name: np.zeros(self._shape(output, known))
                for name, output in program.outputs.items()
            }
        contiguous = {name: np.ascontiguousarray(array) for name, array in known.items()}
        return dict(program.run(contiguous))

    def _shape(self, output: Tensor, arguments: Mapping[str, Array]) -> tuple[int, ...]:
        """Return the shape of an output, reduced to its number of features: (features, 1).

        Raises:
            _UncountableError: If the program determines the number of features.
        """
        if not all(isinstance(size, int) for size in output.shape[:-1]):
            raise _UncountableError
        return (*output.shape[:-1], 1)

    def _keep(self, encoded: Encoded) -> None:
        if encoded.nbytes > self._budget:
            return
        self._known[encoded.digest] = encoded
        self.used += encoded.nbytes
        while self.used > self._budget:
            _, dropped = self._known.popitem(last=False)
            self.used -= dropped.nbytes


def _not_prepared(kind: Kind, problem: str) -> MediaError:
    one = {"images": "An image", "audio": "A recording"}[kind]
    return MediaError(
        f"{one} was prepared, {problem}. Give what the checkpoint's own processor returns of {one.lower()}."
    )


class RemoteEncoder(Reader):
    """Image encoder in another process, for packages of --decode-only, which have no vision program."""

    kind = "images"
    #: Returns the grid of features, and the features; set by the client of such a process.
    request_features: (
        Callable[[Mapping[str, Array]], tuple[tuple[int, int, int], dict[str, Array]]] | None
    ) = None

    def _encode(self, digest: bytes, prepared: Mapping[str, Array]) -> Encoded:
        if self._counts:
            raise _UncountableError
        if self.request_features is None:
            raise HandoffError(
                "The package decodes alone (--decode-only) and reads no image itself; expected a prefill server that "
                "does. Serve it with --role decode and --prefill-from, or run a whole package."
            )
        grid, features = self.request_features(prepared)
        return Encoded(digest=digest, features=features, grid=grid)


def digest_of(prepared: Mapping[str, Array]) -> bytes:
    """Return the digest of an image or audio input over all encoder inputs."""
    digest = hashlib.blake2b(digest_size=32)
    for name in sorted(prepared):
        array = np.ascontiguousarray(prepared[name])
        digest.update(f"{name} {array.dtype} {array.shape};".encode())
        digest.update(array.tobytes())
    return digest.digest()

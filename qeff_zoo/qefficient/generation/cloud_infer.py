# SPDX-License-Identifier: Apache-2.0
"""QEfficient's `QAICInferenceSession`: one program of a package, called with named arrays.

The program may be for any target. Inputs and outputs have QEfficient's names and shapes: position -1 is padding, a call
may be for some batch slots (`batch_index`), and states that are given replace those of the program.
"""

import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo import targets
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.package.prepared import SCRIPT
from qeff_zoo.package.programs import CompiledProgram
from qeff_zoo.qefficient.execution import on_devices
from qeff_zoo.qefficient.functions import package_at
from qeff_zoo.runtime.program import Array

from .calls import Calls, Described
from .vision import ImageCalls, VisionCalls

_INPUT, _OUTPUT = 0, 1
_SLOTS, _VISION = "full_batch_size", "vision"
#: Prefix of `kv_cache_prefix` in a state's name: `past_key.0_PREFIX`, `past_key.0_PREFIX_RetainedState`.
_PREFIX = re.compile(r"(?<=\.)(\d+)_(?!RetainedState$)[A-Za-z0-9]+(?=_RetainedState$|$)")


def _plain(name: str) -> str:
    """Return the name of a state without the prefix of `kv_cache_prefix`."""
    return _PREFIX.sub(r"\1", name)


class Outputs(dict[str, Array]):
    """Outputs of a call by name; those of states also by their names with any `kv_cache_prefix`, or without one.

    Example:
        >>> Outputs({"past_key.0_RetainedState": 1})["past_key.0_VLLM_RetainedState"]
        1
    """

    def __missing__(self, name: str) -> Array:
        plain = _plain(name)
        match = next((one for one in self if _plain(one) == plain), None)
        if match is None:
            raise KeyError(name)
        return self[match]


@dataclass(frozen=True)
class Binding:
    """Input or output of a program.

    Args:
        name: Name.
        index: Place among the bindings.
        dir: 0 for an input, 1 for an output.
        type: Data type, by numpy's name.
        dims: Shape in the first specialization; 1 for an axis that each call sets.
        size: Number of bytes.
        is_partial_buf_allowed: Whether a call may leave it out.
    """

    name: str
    index: int
    dir: int
    type: str
    dims: tuple[int, ...]
    size: int
    is_partial_buf_allowed: bool


class QAICInferenceSession:
    """Open program of a package, called with named arrays.

    Args:
        qpc_path: Folder of a package, or a program's path in it, as `compile` returns both.
        device_ids: Ids of the cards; None for free ones.
        activate: Whether the program is opened now; else by `activate`.
        enable_debug_logs: QEfficient's argument, without effect.
        data_path_timeout_ms: QEfficient's argument, without effect: a call on a card ends after 60 seconds.

    Raises:
        PackageError: There is no such package.
        GenerationError: The folder is prepared and has no program yet.

    Example:
        >>> session = QAICInferenceSession(model.compile(ctx_len=128))  # doctest: +SKIP
        >>> session.skip_buffers(
        ...     [name for name in session.input_names if name.startswith("past_")]
        ... )  # doctest: +SKIP
        >>> session.run({"input_ids": tokens, "position_ids": positions})[
        ...     "logits"
        ... ]  # doctest: +SKIP
    """

    def __init__(
        self,
        qpc_path: str | os.PathLike[str],
        device_ids: Sequence[int] | None = None,
        activate: bool = True,
        enable_debug_logs: bool = False,
        data_path_timeout_ms: int = 60_000,
    ) -> None:
        self.package, self._compiled = program_at(Path(qpc_path))
        self._device_ids = device_ids
        #: Sizes of images that `compile` was given.
        self._image_sizes: tuple[str, ...] = getattr(qpc_path, "image_sizes", ())
        self._calls: Calls | None = None
        self._buffers: dict[str, Array] = {}
        self._skipped: set[str] = set()
        self.bindings = self._bind()
        self.binding_index_map = {binding.name: binding.index for binding in self.bindings}
        #: Data types by `Binding.type`.
        self.aic_to_np_dtype_mapping = {
            binding.type: np.dtype(binding.type) for binding in self.bindings
        }
        if activate:
            self.activate()

    @property
    def is_active(self) -> bool:
        """Whether the program is open."""
        return self._calls is not None

    @property
    def input_names(self) -> list[str]:
        """Names of inputs, states among them."""
        return [binding.name for binding in self.bindings if binding.dir == _INPUT]

    @property
    def output_names(self) -> list[str]:
        """Names of outputs; that of a state ends with `_RetainedState`."""
        return [binding.name for binding in self.bindings if binding.dir == _OUTPUT]

    @property
    def allowed_shapes(self) -> list[list[tuple[int, list[int]]]]:
        """Item size and shape of each binding, for each specialization."""
        return [
            [
                (
                    np.dtype(binding.type).itemsize,
                    [*_sizes(self._axes[binding.name], entry["symbols"])],
                )
                for binding in self.bindings
            ]
            for entry in self._compiled.specializations
        ]

    def activate(self) -> None:
        """Open the program, unless it is open."""
        if self._calls is not None:
            return
        with on_devices(self.package, self._device_ids):
            target = targets.find(self.package.target)
            program = target.open(self.package, self._compiled.role)
        self._calls = self._calls_type(self.package, program, self._image_sizes)

    def deactivate(self) -> None:
        """Close the program; its states are lost."""
        close = getattr(getattr(self._calls, "program", None), "close", None)
        self._calls = None
        if close is not None:
            close()

    def set_buffers(self, buffers: Mapping[str, Any]) -> None:
        """Set inputs of all later calls; an array in place of an output only ends its being skipped.

        Args:
            buffers: Arrays by name.
        """
        self._buffers.update(self._known(buffers))

    def _known(self, buffers: Mapping[str, Any]) -> dict[str, Array]:
        """Return the inputs among arrays; warn about unknown names."""
        known = self.binding_index_map.keys() | self._calls_type.accepts
        outputs = {binding.name for binding in self.bindings if binding.dir == _OUTPUT}
        buffers = self._by_own_names(buffers)
        for name in buffers.keys() - known:
            warnings.warn(f"Buffer {name!r} is not found in {self._compiled.path!r}.", stacklevel=3)
        self._skipped -= buffers.keys()
        names = (known - outputs) & buffers.keys()
        return {name: np.asarray(buffers[name]) for name in names}

    def _by_own_names(self, buffers: Mapping[str, Any]) -> dict[str, Any]:
        """Return arrays by the program's names of states, whatever their `kv_cache_prefix`."""
        own = {
            _plain(binding.name): binding.name
            for binding in self.bindings
            if binding.is_partial_buf_allowed
        }
        return {own.get(_plain(name), name): buffer for name, buffer in buffers.items()}

    def skip_buffers(self, skipped_buffer_names: Iterable[str]) -> None:
        """Leave inputs out of the next calls, and outputs out of their results: states stay in the program.

        Args:
            skipped_buffer_names: Names.
        """
        for name in self._by_own_names(dict.fromkeys(skipped_buffer_names)):
            self._skipped.add(name)
            self._buffers.pop(name, None)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run one call.

        Args:
            inputs: Arrays by name, beside those of `set_buffers`.

        Returns:
            Outputs by name, with memory of their own; states also by names with a `kv_cache_prefix`.

        Raises:
            GenerationError: The session is not active, an input is missing, or the program does not take its shape.
        """
        if self._calls is None:
            raise GenerationError(
                f"The session of {str(self.package.path)!r} is not active; expected an open program. Call `activate` "
                "before `run`."
            )
        given = self._buffers | self._known(inputs)
        for state in self._compiled.states:  # is taken over by the program
            self._buffers.pop(state.name, None)
        wanted = [name for name in self.output_names if name not in self._skipped]
        return Outputs(self._calls.run(given, wanted))

    @property
    def _calls_type(self) -> type[Calls]:
        if self._compiled.role == _VISION:
            return VisionCalls
        return ImageCalls if "images" in self.package.manifest["spec"]["task"] else Calls

    def _bind(self) -> list[Binding]:
        """Return all inputs and outputs in QEfficient's order: inputs, states, outputs."""
        program, states = self._compiled, self._compiled.states
        first = program.specializations[0]["symbols"] if program.specializations else {}
        given = self._calls_type.inputs_by_name(_by_name(program.inputs))
        if _SLOTS in first:
            given["batch_index"] = "int64", ("batch_size", 1)
        kept = {state.name: ("float32", state.axes) for state in states}
        outputs = self._calls_type.outputs_by_name(_by_name(program.outputs))
        written = {state.output: ("float32", state.axes) for state in states if state.written}
        sides = [*[_INPUT] * len(given | kept), *[_OUTPUT] * len(outputs | written)]
        every = given | kept | outputs | written
        self._axes = {name: axes for name, (_, axes) in every.items()}
        bindings = []
        for index, (side, (name, (dtype, axes))) in enumerate(
            zip(sides, every.items(), strict=True)
        ):
            dims = (*_sizes(axes, first),)
            size = prod(dims) * np.dtype(dtype).itemsize
            bindings.append(Binding(name, index, side, dtype, dims, size, name in kept | written))
        return bindings


def _by_name(entries: Iterable[Mapping[str, Any]]) -> dict[str, Described]:
    return {entry["name"]: (entry["dtype"], tuple(entry["shape"])) for entry in entries}


def _sizes(axes: Iterable[int | str | None], symbols: Mapping[str, str]) -> Iterable[int]:
    return (axis if isinstance(axis, int) else int(symbols.get(str(axis), 1)) for axis in axes)


def program_at(path: Path) -> tuple[Package, CompiledProgram]:
    """Return the package of a path, and the program: that of the path, or the one that decodes.

    Args:
        path: Folder of a package, or path of a program in it.

    Raises:
        GenerationError: The folder is prepared, and not compiled.
    """
    if (path / SCRIPT).is_file():
        raise GenerationError(
            f"{str(path)!r} is prepared, and has no program yet; expected a package. Run {SCRIPT} in it on a machine "
            "with the SDK, then `qeff-zoo adopt`, and open the folder that it prints."
        )
    for folder in path.parents:
        if (folder / "manifest.json").is_file() and not (path / "manifest.json").is_file():
            package = Package.open(folder)
            inside = path.relative_to(folder).as_posix()
            if programs := [program for program in package.programs if program.path == inside]:
                return package, programs[0]
    package = package_at(path)
    return package, next(
        (program for program in package.programs if program.states), package.programs[0]
    )

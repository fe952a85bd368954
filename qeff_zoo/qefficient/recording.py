# SPDX-License-Identifier: Apache-2.0
"""Files of the arrays that a program reads and returns: QEfficient's `write_io` of `generate`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from qeff_zoo import targets
from qeff_zoo.package import Package
from qeff_zoo.qefficient.exported import place
from qeff_zoo.runtime.program import Array, Observed, Program
from qeff_zoo.targets.base import OpenOptions

_G = TypeVar("_G", bound=Callable[..., Any])
#: Parent folder of the files.
FOLDER = "io_dir"


class Recording:
    """First call of each shape of a package's programs, as files: `ROLE/NUMBER/NAME.npy`.

    Args:
        package: Package of the programs.
        folder: Parent folder of the files.
    """

    def __init__(self, package: Package, folder: Path) -> None:
        self._package, self._folder = package, folder
        self._shapes: dict[str, list[object]] = {}

    def open(self, role: str, options: OpenOptions) -> Program:
        """Open a program whose calls are recorded.

        Args:
            role: Role of the program.
            options: Options of the program.
        """
        program = targets.find(self._package.target).open(self._package, role, options)
        return cast("Program", Observed(program, partial(self._observe, role)))

    def _observe(
        self,
        role: str,
        inputs: Mapping[str, Array],
        slots: Sequence[int],
        outputs: Mapping[str, Array],
    ) -> None:
        import numpy as np

        shapes = self._shapes.setdefault(role, [])
        shape = {name: np.shape(array) for name, array in inputs.items()}
        if shape in shapes:
            return
        shapes.append(shape)
        for kind, arrays in (("inputs", inputs), ("outputs", outputs)):
            folder = self._folder / role / str(len(shapes)) / kind
            folder.mkdir(parents=True, exist_ok=True)
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array)


def records_calls(generate: _G) -> _G:
    """Return a `generate` with QEfficient's `write_io`: True to write the arrays of calls below `qeff_models` here.

    Args:
        generate: Method of a class of `Model`.
    """

    @wraps(generate)
    def generated(self: Any, *given: Any, write_io: bool = False, **named: Any) -> Any:
        if not write_io or self.package is None:
            return generate(self, *given, **named)
        package = self.package
        folder = place(self.model_name, package.target, package.build_key) / FOLDER
        before, self._session = self._session, None
        self._opening = Recording(package, folder).open
        try:
            return generate(self, *given, **named)
        finally:
            self._session, self._opening = before, None

    return cast("_G", generated)

# SPDX-License-Identifier: Apache-2.0
"""File of the importance of columns, by which a package's matrices were rounded: validation rounds alike.

Importance is float16: of a matrix (columns), of a stack (experts, columns); see `qeff_zoo.export.importance`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from safetensors.numpy import load_file, save_file

Importance: TypeAlias = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What random tokens show about matrices.

    Args:
        importance: Importance of columns, by name.
        costs: Cost in nats of a squared error in each column, likewise; empty unless requested.
    """

    importance: Importance = field(default_factory=dict)
    costs: Importance = field(default_factory=dict)


#: Path in a package's folder. Nothing that computes with the package reads it.
IMPORTANCE = "evidence/importance.safetensors"


def save(importance: Importance, folder: Path) -> None:
    """Write the file of a package.

    Args:
        importance: Importance by name of the matrix or stack.
        folder: Folder of the package.
    """
    path = folder / IMPORTANCE
    path.parent.mkdir(exist_ok=True)
    save_file(dict(importance), path)


def load(path: Path | None) -> Importance:
    """Read the file of a package; empty for a package without one."""
    return {} if path is None else load_file(path)


def of_matrix(importance: Importance, name: str) -> Any:
    """Return the importance of a matrix or stack, float32: (columns), or (experts, columns); None if it is unknown.

    Args:
        importance: Importance by name.
        name: Name of the parameter; `name.3` is the fourth matrix of a stack, or one of rows from the fourth on.
    """
    found = importance.get(name)
    if found is None:
        stem, _, number = name.rpartition(".")
        found = importance.get(stem) if number.isdecimal() else None
        if found is not None and found.ndim > 1:
            found = found[int(number)]
    return None if found is None else found.astype(np.float32)


def of_slots(importance: Importance, slots: Iterable[str]) -> tuple[Importance, Importance]:
    """Return the importance of slots in float32, and that of the matrices that these have, by their names.

    Args:
        importance: Importance by name.
        slots: Names of slots; joined ones have those of their parts, with + between them.
    """
    by_slot: dict[str, Any] = {}
    by_matrix: dict[str, Any] = {}
    for slot in slots:
        names = slot.split("+")
        every = [of_matrix(importance, name) for name in names]
        first = every[0]
        if first is None or not all(
            one is not None and np.array_equal(one, first) for one in every
        ):
            continue  # columns that are read by other parts in another way
        by_slot[slot] = first
        by_matrix |= dict.fromkeys(names, first.astype(np.float16))
    return by_slot, by_matrix

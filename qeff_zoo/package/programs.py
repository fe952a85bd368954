# SPDX-License-Identifier: Apache-2.0
"""The programs of a package, read from its manifest, and the entries that a build writes there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qeff_zoo.graph.numerics import Numerics
from qeff_zoo.graph.states import VISION_SIZE, State
from qeff_zoo.package.identity import program_key


@dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """One program of a package.

    Args:
        role: "decoder", "encoder", ….
        path: Path in the package.
        key: Names it by all that its compiler read, see `qeff_zoo.package.identity.program_key`.
        specializations: Named sizes that it was compiled for.
        inputs: Inputs of a call other than states: name, dtype and shape of each.
        outputs: Outputs of a call other than states.
        states: States retained from call to call.
        numerics: Roundings of the program.
        flags: Given to its compiler.
        compiler: Name and version.
        vision_size: Rows of features that an image becomes which it reads itself; 0 where it reads none.
        ways: Number of operations of each kind by the way in which they were lowered.
    """

    role: str
    path: str
    key: str
    specializations: Sequence[Mapping[str, Any]]
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    states: tuple[State, ...]
    numerics: Numerics
    flags: Mapping[str, Any]
    compiler: Mapping[str, Any]
    vision_size: int = 0
    ways: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> "CompiledProgram":
        """Read an entry of a manifest's `programs`."""
        fields = ("name", "kind", "layer", "axes")
        return cls(
            role=entry["role"],
            path=entry["path"],
            key=entry["program_key"],
            specializations=entry["specializations"],
            inputs=entry["inputs"],
            outputs=entry["outputs"],
            states=tuple(
                State.from_dict({name: state[name] for name in fields}) for state in entry["states"]
            ),
            numerics=Numerics.from_dict(entry["numerics"]),
            flags=entry["compiled_from"]["flags"],
            compiler=entry["compiled_from"]["compiler"],
            vision_size=entry.get(VISION_SIZE, 0),
            ways=entry.get("ways", {}),
        )

    @property
    def ctx_len(self) -> int:
        """Rows of its cache; 0 without one."""
        return max(int(entry["symbols"].get("ctx_len", 0)) for entry in self.specializations)


def key_of(entry: Mapping[str, Any]) -> str:
    """Compute the program key of an entry of a manifest's `programs`."""
    return program_key(graph=entry["graph"]["digest"], **entry["compiled_from"])

# SPDX-License-Identifier: Apache-2.0
"""Targets: what a package is compiled for and runs on. One folder or file a target, found by its name.

A target resolves what a plan leaves to it, lowers the portable graph of a program to what its compiler likes best,
compiles that, and opens the program to run it. The pipeline, the runtime and validation know this protocol alone.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

#: Every target, the default first: a module of this package with a value `TARGET`, `-` written `_`.
NAMES = ("ort",)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What a target adds to a plan.

    Args:
        toolchain: Versions of what lowers and compiles, by distribution; they are part of a package's identity.
        needs: What a machine must have to run the package: versions by name.
        flags: Of its compiler.
    """

    toolchain: Mapping[str, str]
    needs: Mapping[str, str]
    flags: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class Target(Protocol):
    """What every target says and does. Importing one imports nothing heavy."""

    #: As in `--target` and the manifest.
    name: str
    #: Raised when the same graph comes to be lowered or compiled otherwise: part of a package's identity.
    revision: int
    #: Names of the formats that it takes weights in, from `qeff_zoo.numerics.WEIGHTS`.
    weights: tuple[str, ...]

    def resolve(self) -> Resolved:
        """Return the versions and flags of a build on this machine."""
        ...


def find(name: str) -> Target:
    """Return a target by its name, one of `NAMES`."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    target: Target = module.TARGET
    return target

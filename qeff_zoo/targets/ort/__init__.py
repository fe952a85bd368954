# SPDX-License-Identifier: Apache-2.0
"""The embedded default: ONNX Runtime on the CPU."""

from dataclasses import dataclass

from qeff_zoo.numerics import WEIGHTS
from qeff_zoo.targets import Resolved
from qeff_zoo.versions import installed


@dataclass(frozen=True)
class OrtTarget:
    """See `qeff_zoo.targets.Target`."""

    name: str = "ort"
    revision: int = 1
    weights: tuple[str, ...] = WEIGHTS

    def resolve(self) -> Resolved:
        """Return the installed ONNX Runtime, which lowers, compiles and runs."""
        version = installed("onnxruntime") or "absent"
        return Resolved(toolchain={"onnxruntime": version}, needs={"onnxruntime": f">={version}"})


TARGET = OrtTarget()

# SPDX-License-Identifier: Apache-2.0
"""qeff-zoo: validated, compiled packages of Hugging Face models for Qualcomm Cloud AI 100 and ONNX Runtime."""

from qeff_zoo.api import build, find_package, load, pull, quantize
from qeff_zoo.errors import (
    CheckpointError,
    CompileError,
    ExportError,
    GenerationError,
    PackageError,
    ParityError,
    PlanError,
    StoreError,
    UnsupportedModelError,
    ZooError,
)
from qeff_zoo.package import Package
from qeff_zoo.registry import find_recipe, list_recipes

__all__ = [
    "CheckpointError",
    "CompileError",
    "ExportError",
    "GenerationError",
    "Package",
    "PackageError",
    "ParityError",
    "PlanError",
    "StoreError",
    "UnsupportedModelError",
    "ZooError",
    "build",
    "find_package",
    "find_recipe",
    "list_recipes",
    "load",
    "pull",
    "quantize",
]

# SPDX-License-Identifier: Apache-2.0
"""qeff-zoo: validated, compiled packages of Hugging Face models for Qualcomm Cloud AI 100 and ONNX Runtime."""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from qeff_zoo.qefficient import (
        QEffAutoLoraModelForCausalLM,
        QEFFAutoModel,
        QEFFAutoModelForCausalLM,
        QEFFAutoModelForCTC,
        QEFFAutoModelForImageTextToText,
        QEFFAutoModelForSequenceClassification,
        QEFFAutoModelForSpeechSeq2Seq,
        QEffAutoPeftModelForCausalLM,
        QEffFluxPipeline,
        QEffWanImageToVideoPipeline,
        QEffWanPipeline,
    )

__all__ = [
    "CheckpointError",
    "CompileError",
    "ExportError",
    "GenerationError",
    "Package",
    "PackageError",
    "ParityError",
    "PlanError",
    "QEFFAutoModel",
    "QEFFAutoModelForCTC",
    "QEFFAutoModelForCausalLM",
    "QEFFAutoModelForImageTextToText",
    "QEFFAutoModelForSequenceClassification",
    "QEFFAutoModelForSpeechSeq2Seq",
    "QEffAutoLoraModelForCausalLM",
    "QEffAutoPeftModelForCausalLM",
    "QEffFluxPipeline",
    "QEffWanImageToVideoPipeline",
    "QEffWanPipeline",
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


def __getattr__(name: str) -> Any:
    """Import QEfficient's classes when they are first used: they need more than the rest."""
    if name.startswith(("QEFF", "QEff")) and name in __all__:
        from qeff_zoo import qefficient

        return getattr(qefficient, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

# SPDX-License-Identifier: Apache-2.0
"""QEfficient's Python interface: its classes and functions, on top of our plan, store and runtime.

`import qeff_zoo.qefficient as QEfficient` is the only line that changes; docs/from-qefficient.md lists the differences.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qeff_zoo.qefficient import counterparts

if TYPE_CHECKING:
    from qeff_zoo.qefficient.causal import QEFFAutoModelForCausalLM
    from qeff_zoo.qefficient.encoders import (
        QEFFAutoModel,
        QEFFAutoModelForCTC,
        QEFFAutoModelForSequenceClassification,
    )
    from qeff_zoo.qefficient.execution import CloudAI100ExecInfo, PerfMetrics
    from qeff_zoo.qefficient.functions import cloud_ai_100_exec_kv, compile, export, transform
    from qeff_zoo.qefficient.loading import QEFFCommonLoader
    from qeff_zoo.qefficient.lora import QEffAutoLoraModelForCausalLM, QEffAutoPeftModelForCausalLM
    from qeff_zoo.qefficient.speech import QEFFAutoModelForSpeechSeq2Seq
    from qeff_zoo.qefficient.text_to_image import QEffFluxPipeline
    from qeff_zoo.qefficient.text_to_video import QEffWanImageToVideoPipeline, QEffWanPipeline
    from qeff_zoo.qefficient.vision import QEFFAutoModelForImageTextToText

__all__ = [
    "CloudAI100ExecInfo",
    "PerfMetrics",
    "QEFFAutoModel",
    "QEFFAutoModelForCTC",
    "QEFFAutoModelForCausalLM",
    "QEFFAutoModelForImageTextToText",
    "QEFFAutoModelForSequenceClassification",
    "QEFFAutoModelForSpeechSeq2Seq",
    "QEFFCommonLoader",
    "QEffAutoLoraModelForCausalLM",
    "QEffAutoPeftModelForCausalLM",
    "QEffFluxPipeline",
    "QEffWanImageToVideoPipeline",
    "QEffWanPipeline",
    "cloud_ai_100_exec_kv",
    "compile",
    "export",
    "transform",
]

_MODULES = {
    "causal": ("QEFFAutoModelForCausalLM",),
    "encoders": (
        "QEFFAutoModel",
        "QEFFAutoModelForCTC",
        "QEFFAutoModelForSequenceClassification",
    ),
    "execution": ("CloudAI100ExecInfo", "PerfMetrics"),
    "functions": ("cloud_ai_100_exec_kv", "compile", "export", "transform"),
    "loading": ("QEFFCommonLoader",),
    "lora": ("QEffAutoLoraModelForCausalLM", "QEffAutoPeftModelForCausalLM"),
    "speech": ("QEFFAutoModelForSpeechSeq2Seq",),
    "text_to_image": ("QEffFluxPipeline",),
    "text_to_video": ("QEffWanImageToVideoPipeline", "QEffWanPipeline"),
    "vision": ("QEFFAutoModelForImageTextToText",),
}


counterparts.install()
_other = counterparts.names_of(__name__)


def __getattr__(name: str) -> Any:
    """Import a name on first use: the command lines beside the classes start without numpy."""
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    return _other(name)

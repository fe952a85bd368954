# SPDX-License-Identifier: Apache-2.0
"""QEfficient's Python interface: its classes and functions, on top of our plan, store and runtime.

`import qeff_zoo.auto as QEfficient` is the one line that changes; docs/from-qefficient.md says what differs.
"""

from qeff_zoo.auto.causal import QEFFAutoModelForCausalLM
from qeff_zoo.auto.encoders import (
    QEFFAutoModel,
    QEFFAutoModelForCTC,
    QEFFAutoModelForSequenceClassification,
)
from qeff_zoo.auto.execution import CloudAI100ExecInfo, PerfMetrics
from qeff_zoo.auto.functions import cloud_ai_100_exec_kv, compile, export, transform
from qeff_zoo.auto.lora import QEffAutoLoraModelForCausalLM, QEffAutoPeftModelForCausalLM
from qeff_zoo.auto.speech import QEFFAutoModelForSpeechSeq2Seq
from qeff_zoo.auto.vision import QEFFAutoModelForImageTextToText

__all__ = [
    "CloudAI100ExecInfo",
    "PerfMetrics",
    "QEFFAutoModel",
    "QEFFAutoModelForCTC",
    "QEFFAutoModelForCausalLM",
    "QEFFAutoModelForImageTextToText",
    "QEFFAutoModelForSequenceClassification",
    "QEFFAutoModelForSpeechSeq2Seq",
    "QEffAutoLoraModelForCausalLM",
    "QEffAutoPeftModelForCausalLM",
    "cloud_ai_100_exec_kv",
    "compile",
    "export",
    "transform",
]

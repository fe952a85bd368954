# SPDX-License-Identifier: Apache-2.0
"""The `token-classification` contract: a score of every label for each token.

IN   input_ids, attention_mask: see `qeff_zoo.tasks.encoders`
OUT  logits (batch_size, seq_len, labels)
"""

from typing import Any

from qeff_zoo.tasks import Tracing, encoders
from qeff_zoo.tasks.encoders import run_once as probe
from qeff_zoo.tasks.text_classification import Classify

__all__ = ["probe", "tracing"]


def tracing(model: Any) -> Tracing:
    """Describe how to trace `model`: wrapped module, example inputs, names and symbols."""
    return encoders.describe(model, Classify(model), "logits")

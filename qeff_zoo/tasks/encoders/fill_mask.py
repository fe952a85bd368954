# SPDX-License-Identifier: Apache-2.0
"""The `fill-mask` contract: logits of the vocabulary for each token, of which those of masks count.

IN   input_ids, attention_mask: see `qeff_zoo.tasks.encoders.whole_texts`
OUT  logits (batch_size, seq_len, vocab_size)
"""

from typing import Any

from qeff_zoo.contract import FILL_MASK, MASKED_LM, Tracing, lazy
from qeff_zoo.contract.comparison import MASKED_LOGITS

from . import whole_texts


def _tracing(model: Any) -> Tracing:
    from qeff_zoo.tasks.encoders.classification_tracing import Classify

    return whole_texts.describe(model, Classify(model), "logits")


TASK = whole_texts.task_of(
    name=FILL_MASK,
    does="fill masks in texts",
    guide="embeddings.md",
    noun="FillMask",
    verb="FillMasks",
    options=("top_k", "targets"),
    comparison=MASKED_LOGITS,
    by_token=True,
    auto_classes=("AutoModelForMaskedLM",),
    suffixes=(MASKED_LM,),
    tracing=_tracing,
    session=lazy("qeff_zoo.tasks.encoders.fill_mask_session:FillMaskSession"),
    public=(
        "qeff_zoo.tasks.encoders.fill_mask_session:Fill",
        "qeff_zoo.tasks.encoders.fill_mask_session:FillMaskSession",
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""MVP, `transformers.models.mvp`: BART, trained on many tasks; its prompts (`use_prompt`) are not there."""

from dataclasses import replace

from .bart import RECIPE as BART

RECIPE = replace(
    BART,
    model_type="mvp",
    architectures=("MvpForConditionalGeneration",),
    special="BART as it is; without the prompts that some checkpoints put before keys.",
    tiny=BART.tiny[:1],
)

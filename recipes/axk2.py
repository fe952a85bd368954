# SPDX-License-Identifier: Apache-2.0
"""A.X K2, `transformers.models.axk2`.

Unusual: DeepSeek V3.2 with gates: norms before attention and before experts are followed by a low-rank gate, and what
attention returns is gated by the input of its queries. Light checkpoints select experts among all, not in groups.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm

from .deepseek_v32 import RECIPE as DEEPSEEK_V32

_TINY = {**DEEPSEEK_V32.tiny[0].config, "gated_norm_rank": 12}
_WITHOUT_GROUPS = {"n_group": None, "topk_group": None}

RECIPE = replace(
    DEEPSEEK_V32,
    model_type="axk2",
    architectures=("AXK2ForCausalLM",),
    special="Latent attention (MLA) to keys that an indexer selects; gated norms and gated attention; experts.",
    transforms=(
        rms_norm(lambda config: 4 * config.num_hidden_layers + 1, suffix="AXK2RMSNorm"),
        experts(),
        *DEEPSEEK_V32.transforms[2:],
    ),
    tiny=(Tiny(config=_TINY), Tiny(config=_TINY | _WITHOUT_GROUPS, name="light")),
)

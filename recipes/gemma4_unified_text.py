# SPDX-License-Identifier: Apache-2.0
"""The text model of Gemma 4 Unified, `transformers.models.gemma4_unified`: Gemma 4 without experts."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .gemma4_text import RECIPE as GEMMA4_TEXT

_REMOVED_FIELDS = ("hidden_size_per_layer_input", "attention_k_eq_v")
_TINY = {
    key: value for key, value in GEMMA4_TEXT.tiny[0].config.items() if key not in _REMOVED_FIELDS
}

RECIPE = replace(
    GEMMA4_TEXT,
    model_type="gemma4_unified_text",
    architectures=("Gemma4UnifiedForCausalLM",),
    special="Full layers with heads of their own, keys as values and partial RoPE; norms on query, key and value.",
    transforms=(rms_norm(lambda c: 7 * c.num_hidden_layers - 2 * c.num_kv_shared_layers + 1),),
    tiny=(Tiny(config=_TINY),),
)

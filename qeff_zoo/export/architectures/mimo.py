# SPDX-License-Identifier: Apache-2.0
"""MiMo 7B of Xiaomi: transformers' Qwen2 under its own name, as in XiaomiMiMo's `modeling_mimo.py`.

Checkpoints also have a layer that predicts one token more, which `--draft-heads mtp` drafts with.
"""

from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM


class MiMoConfig(Qwen2Config):
    """Qwen2's config with the number of MTP layers.

    Args:
        num_nextn_predict_layers: Number of MTP layers; they are not part of the model.
    """

    model_type = "mimo"
    num_nextn_predict_layers: int = 0


class MiMoForCausalLM(Qwen2ForCausalLM):
    """Qwen2's model."""

    config: MiMoConfig
    _keys_to_ignore_on_load_unexpected = [r"^model\.mtp_layers\."]  # noqa: RUF012


def register() -> None:
    """Register MiMo with transformers' automatic classes."""
    AutoConfig.register("mimo", MiMoConfig, exist_ok=True)
    AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM, exist_ok=True)

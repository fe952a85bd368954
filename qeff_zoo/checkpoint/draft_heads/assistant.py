# SPDX-License-Identifier: Apache-2.0
"""Published assistants of Gemma 4: from a configuration to a description, and the tensor of each parameter.

An assistant is a small model of the same class, whose layers have queries alone: it reads the keys and values of its
target model, from the last full-attention and the last sliding-window layer that have their own. Some also have a list
of tokens by cluster (`use_ordered_embeddings`), for which transformers computes only likely ones. Here logits are those
of all tokens, as in transformers without it: the likely clusters would change with every rounding.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from qeff_zoo.errors import SpeculatorError

Shape: TypeAlias = tuple[int, ...]

KIND: Literal["assistant"] = "assistant"
KEY = "backbone_hidden_size"
_NORMS = ("input", "post_attention", "pre_feedforward", "post_feedforward")
#: Fields that must be equal in both models.
_ALIKE = ("model_type", "head_dim", "global_head_dim")
_EMBED = "model.embed_tokens.weight"


def read(
    name: str, config: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> tuple[dict[str, Any], dict[str, tuple[str, Shape]]]:
    """Read the description of an assistant; see `qeff_zoo.checkpoint.draft_heads.kinds.Kind`.

    Raises:
        SpeculatorError: The configuration lacks a field.
    """
    text = config.get("text_config") or {}
    numbers = {key: text.get(key) for key in ("hidden_size", "intermediate_size", "vocab_size")}
    numbers |= {key: text.get(key) for key in ("num_hidden_layers", "num_attention_heads")}
    numbers[KEY] = config[KEY]
    for key, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SpeculatorError(
                f"The assistant {name!r} has {key} {value!r} in its configuration; expected a number above 0. Correct "
                "it."
            )
    # Its keys and values are another model's, which transformers' own configuration cannot express for all layers.
    own = {"num_kv_shared_layers": 0, "tie_word_embeddings": False}
    settings = {
        "kind": KIND,
        "hidden_size": config[KEY],
        "vocab_size": text["vocab_size"],
        "config": {**text, **own},
    }
    return settings, _parameters(numbers, shapes)


def _parameters(
    numbers: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> dict[str, tuple[str, Shape]]:
    hidden, inner, vocab = (
        numbers[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    target = numbers[KEY]
    same: dict[str, Shape] = {
        "pre_projection.weight": (hidden, 2 * target),
        "post_projection.weight": (target, hidden),
    }
    of_model: dict[str, Shape] = {"norm.weight": (hidden,)}
    for number in range(numbers["num_hidden_layers"]):
        layer = f"layers.{number}."
        (size,) = shapes.get(f"model.{layer}self_attn.q_norm.weight") or (0,)
        queries = numbers["num_attention_heads"] * size
        of_model |= {f"{layer}{norm}_layernorm.weight": (hidden,) for norm in _NORMS}
        of_model |= {
            f"{layer}layer_scalar": (1,),
            f"{layer}self_attn.q_norm.weight": (size,),
            f"{layer}self_attn.q_proj.weight": (queries, hidden),
            f"{layer}self_attn.o_proj.weight": (hidden, queries),
            f"{layer}mlp.gate_proj.weight": (inner, hidden),
            f"{layer}mlp.up_proj.weight": (inner, hidden),
            f"{layer}mlp.down_proj.weight": (hidden, inner),
        }
    parameters = {name: (name, shape) for name, shape in same.items()}
    parameters |= {
        f"inner.model.{name}": (f"model.{name}", shape) for name, shape in of_model.items()
    }
    head = "lm_head.weight" if "lm_head.weight" in shapes else _EMBED
    return {**parameters, "inner.lm_head.weight": (head, (vocab, hidden))}


def unlike(settings: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return the reasons why an assistant cannot read a model's keys and values.

    Args:
        settings: Description of the assistant.
        config: Config of its target model.
    """
    pairs = {key: (settings["config"].get(key), config.get(key)) for key in _ALIKE}
    return [
        f"{key} {own!r}, not {expected!r}"
        for key, (own, expected) in pairs.items()
        if own != expected and None not in (own, expected)
    ]

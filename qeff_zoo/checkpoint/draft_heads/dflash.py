# SPDX-License-Identifier: Apache-2.0
"""Published DFlash checkpoints: from a configuration to a block drafter, and the tensor and shape of each parameter.

A DFlash drafter (arXiv 2602.06036) is a few layers of Qwen3 without embeddings and without an output matrix: it uses
the model's. One call drafts a block: the newest token and mask tokens attend to each other in both directions, and to
the model's hidden states of all tokens before, joined by `fc`. The checkpoints are those of z-lab/dflash. Their sliding
windows are ignored, as by z-lab's code on SDPA: they affect the acceptance of drafts only.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from qeff_zoo.errors import SpeculatorError

Shape: TypeAlias = tuple[int, ...]

KIND, KEY = "dflash", "dflash_config"
_CLASS = "DFlashDraftModel"  # in z-lab's code
#: Maximum number of tokens of a block; the drafter's KV cache has as many positions behind the context.
MOST = 64
#: Input ids of a block drafter besides tokens: a hidden state of the model, and a mask token.
CONTEXT_ID, MASK_ID = -1, -2
#: Fields of the layers' config.
_QWEN3 = (
    "model_type",
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("num_hidden_layers", "vocab_size", "hidden_act", "rms_norm_eps", "max_position_embeddings"),
    *("rope_theta", "rope_scaling", "rope_parameters", "attention_bias"),
)
_NUMBERS = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("num_hidden_layers", "vocab_size"),
)


def read(
    name: str, config: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> tuple[dict[str, Any], dict[str, tuple[str, Shape]]]:
    """Read the description of a DFlash checkpoint; see `qeff_zoo.checkpoint.draft_heads.kinds.Kind`.

    Raises:
        SpeculatorError: The format is unknown.
    """
    inside = config[KEY] if isinstance(config[KEY], Mapping) else {}
    sizes = {key: _number(name, config, key) for key in _NUMBERS}
    block = _number(name, {**config, **inside}, "block_size", least=2, most=MOST)
    mask = _number(name, inside, "mask_token_id", least=0, most=sizes["vocab_size"] - 1)
    _refuse(name, config, inside)
    hidden = sizes["hidden_size"]
    layers = _layers(name, config, inside, sizes["num_hidden_layers"])
    own = {key: config[key] for key in _QWEN3 if config.get(key) is not None}
    own.setdefault("head_dim", hidden // sizes["num_attention_heads"])
    description: dict[str, Any] = {
        "kind": KIND,
        "hidden_size": hidden,
        "vocab_size": sizes["vocab_size"],
        "joins": [hidden, len(layers) * hidden],
        "layers": [layer + 1 for layer in layers],  # those that take these layers' results
        "block_size": block,
        "mask_token_id": mask,
        "config": own,
    }
    parameters = _parameters(description)
    known = {tensor for tensor, _ in parameters.values()}
    strange = [shape for shape in shapes if shape not in known and not shape.endswith("inv_freq")]
    if strange:
        raise SpeculatorError(
            f"The DFlash drafter {name!r} has tensors {', '.join(map(repr, strange[:4]))}. Expected "
            f"{sizes['num_hidden_layers']} layers of Qwen3 behind `fc`, as z-lab publishes them, and nothing more. "
            "Give such a drafter, or draft with 'lookup'."
        )
    return description, parameters


def _layers(
    name: str, config: Mapping[str, Any], inside: Mapping[str, Any], count: int
) -> list[int]:
    """Return the layers of the model whose results are joined; without a list, evenly spaced ones as z-lab's code."""
    listed = inside.get("target_layer_ids")
    if listed is None:
        last = _number(name, config, "num_target_layers")
        if count == 1:
            return [last // 2]
        return [round(1 + place * (last - 4) / (count - 1)) for place in range(count)]
    if isinstance(listed, list) and listed and all(type(one) is int for one in listed):
        return list(listed)
    raise _wrong(name, "target_layer_ids", listed, "a list of layers")


def _refuse(name: str, config: Mapping[str, Any], inside: Mapping[str, Any]) -> None:
    vocab = config["vocab_size"]
    expected = {
        "architectures": (config.get("architectures"), [_CLASS]),
        "hidden_act": (config.get("hidden_act", "silu"), "silu"),
        "draft_vocab_size": (config.get("draft_vocab_size", vocab), vocab),
        "causal": (bool(inside.get("causal")), False),
    }
    if not isinstance(config.get("model_type"), str):
        raise _wrong(name, "model_type", config.get("model_type"), "a name, such as Qwen3's")
    for key, (actual, right) in expected.items():
        if actual != right:
            raise _wrong(name, key, actual, repr(right))


def _number(
    name: str, config: Mapping[str, Any], key: str, *, least: int = 1, most: int = 1 << 31
) -> int:
    value = config.get(key)
    if type(value) is not int or not least <= value <= most:
        raise _wrong(name, key, value, f"a number from {least:,} to {most:,}")
    return value


def _wrong(name: str, key: str, actual: object, expected: str) -> SpeculatorError:
    return SpeculatorError(
        f"The DFlash drafter {name!r} has {key} {actual!r} in its configuration; expected {expected}. Correct it, or "
        "draft with 'lookup'."
    )


def _parameters(description: Mapping[str, Any]) -> dict[str, tuple[str, Shape]]:
    config, (hidden, joined) = description["config"], description["joins"]
    size, inner = config["head_dim"], config["intermediate_size"]
    queries, keys = (config[key] * size for key in ("num_attention_heads", "num_key_value_heads"))
    shapes: dict[str, Shape] = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (size,),
        "self_attn.k_norm.weight": (size,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.get("attention_bias"):
        shapes |= {
            f"self_attn.{letter}_proj.bias": shapes[f"self_attn.{letter}_proj.weight"][:1]
            for letter in "qkvo"
        }
    parameters: dict[str, tuple[str, Shape]] = {
        "fc.weight": ("fc.weight", (hidden, joined)),
        "hidden_norm.weight": ("hidden_norm.weight", (hidden,)),
        "inner.model.norm.weight": ("norm.weight", (hidden,)),
    }
    for layer in range(config["num_hidden_layers"]):
        for name, shape in shapes.items():
            parameters[f"inner.model.layers.{layer}.{name}"] = f"layers.{layer}.{name}", shape
    return parameters

# SPDX-License-Identifier: Apache-2.0
"""Published EAGLE-3 checkpoints: from a configuration to a layer, and the tensor and shape of each parameter.

The checkpoints are those of SafeAILab/EAGLE, of SpecForge and of vLLM's speculators, which name the layer `midlayer` or
`layers.0`. Some have a vocabulary of their own: `d2t` has the difference of each of its token ids to the model's.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from qeff_zoo.errors import SpeculatorError

Shape: TypeAlias = tuple[int, ...]

KEY = "draft_vocab_size"
#: Fields of a Llama layer's config.
_LLAMA = (
    "model_type",
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters"),
    *("max_position_embeddings", "attention_bias", "mlp_bias"),
)
_LAYER = "inner.model.layers.0"
_UNREAD = ("t2d", "rotary_emb.inv_freq")
JOINED = 3  # hidden states of as many layers


def read(
    name: str, config: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> tuple[dict[str, Any], dict[str, tuple[str, Shape]]]:
    """Read the description of an EAGLE-3 checkpoint; see `qeff_zoo.checkpoint.draft_heads.kinds.Kind`.

    Raises:
        SpeculatorError: The format is unknown.
    """
    config = {**config, **config.get("transformer_layer_config", {})}
    inside = config.get("eagle_config") or {}
    _refuse(name, config, inside)
    hidden, vocab, drafted = (
        _number(name, config, key) for key in ("hidden_size", "vocab_size", KEY)
    )
    heads = _number(name, config, "num_attention_heads")
    sizes = {
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
    }
    layer = {key: config[key] for key in _LLAMA if config.get(key) is not None} | sizes
    target = config.get("target_hidden_size") or hidden
    settings: dict[str, Any] = {
        "kind": "eagle3",
        "hidden_size": target,
        "vocab_size": vocab,
        "joins": [hidden, JOINED * target],
        "config": {"num_hidden_layers": 1, "vocab_size": drafted, **layer},
        "own": [name for name in ("d2t", "embed_tokens") if _has(shapes, name)],
        **({"norm_before_residual": True} if config.get("norm_before_residual") else {}),
    }
    if layers := config.get("eagle_aux_hidden_state_layer_ids"):
        settings["layers"] = list(layers)
    elif layers := inside.get("eagle_aux_hidden_state_layer_ids"):  # layers that they come out of
        settings["layers"] = [layer + 1 for layer in layers]
    parameters = _parameters(settings, _number(name, config, "intermediate_size"), heads, shapes)
    read_, strange = {tensor for tensor, _ in parameters.values()}, [*shapes]
    strange = [entry for entry in strange if entry not in read_ and not entry.endswith(_UNREAD)]
    if strange:
        raise SpeculatorError(
            f"The EAGLE-3 layer {name!r} has tensors {', '.join(map(repr, strange[:4]))}. Expected one layer of Llama "
            "behind `fc`, and nothing more. Give such a one, or draft with 'lookup'."
        )
    return settings, parameters


def _refuse(name: str, config: Mapping[str, Any], inside: Mapping[str, Any]) -> None:
    fields = {
        "num_hidden_layers": (config.get("num_hidden_layers", 1), 1),
        "use_aux_hidden_state": (inside.get("use_aux_hidden_state", True), True),
        "hidden_act": (config.get("hidden_act", "silu"), "silu"),
    }
    for key, (actual, expected) in fields.items():
        if actual != expected:
            raise SpeculatorError(
                f"The EAGLE-3 layer {name!r} has {key} {actual!r}; expected {expected!r}. Give another one, or draft "
                "with 'lookup'."
            )


def _number(name: str, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SpeculatorError(
            f"The EAGLE-3 layer {name!r} has {key} {value!r} in its configuration; expected a number above 0. "
            "Correct it."
        )
    return value


def _has(shapes: Iterable[str], name: str) -> bool:
    return name in shapes or f"{name}.weight" in shapes


def _parameters(
    settings: Mapping[str, Any], inner: int, heads: int, shapes: Mapping[str, Shape]
) -> dict[str, tuple[str, Shape]]:
    config, (hidden, joined) = settings["config"], settings["joins"]
    keys, queries = (count * config["head_dim"] for count in (config["num_key_value_heads"], heads))
    matrices = {
        "self_attn.q_proj": (queries, 2 * hidden),
        "self_attn.k_proj": (keys, 2 * hidden),
        "self_attn.v_proj": (keys, 2 * hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    biased = {"self_attn": config.get("attention_bias"), "mlp": config.get("mlp_bias")}
    layer = "midlayer" if any(name.startswith("midlayer.") for name in shapes) else "layers.0"
    parameters: dict[str, tuple[str, Shape]] = {
        "fc.weight": ("fc.weight", (hidden, joined)),
        "inner.model.norm.weight": ("norm.weight", (hidden,)),
        "inner.lm_head.weight": ("lm_head.weight", (config["vocab_size"], hidden)),
    }
    parameters |= {
        f"{_LAYER}.{norm}.weight": (f"{layer}.{norm}.weight", (hidden,)) for norm in norms
    }
    for one, shape in matrices.items():
        parameters[f"{_LAYER}.{one}.weight"] = f"{layer}.{one}.weight", shape
        if biased[one.partition(".")[0]]:
            parameters[f"{_LAYER}.{one}.bias"] = f"{layer}.{one}.bias", shape[:1]
    if "d2t" in settings["own"]:
        parameters["d2t"] = "d2t", (config["vocab_size"],)
    if "embed_tokens" in settings["own"]:
        parameters["embed_tokens.weight"] = "embed_tokens.weight", (settings["vocab_size"], hidden)
    return parameters

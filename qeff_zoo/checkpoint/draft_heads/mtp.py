# SPDX-License-Identifier: Apache-2.0
"""MTP: the layer of a model's own checkpoint that predicts one more token, which transformers does not load.

The names of its tensors identify it. The layer itself is one of the model's own, so its configuration is the model's
with one layer: this module describes only how tokens and hidden states enter it, and its outputs.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from qeff_zoo.errors import SpeculatorError

#: Value of the option that selects it, in place of a folder or a repository.
MTP = "mtp"


@dataclass(frozen=True, kw_only=True)
class Form:
    """Names of an MTP layer in checkpoints; names may have `{count}`, the number of the model's layers.

    Args:
        layer: Prefix of the decoder layer's tensors.
        token_norm: Norm of a token's embedding.
        hidden_norm: Norm of the hidden state before it.
        join: Matrix that multiplies both, side by side.
        norm: Norm before logits.
        head: Output matrix, if the layer has its own.
        embed: Embedding matrix, if the layer has its own.
        hidden_first: Whether the hidden state is the first of both.
        normed: Whether its output state is the normed one; otherwise the input of that norm.
        inner: Prefix of a model's layer and of its last norm.
        attention: Kind of its attention if the config has one per layer; a window if other layers have one.
        settings: Further fields of its configuration.
        count: Number of layers that predict it together.
        called: Other names of parts of the layer, by those of the model's own.
        unread: Parts of the layer that are the model's own.
        without: Parts of the model's layers that it lacks: "streams" of hidden states, or their second "half".
    """

    layer: str
    token_norm: str
    hidden_norm: str
    join: str
    norm: str
    head: str = ""
    embed: str = ""
    hidden_first: bool = False
    normed: bool = False
    inner: tuple[str, str] = ("model.layers.0.", "model.norm.weight")
    attention: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1
    called: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    without: str = ""


_DEEPSEEK = Form(  # V3, V3.2; GLM 4.5 to 5
    layer="model.layers.{count}.",
    token_norm="model.layers.{count}.enorm.weight",
    hidden_norm="model.layers.{count}.hnorm.weight",
    join="model.layers.{count}.eh_proj.weight",
    norm="model.layers.{count}.shared_head.norm.weight",
    head="model.layers.{count}.shared_head.head.weight",
    embed="model.layers.{count}.embed_tokens.weight",
)
FORMS = (
    _DEEPSEEK,
    replace(  # Hunyuan 3, Ling 3
        _DEEPSEEK,
        norm="model.layers.{count}.final_layernorm.weight",
        head="",
        embed="",
        normed=True,
        unread=("embed_tokens.", "shared_head."),
    ),
    Form(  # Qwen3-Next, Qwen3.5, K-EXAONE, Mellum 2
        layer="mtp.layers.0.",
        token_norm="mtp.pre_fc_norm_embedding.weight",
        hidden_norm="mtp.pre_fc_norm_hidden.weight",
        join="mtp.fc.weight",
        norm="mtp.norm.weight",
        normed=True,
        attention="full_attention",
    ),
    Form(  # MiMo
        layer="model.mtp_layers.0.",
        token_norm="model.mtp_layers.0.token_layernorm.weight",
        hidden_norm="model.mtp_layers.0.hidden_layernorm.weight",
        join="model.mtp_layers.0.input_proj.weight",
        norm="model.mtp_layers.0.final_layernorm.weight",
        hidden_first=True,
        normed=True,
    ),
    Form(  # MiniMax M3
        layer="model.mtp.layers.0.transformer_layer.",
        token_norm="model.mtp.layers.0.enorm.weight",
        hidden_norm="model.mtp.layers.0.hnorm.weight",
        join="model.mtp.layers.0.eh_proj.weight",
        norm="model.mtp.layers.0.final_layernorm.weight",
        attention="minimax_m3_sparse",
    ),
    Form(  # Hunyuan 4
        layer="model.mtp_layers.0.",
        token_norm="model.mtp_layers.0.enorm.weight",
        hidden_norm="model.mtp_layers.0.hnorm.weight",
        join="model.mtp_layers.0.eh_proj.weight",
        norm="model.mtp_layers.0.final_layernorm.weight",
        normed=True,
        settings={"hc_mult": 1, "hc_magnitude": 1.0, "hc_eps": 0.0},
        unread=("embed_tokens.", "shared_head."),
        without="streams",
    ),
    Form(  # LongCat-Flash
        layer="model.mtp.layers.0.",
        token_norm="model.mtp.layers.0.enorm.m.weight",
        hidden_norm="model.mtp.layers.0.hnorm.m.weight",
        join="model.mtp.layers.0.eh_proj.weight",
        norm="model.mtp.norm.weight",
        embed="model.mtp.embed_tokens.weight",
        normed=True,
        settings={"num_layers": 1, "n_routed_experts": 2, "zero_expert_num": 0, "moe_topk": 2},
        count=2,  # transformers counts two per layer
        called={
            "self_attn.": "self_attn.0.",
            "input_layernorm.": "input_layernorm.0.",
            "post_attention_layernorm.": "post_attention_layernorm.0.",
            "transformer_layer.mlp.": "mlps.0.",
        },
        without="half",
    ),
    Form(  # MiMo-V2-Flash
        layer="model.mtp.layers.0.",
        token_norm="model.mtp.layers.0.enorm.weight",
        hidden_norm="model.mtp.layers.0.hnorm.weight",
        join="model.mtp.layers.0.eh_proj.weight",
        norm="model.mtp.layers.0.final_layernorm.weight",
        normed=True,
        attention="sliding_attention",
        called={"pre_mlp_layernorm.": "post_attention_layernorm."},
    ),
    Form(  # ERNIE 4.5; its last norm is the model's
        layer="model.mtp_block.0.",
        token_norm="model.mtp_emb_norm.0.weight",
        hidden_norm="model.mtp_hidden_norm.0.weight",
        join="model.mtp_linear_proj.0.weight",
        norm="model.norm.weight",
        normed=True,
    ),
    Form(  # Nemotron 3
        layer="mtp.layers.",
        token_norm="mtp.layers.0.enorm.weight",
        hidden_norm="mtp.layers.0.hnorm.weight",
        join="mtp.layers.0.eh_proj.weight",
        norm="mtp.layers.1.final_layernorm.weight",
        normed=True,
        inner=("backbone.layers.", "backbone.norm_f.weight"),
        settings={"layers_block_type": ["full_attention", "moe"]},
        count=2,
    ),
)
_FRONT = ("token_norm", "hidden_norm", "join", "norm")
#: Other modules that predict tokens: by their position after a model's last layer, or by their name.
_OTHER = re.compile(r"(^|[._])mtp[._]|nextn")


#: Prefix of the language model's tensors in some vision-language models.
_WITHIN = "language_model."


@dataclass(frozen=True, kw_only=True)
class Found:
    """An MTP layer of a checkpoint.

    Args:
        settings: Description of the computation, see `qeff_zoo.checkpoint.draft_heads.kinds`.
        sources: Tensor by name of a parameter that joins tokens and hidden states.
        layer: Tensor by name in the model of one layer.
    """

    settings: Mapping[str, Any]
    sources: Mapping[str, str]
    layer: Mapping[str, str]


def find(
    name: str, config: Mapping[str, Any], tensors: Iterable[str], outer: Mapping[str, Any]
) -> Found:
    """Return the MTP layer of a checkpoint.

    Args:
        name: Name of the model, for messages.
        config: Config of its language model.
        tensors: Names of its tensors.
        outer: Config of the whole model, which may be a vision-language model.

    Raises:
        SpeculatorError: There is no MTP layer, or it has an unknown form.
    """
    every, count = {*tensors}, config.get("num_hidden_layers")
    begun: list[str] = []
    for form, prefix in product(FORMS, ("", _WITHIN)):
        parts = ("layer", *_FRONT, "head", "embed")
        formatted = {part: str(getattr(form, part)).format(count=count) for part in parts}
        names = {part: prefix + formatted[part] if formatted[part] else "" for part in parts}
        absent = sorted({names[part] for part in _FRONT} - every)
        if not absent and any(one.startswith(names["layer"]) for one in every):
            layer = _read(config, form, names, every)
            return _within(layer, outer) if prefix else layer
        if names["join"] in every:
            begun += absent
    if begun:
        raise SpeculatorError(
            f"The MTP layer of {name!r} has no tensor {begun[0]!r}. Expected one for each of its parts. Get the "
            "checkpoint again, from one revision; if it is whole, its layer is of another form: draft with 'lookup'."
        )
    behind = f"model.layers.{count}."
    if other := sorted(one for one in every if _OTHER.search(one) or one.startswith(behind)):
        raise SpeculatorError(
            f"{name!r} has an MTP layer of a form that --draft-heads {MTP!r} does not know: it has a tensor "
            f"{other[0]!r}. Expected a tensor {_known(count)}. Draft with 'lookup', or with the package of a smaller "
            "model."
        )
    raise SpeculatorError(
        f"{name!r} has no MTP layer, as --draft-heads {MTP!r} asks for. Expected a checkpoint with a tensor "
        f"{_known(count)}. Draft with 'lookup', or give the folder or repository of heads."
    )


def _within(described: Found, outer: Mapping[str, Any]) -> Found:
    """Adapt a layer to a vision-language model, whose language model alone has other names."""
    one = {**outer, "text_config": described.settings["config"]}
    one.pop("quantization_config", None)
    layer = {_WITHIN + name: tensor for name, tensor in described.layer.items()}
    return replace(described, settings={**described.settings, "config": one}, layer=layer)


def _known(count: Any) -> str:
    return " or ".join(dict.fromkeys(repr(form.join.format(count=count)) for form in FORMS))


def _read(
    config: Mapping[str, Any], form: Form, names: Mapping[str, str], every: set[str]
) -> Found:
    front = {part: names[part] for part in _FRONT}
    own = [part for part in ("head", "embed") if names[part] in every]
    apart = {*front.values(), *(names[part] for part in own)}
    inner, norm = form.inner
    layer = {}
    for tensor in every - apart:
        part = tensor.removeprefix(names["layer"])
        if part != tensor and not part.startswith(form.unread):
            for name_there, ours in form.called.items():
                part = part.replace(name_there, ours)
            layer[inner + part] = tensor
    one = _of_one_layer(config, form, sparse=any(".experts." in tensor for tensor in layer))
    layer[norm] = names["norm"]
    if "head" in own:
        layer["lm_head.weight"] = names["head"]
    sources = {f"{part}.weight": front[part] for part in ("token_norm", "hidden_norm", "join")}
    if "embed" in own:
        sources["embed_tokens.weight"] = names["embed"]
    flags = {"normed": form.normed, "hidden_first": form.hidden_first}
    settings = {
        "kind": MTP,
        "hidden_size": config["hidden_size"],
        "vocab_size": config["vocab_size"],
        "config": one,
        "own": own,
        **{key: True for key, value in flags.items() if value},
        **({"without": form.without} if form.without else {}),
    }
    return Found(settings=settings, sources=sources, layer=layer)


def _of_one_layer(config: Mapping[str, Any], form: Form, *, sparse: bool) -> dict[str, Any]:
    """Return the configuration of a one-layer MTP model: the model's last layer, with its own fields replaced."""
    count = config.get("num_hidden_layers")
    lists = {
        key: value[-form.count :] for key, value in config.items() if _is_per_layer(value, count)
    }
    whole, none = (0, []) if sparse else (1, [0])
    mlp: dict[str, Any] = {"mlp_layer_types": ["sparse" if sparse else "dense"]}
    mlp |= {"first_k_dense_replace": whole, "moe_layer_start_index": whole, "mlp_only_layers": none}
    mlp["indexer_types"] = ["full"]  # there is none before it to share one with
    mlp["layer_group_size"] = 1  # the last of each group attends to all
    mixed = any("expert" in key for key in config)
    kinds = {key: mlp[key] for key in mlp if key in config or (key == "mlp_layer_types" and mixed)}
    if form.attention:
        windows = "sliding_attention" in (config.get("layer_types") or ())
        kinds["layer_types"] = ["sliding_attention" if windows else form.attention]
    own = {
        key.removeprefix("mtp_"): value[: form.count]
        for key, value in config.items()
        if key.startswith("mtp_") and isinstance(value, list | str)
    }
    one = {**config, **lists, **kinds, **form.settings, **own, "num_hidden_layers": form.count}
    for key in ("quantization_config", "tie_word_embeddings"):
        one.pop(key, None)
    return one


def _is_per_layer(value: Any, count: Any) -> bool:
    return isinstance(value, list) and len(value) == count and count > 1

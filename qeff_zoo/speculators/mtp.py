# SPDX-License-Identifier: Apache-2.0
"""MTP: the layer that predicts one token more, of a model's own checkpoint, where transformers leaves it unread.

It is found by the names of its tensors. The layer itself is one of the model's own, so its configuration is the model's
with one layer: what is written here is only how tokens and hidden states come into it, and what comes out of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qeff_zoo.errors import SpeculatorError

#: What asks for it, in place of a folder or a repository.
MTP = "mtp"


@dataclass(frozen=True, kw_only=True)
class Form:
    """How checkpoints name an MTP layer; names hold `{count}`, the number of the model's layers.

    Args:
        layer: What the names of the decoder layer's tensors begin with.
        token_norm: Norm of a token's embedding.
        hidden_norm: Norm of the hidden state before it.
        join: The matrix that both are multiplied with, side by side.
        norm: Norm before logits.
        head: The matrix of logits, of those that have one of their own.
        embed: Likewise the embeddings.
        normed: Whether what it hands on is what logits are made of; else what that norm reads.
        told: What the configuration of the layer says besides.
    """

    layer: str
    token_norm: str
    hidden_norm: str
    join: str
    norm: str
    head: str = ""
    embed: str = ""
    normed: bool = False
    told: Mapping[str, Any] = field(default_factory=dict)


#: DeepSeek V3's, which others have taken over, and Qwen3-Next's.
FORMS = (
    Form(
        layer="model.layers.{count}.",
        token_norm="model.layers.{count}.enorm.weight",
        hidden_norm="model.layers.{count}.hnorm.weight",
        join="model.layers.{count}.eh_proj.weight",
        norm="model.layers.{count}.shared_head.norm.weight",
        head="model.layers.{count}.shared_head.head.weight",
        embed="model.layers.{count}.embed_tokens.weight",
    ),
    Form(
        layer="mtp.layers.0.",
        token_norm="mtp.pre_fc_norm_embedding.weight",
        hidden_norm="mtp.pre_fc_norm_hidden.weight",
        join="mtp.fc.weight",
        norm="mtp.norm.weight",
        normed=True,
        told={"layer_types": ["full_attention"]},
    ),
)
#: What a configuration may say of the first layers of a model; this one is like the last.
_OF_THE_FIRST: Mapping[str, Any] = {"first_k_dense_replace": 0, "mlp_only_layers": []}


@dataclass(frozen=True, kw_only=True)
class Found:
    """An MTP layer of a checkpoint.

    Args:
        said: What it computes, see `qeff_zoo.speculators.kinds`.
        sources: By name of a parameter that joins tokens and hidden states, its tensor.
        layer: By name of a tensor of the model of one layer, that of its tensor.
    """

    said: Mapping[str, Any]
    sources: Mapping[str, str]
    layer: Mapping[str, str]


def find(name: str, config: Mapping[str, Any], tensors: Iterable[str]) -> Found:
    """Find the MTP layer of a checkpoint.

    Args:
        name: Of the model, for messages.
        config: Of it.
        tensors: Their names.

    Raises:
        SpeculatorError: There is none, or none of a form that is known.
    """
    if "text_config" in config:
        raise SpeculatorError(
            f"{name!r} is made of several models, as its config's `text_config` says, and --speculator {MTP!r} is for "
            "one that reads text alone. Expected a config without it. Draft with 'lookup', or with the package of a "
            "smaller model."
        )
    every, count = {*tensors}, config.get("num_hidden_layers")
    for form in FORMS:
        names = {
            part: str(getattr(form, part)).format(count=count)
            for part in ("layer", "token_norm", "hidden_norm", "join", "norm", "head", "embed")
        }
        if names["join"] in every:
            return _read(name, config, form, names, every)
    known = " or ".join(repr(form.join.format(count=count)) for form in FORMS)
    raise SpeculatorError(
        f"{name!r} has no MTP layer, as --speculator {MTP!r} asks for. Expected a checkpoint with a tensor {known}. "
        "Draft with 'lookup', or give the folder or repository of heads."
    )


def _read(
    name: str, config: Mapping[str, Any], form: Form, names: Mapping[str, str], every: set[str]
) -> Found:
    front = {part: names[part] for part in ("token_norm", "hidden_norm", "join", "norm")}
    if absent := sorted({*front.values()} - every):
        raise SpeculatorError(
            f"The MTP layer of {name!r} has no tensor {absent[0]!r}. Expected one for each of its parts. Get the "
            "checkpoint again, from one revision."
        )
    own = [part for part in ("head", "embed") if names[part] in every]
    apart = {*front.values(), *(names[part] for part in own)}
    layer = {
        f"model.layers.0.{tensor.removeprefix(names['layer'])}": tensor
        for tensor in every - apart
        if tensor.startswith(names["layer"])
    }
    layer["model.norm.weight"] = names["norm"]
    if "head" in own:
        layer["lm_head.weight"] = names["head"]
    size, count = config["hidden_size"], config["num_hidden_layers"]
    lists = {key: one[-1:] for key, one in config.items() if _is_per_layer(one, count)}
    later = {key: value for key, value in _OF_THE_FIRST.items() if key in config}
    one = {**config, **lists, **later, **form.told, "num_hidden_layers": 1}
    for key in ("quantization_config", "tie_word_embeddings"):
        one.pop(key, None)
    sources = {f"{part}.weight": front[part] for part in ("token_norm", "hidden_norm", "join")}
    if "embed" in own:
        sources["embed_tokens.weight"] = names["embed"]
    said = {
        "kind": MTP,
        "hidden_size": size,
        "vocab_size": config["vocab_size"],
        "config": one,
        "own": own,
        **({"normed": True} if form.normed else {}),
    }
    return Found(said=said, sources=sources, layer=layer)


def _is_per_layer(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count > 1

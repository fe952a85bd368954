# SPDX-License-Identifier: Apache-2.0
"""Formats of draft heads: from a configuration to a description, and the tensor and shape of each parameter.

The exporter builds a module from `settings`, see `qeff_zoo.export.draft_heads.modules`: its `kind`, the number of
`heads`, the `hidden_size` of their inputs, and `vocab_size` if they have their own output matrices. A description
without a number of heads is of a decoder layer, see `qeff_zoo.export.draft_heads.layers`; `joins` is the size of its
joined hidden states; or of an assistant, see `qeff_zoo.export.draft_heads.assistants`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from qeff_zoo.errors import SpeculatorError

from . import assistant, dflash, eagle3

Shape: TypeAlias = tuple[int, ...]
#: Tensor and required shape, by name of the parameter.
Parameters: TypeAlias = Mapping[str, tuple[str, Shape]]
Read: TypeAlias = tuple[dict[str, Any], Parameters]

_MOST = 64  # heads; no draft is ever as long


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A format of draft heads.

    Args:
        name: Name for people.
        config: File name of its configuration.
        known_by: Description of its mark.
        recognizes: Function that returns whether a configuration is of this kind.
        weights: Description of its weights' file names.
        holds: Function that returns whether a file has such a name.
        prefixes: Possible prefixes of its tensors' names.
        read: Function of the requested name, the configuration and the shapes of the tensors.
    """

    name: str
    config: str
    known_by: str
    recognizes: Callable[[Mapping[str, Any]], bool]
    weights: str
    holds: Callable[[str], bool]
    prefixes: tuple[str, ...]
    read: Callable[[str, Mapping[str, Any], Mapping[str, Shape]], Read]

    def plain(self, name: str) -> str:
        """Return the name of a tensor without its prefix."""
        return re.sub(rf"^({'|'.join(map(re.escape, self.prefixes))})", "", name)


def _number(name: str, config: Mapping[str, Any], key: str, most: int) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise SpeculatorError(
            f"The heads {name!r} have {key} {value!r} in their configuration; expected a number from 1 to {most}. "
            "Correct it."
        )
    return value


def _read_projections(
    name: str,
    config: Mapping[str, Any],
    shapes: Mapping[str, Shape],
    heads: int,
    layers: int,
) -> Read:
    """Read heads of `h.l.linear` and optionally, for Medusa, their own output matrix `h.layers`."""
    hidden = (shapes.get("0.0.linear.weight") or (0,))[-1]
    own = shapes.get(f"0.{layers}.weight")
    parameters: dict[str, tuple[str, Shape]] = {}
    for head in range(heads):
        for layer in range(layers):
            # QEfficient and Medusa train one block for all layers; safetensors may have stored it once.
            there = f"{head}.{layer}.linear.weight" in shapes
            path = f"{head}.{layer if there else 0}.linear"
            parameters[f"{head}.{layer}.linear.weight"] = f"{path}.weight", (hidden, hidden)
            parameters[f"{head}.{layer}.linear.bias"] = f"{path}.bias", (hidden,)
        if own:
            last = f"{head}.{layers}.weight"
            parameters[last] = last, (own[0], hidden)
    settings = {"kind": "projections", "heads": heads, "layers": layers, "hidden_size": hidden}
    return {**settings, **({"vocab_size": own[0]} if own else {})}, parameters


def _read_turbo(name: str, config: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Read:
    heads = _number(name, config, "turbo_num_heads", _MOST)
    layers = _number(name, config, "turbo_num_layers", _MOST)
    return _read_projections(name, config, shapes, heads, layers)


def _read_medusa(name: str, config: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Read:
    heads = _number(name, config, "medusa_num_heads", _MOST)
    layers = _number(name, config, "medusa_num_layers", _MOST)
    return _read_projections(name, config, shapes, heads, layers)


def _read_chained(name: str, config: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Read:
    """Read heads that each take the state of the previous head and its draft token."""
    largest = 1 << 31
    heads = _number(name, config, "n_predict", _MOST)
    hidden = _number(name, config, "emb_dim", largest)
    vocab = _number(name, config, "vocab_size", largest)
    inner = _number(name, config, "inner_dim", largest) if config.get("inner_dim") else hidden
    tied = bool(config.get("tie_weights"))
    parameters: dict[str, tuple[str, Shape]] = {}
    for head in range(heads):
        of = 0 if tied else head
        projected = min(head, 1) if tied else head
        parameters |= {
            f"emb.{head}.weight": (f"emb.{of}.weight", (vocab, inner)),
            f"proj.{head}.weight": (f"proj.{projected}.weight", (inner, inner if head else hidden)),
            f"ln.{head}.weight": (f"ln.{of}.weight", (inner,)),
            f"ln.{head}.bias": (f"ln.{of}.bias", (inner,)),
            f"head.{head}.weight": (f"head.{of}.weight", (vocab, inner)),
        }
    settings = {
        "kind": "chained",
        "heads": heads,
        "hidden_size": hidden,
        "inner_size": inner,
        "vocab_size": vocab,
        **({"tied": True} if tied else {}),
        **({"scaled": True} if config.get("scale_input") else {}),
    }
    return settings, parameters


#: Kinds in the order of detection: a model's own folder may have QEfficient's files, a DFlash drafter EAGLE-3's key.
KINDS = (
    Kind(
        name="turbo",
        config="speculator_config.json",
        known_by="speculator_config.json with turbo_num_heads",
        recognizes=lambda config: "turbo_num_heads" in config,
        weights="speculator.safetensors",
        holds=lambda name: name == "speculator.safetensors",
        prefixes=("projections.",),
        read=_read_turbo,
    ),
    Kind(
        name="Medusa",
        config="config.json",
        known_by="config.json with medusa_num_heads",
        recognizes=lambda config: "medusa_num_heads" in config,
        weights="medusa_lm_head.safetensors or model.safetensors",
        holds=lambda name: name in ("medusa_lm_head.safetensors", "model.safetensors"),
        prefixes=("medusa_lm_head.", "medusa_head."),
        read=_read_medusa,
    ),
    Kind(
        name="MLP speculator",
        config="config.json",
        known_by="config.json with n_predict and emb_dim",
        recognizes=lambda config: {"n_predict", "emb_dim"} <= config.keys(),
        weights="safetensors",
        holds=lambda name: name.endswith(".safetensors"),
        prefixes=("speculator.",),
        read=_read_chained,
    ),
    Kind(
        name="DFlash",
        config="config.json",
        known_by=f"config.json with {dflash.KEY}",
        recognizes=lambda config: dflash.KEY in config,
        weights="safetensors",
        holds=lambda name: name.endswith(".safetensors"),
        prefixes=("model.",),
        read=dflash.read,
    ),
    Kind(
        name="EAGLE-3",
        config="config.json",
        known_by=f"config.json with {eagle3.KEY}",
        recognizes=lambda config: eagle3.KEY in config,
        weights="safetensors",
        holds=lambda name: name.endswith(".safetensors"),
        prefixes=("model.",),
        read=eagle3.read,
    ),
    Kind(
        name="assistant of Gemma 4",
        config="config.json",
        known_by=f"config.json with {assistant.KEY}",
        recognizes=lambda config: assistant.KEY in config,
        weights="safetensors",
        holds=lambda name: name.endswith(".safetensors"),
        prefixes=("speculator.",),
        read=assistant.read,
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""Whole matrices of mlx, and the inverse of what mlx-lm does to names and tensors of some models.

Formulas: https://github.com/ml-explore/mlx `affine_dequantize`, `fp_dequantize`; names:
https://github.com/ml-explore/mlx-lm, `sanitize` of each file in `models`.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qeff_zoo.validation.reference.formats.files import Decoded, Files, plain
from qeff_zoo.validation.reference.formats.small_floats import e2m1, powers

_GROUPS = {"mxfp4": 32, "mxfp8": 32, "nvfp4": 16}
#: Of models with other names: those of experts' matrices, ends of names, and what became of norms.
_MODELS = json.loads(Path(__file__).with_name("mlx_models.json").read_bytes())
_STACK = re.compile(r"(.*)\.(?:switch_mlp|(?<=mlp\.)experts)\.(\w+)\.weight")
_PLUS_ONE = re.compile(r"layernorm\.weight|model\.norm\.weight|[qk]_norm\.weight")


def mlx(files: Files, config: Mapping[str, Any]) -> dict[str, Decoded]:
    """Find the tensors of an mlx checkpoint."""
    parts = ("weight", "scales", "biases")
    stored = {f"{path}.weight": files.parts(path, *parts) for path in files.modules("scales")}
    known = {name for sources in stored.values() for name in sources.values()}
    stored |= {name: {"weight": name} for name in files if name not in known}
    rules = _MODELS.get(config["model_type"], {})
    tensors: dict[str, Decoded] = {}
    for name, sources in stored.items():
        scheme = config.get(name.removesuffix(".weight"))
        scheme = scheme if isinstance(scheme, Mapping) else config
        decode = partial(_dequantized, scheme) if "scales" in sources else _plain
        tensors |= _as_transformers(files, rules, name, sources, decode, stored)
    return tensors


def _as_transformers(
    files: Files,
    rules: Mapping[str, Any],
    name: str,
    sources: Mapping[str, str],
    decode: Callable[..., Tensor],
    stored: Mapping[str, Mapping[str, str]],
) -> dict[str, Decoded]:
    """Return what one of mlx's tensors is in transformers: experts one by one, heads together, channels first."""
    if match := _STACK.fullmatch(name):
        path, matrix = match.groups()
        matrix = rules.get("matrices", {}).get(matrix, matrix)
        count = files.length(name)
        return {
            f"{path}.experts.{number}.{matrix}.weight": Decoded(
                files, sources, partial(_expert, decode, number)
            )
            for number in range(count)
        }
    path, _, end = name.rpartition(".embed_q.")
    if path:
        beside = f"{path}.unembed_out.weight"
        both = dict(sources) | {f"values_{part}": value for part, value in stored[beside].items()}
        return {f"{path}.kv_b_proj.{end}": Decoded(files, both, partial(_heads, decode))}
    if ".unembed_out." in name:
        return {}
    moved = rules.get("moved", {})
    new = next((name.removesuffix(old) + moved[old] for old in moved if name.endswith(old)), name)
    change: Callable[[Tensor], Tensor] | None = None
    if re.search(r"conv1d\.weight$|conv\.conv\.weight$", name):
        change = _channels_first
    elif rules.get("norms") == "one more" and _PLUS_ONE.search(name):
        change = _less_one
    elif name.endswith((".act_fn.alpha_p", ".act_fn.alpha_n")):
        change = torch.Tensor.flatten
    return {new: Decoded(files, sources, partial(_changed, decode, change) if change else decode)}


def _plain(weight: Tensor) -> Tensor:
    return plain(weight)


def _channels_first(kernel: Tensor) -> Tensor:
    return kernel.transpose(1, 2) if kernel.dim() == 3 else kernel


def _less_one(weight: Tensor) -> Tensor:
    return weight - 1


def _changed(
    decode: Callable[..., Tensor], change: Callable[[Tensor], Tensor], **sources: Tensor
) -> Tensor:
    return change(decode(**sources))


def _expert(decode: Callable[..., Tensor], number: int, **sources: Tensor) -> Tensor:
    return decode(**{part: tensor[number] for part, tensor in sources.items()})


def _heads(decode: Callable[..., Tensor], **sources: Tensor) -> Tensor:
    """Return rows of keys, then of values, of each head; those of keys are stored transposed."""
    prefix = "values_"
    keys = decode(
        **{part: source for part, source in sources.items() if not part.startswith(prefix)}
    )
    values = decode(
        **{
            part.removeprefix(prefix): source
            for part, source in sources.items()
            if part.startswith(prefix)
        }
    )
    return torch.cat([keys.transpose(1, 2), values], 1).flatten(0, 1)


def _dequantized(
    scheme: Mapping[str, Any], weight: Tensor, scales: Tensor, biases: Tensor | None = None
) -> Tensor:
    mode = scheme.get("mode") or "affine"
    octets = weight.contiguous().view(torch.uint8)
    if mode == "affine":
        assert biases is not None
        bits = scheme["bits"]
        shifts = torch.arange(8)
        stream = (octets[..., None] >> shifts & 1).flatten(-2)  # bits, the lowest first
        integers = (stream.unflatten(-1, (-1, bits)).int() << torch.arange(bits)).sum(-1)
        by_group = integers.float().unflatten(-1, (scales.shape[-1], -1))
        affine: Tensor = by_group * scales.float()[..., None] + biases.float()[..., None]
        return affine.flatten(-2)
    values = octets.view(torch.float8_e4m3fn).float() if mode == "mxfp8" else e2m1(octets)
    factors = scales.view(torch.float8_e4m3fn).float() if mode == "nvfp4" else powers(scales)
    scaled: Tensor = values * factors.repeat_interleave(_GROUPS[mode], -1)
    return scaled

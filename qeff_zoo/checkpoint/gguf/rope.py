# SPDX-License-Identifier: Apache-2.0
"""RoPE in a GGUF file's metadata and tensors -> `rope_parameters` of transformers' configuration.

Some scalings are in the metadata; those of Llama 3 and of Phi-3 are factors of each frequency, stored as tensors.
Source: https://github.com/ggml-org/llama.cpp, src/llama-model.cpp, conversion/llama.py
"""

import math
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.checkpoint.types import Array
from qeff_zoo.errors import UnsupportedModelError

FACTORS, LONG, SHORT = (f"rope_{one}.weight" for one in ("freqs", "factors_long", "factors_short"))
#: Metadata without "rope.scaling." -> parameter.
_YARN = {
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
#: Parameters of every published Llama 3.1 to 3.3.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_NEAR = 1e-5


def rope_of(
    name: str,
    fields: MutableMapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    size: int,
) -> dict[str, Any]:
    """Return the RoPE parameters of a model.

    Args:
        name: File name, for messages.
        fields: Metadata of the architecture, without its prefix; used values are removed.
        tensors: Tensors of the file.
        size: Number of values of a head that are rotated.

    Raises:
        UnsupportedModelError: No parameters of transformers give the factors of the file.
    """
    theta = fields.pop("rope.freq_base", 10000.0)
    kind = fields.pop("rope.scaling.type", "linear")
    factor = fields.pop("rope.scaling.factor", 0.0) or fields.pop("rope.scale_linear", 0.0) or 1.0
    original = fields.pop("rope.scaling.original_context_length", fields["context_length"])
    attention = fields.pop("rope.scaling.attn_factor", None)
    fields.pop("rope.scaling.finetuned", None)  # of no use to llama.cpp either
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if LONG in tensors and SHORT in tensors:
        parameters |= {
            "rope_type": "longrope",
            "long_factor": _values(tensors[LONG]).tolist(),
            "short_factor": _values(tensors[SHORT]).tolist(),
            "original_max_position_embeddings": original,
        }
        if attention is not None:
            parameters["attention_factor"] = attention
    elif FACTORS in tensors:
        parameters |= _llama3(name, theta, _values(tensors[FACTORS]), size)
    elif kind == "yarn":
        parameters |= {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
        for key, parameter in _YARN.items():
            if f"rope.scaling.{key}" in fields:
                parameters[parameter] = fields.pop(f"rope.scaling.{key}")
        if (multiplier := fields.pop("rope.scaling.yarn_log_multiplier", None)) is not None:
            scale = float(f"{10 * multiplier:.6g}")  # DeepSeek's; converters write a tenth
            parameters |= {"mscale": scale, "mscale_all_dim": scale}
    elif kind == "linear" and factor != 1.0:
        parameters |= {"rope_type": "linear", "factor": factor}
    elif kind not in ("linear", "none"):
        fields["rope.scaling.type"] = kind
    return parameters


def rotated_share(tensors: Mapping[str, TensorInfo]) -> float:
    """Return the share of frequencies that are rotated: the others are divided by a large factor.

    Args:
        tensors: Tensors of the file.
    """
    if FACTORS not in tensors:
        return 1.0
    share: float = np.mean(_values(tensors[FACTORS]) == 1).item()
    return share


def _values(info: TensorInfo) -> Array:
    """Read a small tensor of float32."""
    if info.dtype != "F32":
        raise UnsupportedModelError(
            f"Tensor {info.name!r} of {Path(info.path).name!r} is {info.dtype}. Expected F32. Name the checkpoint that "
            "it was made from with --config-from."
        )
    return np.fromfile(info.path, "<f4", math.prod(info.shape), offset=info.offset)


def _llama3(name: str, theta: float, factors: Array, size: int) -> dict[str, Any]:
    """Return the Llama 3 scaling with the given factors.

    Long waves are divided by the largest factor, short ones by 1, and 1 / factor is linear in the frequency between.
    """
    for parameters in (_LLAMA3, _fitted(theta, factors, size)):
        whole = {"rope_type": "llama3", "factor": float(f"{factors.max():.7g}"), **parameters}
        computed = _factors_of(theta, size, whole) if parameters else factors[:0]
        if len(computed) == len(factors) and np.allclose(computed, factors, rtol=_NEAR):
            return whole
    raise UnsupportedModelError(
        f"{name!r} has {FACTORS!r} with factors of RoPE that no scaling of Llama 3 has. Expected such. Name the "
        "checkpoint that it was made from with --config-from."
    )


def _waves(theta: float, size: int) -> Array:
    waves: Array = 2 * np.pi * theta ** (np.arange(0, size, 2) / size)
    return waves


def _fitted(theta: float, factors: Array, size: int) -> dict[str, float | int]:
    """Solve for the parameters, with a low factor of 1; None if the factors do not determine them."""
    between = (factors > 1) & (factors < factors.max())
    if len(factors) != size // 2 or between.sum() < 2:
        return {}
    smooth = (1 / factors[between] - 1 / factors.max()) / (1 - 1 / factors.max())
    slope, offset = np.polyfit(1 / _waves(theta, size)[between], smooth, 1)
    if not slope > 0 > offset:
        return {}
    high = float(f"{1 - 1 / offset:.4g}")
    return {
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": round(float(slope) * (high - 1)),
    }


def _factors_of(theta: float, size: int, parameters: Mapping[str, Any]) -> Array:
    """Return the divisors of the frequencies."""
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] / _waves(theta, size)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    factors: Array = 1 / ((1 - smooth) / parameters["factor"] + smooth)
    return factors

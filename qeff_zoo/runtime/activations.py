# SPDX-License-Identifier: Apache-2.0
"""Activations by the names of torch's classes, from logits to scores along the last axis."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from qeff_zoo.runtime.program import Array

#: Function from logits, (…, labels), to scores of the same shape.
Activation: TypeAlias = Callable[[Array], Array]


def softmax(logits: Array) -> Array:
    """Return probabilities that add up to 1 over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: Array = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def sigmoid(logits: Array) -> Array:
    """Return an independent probability for each logit, exact near 0 as well."""
    with np.errstate(over="ignore"):  # of logits whose probability is 0
        probabilities: Array = 1 / (1 + np.exp(-logits))
    return probabilities


def unchanged(logits: Array) -> Array:
    """Return logits unchanged."""
    return logits


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logarithms: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logarithms


def _softplus(logits: Array) -> Array:
    values: Array = np.logaddexp(logits, np.zeros_like(logits))
    return np.where(logits > 20, logits, values)  # torch's threshold


def _error_function(values: Array) -> Array:
    errors: Array = np.vectorize(math.erf, otypes=[np.float64])(values)
    return errors


def _gelu(logits: Array) -> Array:
    values: Array = logits * (1 + _error_function(logits / math.sqrt(2))) / 2
    return values.astype(logits.dtype)


def _elu(logits: Array) -> Array:
    return np.where(logits > 0, logits, np.expm1(np.minimum(logits, 0)))


def _selu(logits: Array) -> Array:
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    below = alpha * np.expm1(np.minimum(logits, 0))
    values: Array = scale * np.where(logits > 0, logits, below)
    return values


def _leaky(slope: float) -> Activation:
    return lambda logits: np.where(logits > 0, logits, slope * logits)


def _shrunk(logits: Array) -> Array:
    values: Array = np.sign(logits) * np.maximum(np.abs(logits) - 0.5, 0)
    return values


def _hard_sigmoid(logits: Array) -> Array:
    return np.clip(logits / 6 + 0.5, 0, 1)


#: Classes of torch.nn with their default arguments, by name.
BY_CLASS: Mapping[str, Activation] = MappingProxyType(
    {
        "Identity": unchanged,
        "Sigmoid": sigmoid,
        "Softmax": softmax,
        "Softmin": lambda logits: softmax(-logits),
        "LogSoftmax": _log_softmax,
        "Tanh": np.tanh,
        "ReLU": lambda logits: np.maximum(logits, 0),
        "ReLU6": lambda logits: np.clip(logits, 0, 6),
        "Hardtanh": lambda logits: np.clip(logits, -1, 1),
        "Hardsigmoid": _hard_sigmoid,
        "Hardswish": lambda logits: logits * _hard_sigmoid(logits),
        "Hardshrink": lambda logits: np.where(np.abs(logits) > 0.5, logits, 0),
        "Softshrink": _shrunk,
        "Tanhshrink": lambda logits: logits - np.tanh(logits),
        "LeakyReLU": _leaky(0.01),
        "PReLU": _leaky(0.25),
        "ELU": _elu,
        "CELU": _elu,
        "SELU": _selu,
        "SiLU": lambda logits: logits * sigmoid(logits),
        "Mish": lambda logits: logits * np.tanh(_softplus(logits)),
        "GELU": _gelu,
        "Softplus": _softplus,
        "Softsign": lambda logits: logits / (1 + np.abs(logits)),
        "LogSigmoid": lambda logits: -_softplus(-logits),
    }
)


def find(name: str) -> Activation | None:
    """Return the activation of a class of torch.nn; None for one that is not computed.

    Args:
        name: Path of the class, such as `torch.nn.modules.activation.Sigmoid`.
    """
    module, _, kind = name.rpartition(".")
    return BY_CLASS.get(kind) if module.startswith("torch.nn") else None

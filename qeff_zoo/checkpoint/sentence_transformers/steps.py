# SPDX-License-Identifier: Apache-2.0
"""Steps from token states to an embedding: what modules of sentence-transformers compute, in the order of modules.json.

A step reads and writes features by name, as the modules do.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

#: Poolings, in the order of the results of older files.
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
#: Separator of poolings whose results are concatenated.
AND = "+"
#: Torch classes of a dense layer's activation, without weights.
ACTIVATIONS = (
    "Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "ReLU6", "LeakyReLU", "ELU", "SELU", "Softplus", "Softsign",
    "Mish", "Hardtanh", "Hardswish", "Hardsigmoid", "LogSigmoid",
)  # fmt: skip
#: Features of a text.
TOKENS, SENTENCE, SCORES = "token_embeddings", "sentence_embedding", "scores"
#: Attribute of a traced model that has the modules with weights, by their numbers.
MODULES = "sentence_modules"


@dataclass(frozen=True, kw_only=True)
class Step:
    """Base class of steps.

    Args:
        place: Number of the module in modules.json.
        folder: Folder of its weights, below the checkpoint's.
        reads: Feature that it reads.
        writes: Feature that it writes.
    """

    place: int
    folder: str
    reads: str = SENTENCE
    writes: str = SENTENCE

    @property
    def parameters(self) -> Sequence[str]:
        """Names of its weights in its file, which are those of its parameters in the model."""
        return ()

    def described(self) -> dict[str, Any]:
        """Return the step for a program, as JSON values."""
        values = {name: value for name, value in asdict(self).items() if name != "folder"}
        return {"kind": type(self).__name__, **values}


@dataclass(frozen=True, kw_only=True)
class Pooling(Step):
    """Pooling of the token states.

    Args:
        modes: Methods, whose results are concatenated.
        include_prompt: Whether the tokens of a prompt count.
    """

    reads: str = TOKENS
    modes: tuple[str, ...]
    include_prompt: bool = True


@dataclass(frozen=True, kw_only=True)
class Dense(Step):
    """A dense layer.

    Args:
        in_features: Number of inputs.
        out_features: Number of outputs.
        bias: Whether it has a bias.
        activation: Activation, one of `ACTIVATIONS`.
        residual: Whether its input is added to its output, by a second matrix if they differ in size.
    """

    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool

    @property
    def parameters(self) -> Sequence[str]:
        """Names of its weights."""
        projects = self.residual and self.in_features != self.out_features
        return [
            "linear.weight",
            *(["linear.bias"] if self.bias else []),
            *(["residual.weight"] if projects else []),
        ]


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Step):
    """A layer norm of the embedding.

    Args:
        size: Number of its values.
    """

    size: int

    @property
    def parameters(self) -> Sequence[str]:
        """Names of its weights."""
        return ["norm.weight", "norm.bias"]


@dataclass(frozen=True, kw_only=True)
class MultiVectorMask(Step):
    """Choice of the tokens that late interaction compares, which a session makes.

    Args:
        skipped: Words that are not compared.
        kinds: Kinds of texts whose words are skipped, "query" or "document".
    """

    reads: str = TOKENS
    writes: str = TOKENS
    skipped: tuple[str, ...]
    kinds: tuple[str, ...]

    def described(self) -> dict[str, Any]:
        """Return the step without its words, which a session reads from the files of the package."""
        values = super().described()
        return {name: value for name, value in values.items() if name not in ("skipped", "kinds")}


@dataclass(frozen=True, kw_only=True)
class Normalize(Step):
    """Normalization to length 1."""

# SPDX-License-Identifier: Apache-2.0
"""Settings of a SparseEncoder of sentence-transformers (SPLADE): how logits of tokens become weights of the vocabulary.

The files are beside a checkpoint and, unchanged, in its packages.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.sentence_transformers.files import (
    LISTED,
    SETTINGS,
    Module,
    read_modules,
    reader_of,
)

KIND = "SparseEncoder"
STRATEGIES, ACTIVATIONS = ("max", "sum"), ("relu", "log1p_relu")
_POOLING = "SpladePooling"
#: The module that computes logits, and its name in older files.
_ENCODERS = ("Transformer", "MLMTransformer")
#: Modules of other sparse models, with the reason why they are refused.
_OTHERS = {
    "SparseAutoEncoder": "the latents of an autoencoder on a dense embedding (CSR) are not computed",
    "Router": "queries and documents have modules of their own",
    "SparseStaticEmbedding": "fixed weights of tokens, without an encoder, are not computed",
}


@dataclass(frozen=True, kw_only=True)
class SpladePooling:
    """Pooling of the logits of tokens to one weight for each token of the vocabulary.

    Args:
        strategy: One of `STRATEGIES`: the largest value of a text's tokens, or their sum.
        activation: One of `ACTIVATIONS`: log(1 + relu(x)), or its logarithm once more.
    """

    strategy: str = STRATEGIES[0]
    activation: str = ACTIVATIONS[0]


@dataclass(frozen=True, kw_only=True)
class SparseEncoder:
    """A sparse model.

    Args:
        modules: Modules of the checkpoint; empty for a masked language model without modules.json.
    """

    modules: tuple[Module, ...] = ()

    @property
    def pooling(self) -> SpladePooling:
        """Pooling of its logits, see `problems` for invalid ones."""
        config: Mapping[str, Any] = self.modules[1].config if self.modules else {}
        return SpladePooling(
            strategy=str(config.get("pooling_strategy") or STRATEGIES[0]),
            activation=str(config.get("activation_function") or ACTIVATIONS[0]),
        )

    def problems(self) -> list[str]:
        """Return why the model cannot be built as it is, one clause each."""
        if not self.modules:
            return []
        kinds = [module.described for module in self.modules]
        if len(kinds) != 2 or kinds[0] not in _ENCODERS or kinds[1] != _POOLING:
            reasons = [f"; {why}" for kind, why in _OTHERS.items() if kind in kinds]
            return [
                f"{LISTED} of its {KIND} lists {' and '.join(kinds)}; expected Transformer and {_POOLING}"
                f"{''.join(reasons)}. Run it with sentence-transformers itself"
            ]
        faults, pooling = [], self.pooling
        for setting, value, known in (
            ("pooling_strategy", pooling.strategy, STRATEGIES),
            ("activation_function", pooling.activation, ACTIVATIONS),
        ):
            if value not in known:
                faults.append(
                    f"{self.modules[1].file} of module {_POOLING} sets {setting} to {value!r}; expected "
                    f"{' or '.join(known)}. Correct it"
                )
        return faults


def read_sparse_encoder(files: Mapping[str, Path]) -> SparseEncoder | None:
    """Read the modules of a sparse model; None if the files are not of one.

    Args:
        files: Files of a checkpoint or a package, by relative path.
    """
    modules = read_modules(files)
    named = reader_of(files)(SETTINGS).get("model_type") == KIND
    if not modules or not (named or any(module.kind == _POOLING for module in modules)):
        return None
    return SparseEncoder(modules=tuple(modules))

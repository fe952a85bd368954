# SPDX-License-Identifier: Apache-2.0
"""MobileBERT's embeddings: those of a token and of both neighbours, side by side, for texts of any length.

transformers slices the neighbours in a way that makes `torch.export` restrict the length.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.modules import of_class


def widen(_: nn.Module, args: tuple[Any, ...], own: Tensor) -> Tensor:
    """Return (batch, seq, 3 * channels) of (batch, seq, channels): the next token, the token, the previous one."""
    seq = own.shape[1]
    around = nn.functional.pad(own, (0, 0, 1, 1))
    return torch.cat([around[:, 2:], own, around[:, :seq]], dim=2)


def apply(model: nn.Module) -> int:
    """Let the table of every `MobileBertEmbeddings` with trigrams return them; return their number."""
    embeddings = [
        module for module in of_class(model, "MobileBertEmbeddings") if module.trigram_input
    ]
    for module in embeddings:
        module.word_embeddings.register_forward_hook(widen)
        module.trigram_input = False  # made already
        module.embedding_size = 0  # other than the hidden size, so that they are projected
    return len(embeddings)

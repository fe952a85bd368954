# SPDX-License-Identifier: Apache-2.0
"""Heads that draft tokens, as they are traced: the program `heads` of a package for `text-generation`.

IN   hidden_states (batch_size, hidden)     of the token before the newest one
     [input_ids (batch_size, heads) i64]    the newest token, then each drafted one, -1 for the likeliest: of heads that
                                            read them
OUT  logits (batch_size, heads, vocab)      of the tokens after the newest one
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.export.loader import hollow
from qeff_zoo.speculators.modules import build
from qeff_zoo.tasks import Tracing

_BATCH = 2  # or torch.export specializes


class Draft(nn.Module):
    """One call of heads.

    Args:
        model: Whose hidden states they read; they are its `speculator`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden_states: Tensor, input_ids: Tensor | None = None) -> tuple[Tensor]:
        """Return logits."""
        head = self.model.get_output_embeddings()
        return (self.model.speculator(hidden_states, head, input_ids),)


def tracing(model: Any, *, speculator: Mapping[str, Any]) -> Tracing:
    """Describe how to trace the heads of a model.

    Args:
        model: From `loader.load_meta`.
        speculator: What they compute, see `qeff_zoo.speculators.kinds`.
    """
    heads = model.speculator = build(speculator).eval()
    hollow(heads)
    batch = Dim("batch_size", min=2)
    inputs = {"hidden_states": torch.zeros(_BATCH, speculator["hidden_size"])}
    if heads.reads_tokens:
        inputs["input_ids"] = torch.zeros(_BATCH, speculator["heads"], dtype=torch.int64)
    return Tracing(
        module=Draft(model).eval(),
        inputs=inputs,
        dynamic_shapes={name: {0: batch} for name in inputs},
        input_names=[*inputs],
        output_names=["logits"],
    )

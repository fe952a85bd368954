# SPDX-License-Identifier: Apache-2.0
"""One call of a language model that embeds prompts with images, for tracing: program `language`.

Inputs and states are those of `qeff_zoo.multimodal.tracing.language_tracing`; in place of logits

OUT  embedding_output (batch_size, 1, hidden)   last hidden state at the highest position of each row, normalized on
                                                request
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from qeff_zoo.contract import Tracing
from qeff_zoo.multimodal.tracing import language_tracing
from qeff_zoo.runtime.decoding.decoder import EMBEDDING


class Step(language_tracing.Step):
    """One call of a model without an output head."""

    def __init__(self, *args: Any, normalize: bool, **named: Any) -> None:
        super().__init__(*args, **named)
        self.normalize = normalize

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        past: list[Tensor],
        batch_index: Tensor | None = None,
        comp_ctx_lengths: Tensor | None = None,
        num_logits_to_keep: Tensor | None = None,
        more: Sequence[Tensor] = (),
    ) -> tuple[Tensor, ...]:
        """Return the embedding of each row so far, then the new states."""
        state = self.retained(position_ids, past, batch_index, comp_ctx_lengths)
        output = self.call(input_ids, position_ids.clamp(min=0), state, more)
        hidden = output.last_hidden_state
        last = hidden if state.narrowed else state.only_needed(hidden)
        if self.normalize:
            last = nn.functional.normalize(last, dim=-1)
        return (last, *(state.present[job.name] for job in self.states if job.written))


def tracing(
    model: Any, *, images: Any, pooling: str = "lasttoken", normalize: bool = True, **variant: Any
) -> Tracing:
    """Describe how to trace the language model of `model`.

    Args:
        model: Base model from `loader.load_meta`.
        images: Image input of the recipe.
        pooling: "lasttoken", the only pooling of a decoder whose states are retained.
        normalize: Whether to scale each embedding to length 1.
        **variant: Arguments of `qeff_zoo.export.tracing.decoder_tracing.tracing`.
    """
    step = partial(Step, normalize=normalize)
    traced: Tracing = images.trace_language(model, step=step, **variant)
    return replace(traced, output_names=[EMBEDDING, *traced.output_names[1:]])

# SPDX-License-Identifier: Apache-2.0
"""What heads, layers and assistants draft beside a decoder's own logits, as a package is tried."""

from collections.abc import Callable, Sequence

import numpy as np

from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.engine.speculation.assistant import AssistantDrafter
from qeff_zoo.runtime.engine.speculation.costs import Costs
from qeff_zoo.runtime.engine.speculation.heads import Heads, HeadsWithin
from qeff_zoo.runtime.engine.speculation.layer import LayerDrafter
from qeff_zoo.runtime.engine.speculation.opening import drafter_of, drafting_by
from qeff_zoo.runtime.program import Array, Program

from . import cases


def drafting(program: Program, decoder: Decoder) -> "HeadLogits | DraftLayerLogits":
    """Return what puts drafted logits beside those of a decoder."""
    drafts = drafting_by(program, decoder)
    if isinstance(drafts, Heads | HeadsWithin):
        return HeadLogits(drafts)
    return DraftLayerLogits(lambda: drafter_of(drafts, Costs(seconds={1: 1.0})))


class HeadLogits:
    """Logits of heads, beside those of the model.

    Args:
        heads: Opened.
    """

    def __init__(self, heads: Heads | HeadsWithin) -> None:
        self._heads, self.count = heads, heads.count

    def beside(
        self,
        decoder: Decoder,
        call: cases.Call,
        sequences: Sequence[Sequence[int]],
        answered: Sequence[Array],
    ) -> list[Array]:
        """Append the heads' logits to those of each position, given the next tokens."""
        positions = [(span, place) for span in call.spans for place in span.answered]
        hidden = np.stack(
            [decoder.hidden[span.row][place - span.stop] for span, place in positions]
        )
        after = [
            cases.tokens_after(sequences[span.sequence], place, self.count)
            for span, place in positions
        ]
        pairs = zip(answered, self._heads.logits(hidden, after), strict=True)
        return [one for logits, drafted in pairs for one in (logits, *drafted)]


class DraftLayerLogits:
    """Logits of a layer that drafts, or of an assistant, beside those of the model: of each row it reads what that ran.

    Args:
        make: Makes a drafter.
    """

    count = cases.LAYER_ANSWERS

    def __init__(self, make: Callable[[], LayerDrafter | AssistantDrafter]) -> None:
        self._make = make
        self._drafters: dict[int, LayerDrafter | AssistantDrafter] = {}

    def beside(
        self,
        decoder: Decoder,
        call: cases.Call,
        sequences: Sequence[Sequence[int]],
        answered: Sequence[Array],
    ) -> list[Array]:
        """Append the layer's logits to those of each position, given the next tokens."""
        rows, logits = list[Array](), iter(answered)
        for span in call.spans:
            if span.start == 0:
                self._drafters[span.row] = self._make()
            drafter, tokens = self._drafters[span.row], sequences[span.sequence]
            if isinstance(drafter, AssistantDrafter):
                drafter.set_slot(span.row)
            drafter.read(span.start, decoder.hidden[span.row])
            for position in span.answered:
                first, *others = cases.tokens_of_layer(tokens, position)
                ahead = drafter.draft_logits(
                    [*tokens[: position + 1], first], 1 + len(others), others
                )
                rows += [next(logits), *ahead, *ahead[-1:] * (self.count - len(ahead))]
        return rows

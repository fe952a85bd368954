# SPDX-License-Identifier: Apache-2.0
"""One call of a model that scores texts, by a classification head or by logits of tokens, for tracing."""

from typing import Any

import torch
from torch import Tensor, nn


class Classify(nn.Module):
    """One call of a model with a classification head.

    Args:
        model: Hugging Face model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return logits."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        return self._logits(self.model(input_ids=input_ids, attention_mask=attention_mask, **types))

    def _logits(self, output: Any) -> Tensor:
        logits: Tensor = output.logits
        return logits


class ScoreSpans(Classify):
    """One call of a model that scores every token as the start and as the end of an answer."""

    def _logits(self, output: Any) -> Tensor:
        """Return both logits, (batch, tokens, 2)."""
        return torch.stack([output.start_logits, output.end_logits], -1)


class ScoreChoices(Classify):
    """One call of a model that scores choices, each of which is a text of the batch."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return logits, (batch, 1)."""
        types = None if token_type_ids is None else token_type_ids[:, None]
        return super().forward(input_ids[:, None], attention_mask[:, None], types)


class ScoreTokens(nn.Module):
    """One call of a language model whose logits of one or two tokens are the score of a text.

    Args:
        model: Hugging Face model.
        true: Token id whose logit counts.
        false: Token id whose logit is subtracted; None for none.
    """

    def __init__(self, model: Any, true: int, false: int | None) -> None:
        super().__init__()
        self.model, self.true, self.false = model, true, false

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the scores, (batch, 1); the output head reads the last token alone."""
        positions = torch.arange(1, input_ids.shape[1] + 1, device=input_ids.device)
        last = (attention_mask * positions).argmax(1)  # (batch)

        def only_last(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            index = last[:, None, None].expand(-1, 1, args[0].shape[-1])
            return (args[0].gather(1, index),)

        head = self.model.get_output_embeddings().register_forward_pre_hook(only_last)
        try:
            logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        finally:
            head.remove()
        score: Tensor = logits[:, 0, self.true : self.true + 1]
        return score if self.false is None else score - logits[:, 0, self.false : self.false + 1]

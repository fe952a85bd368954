# SPDX-License-Identifier: Apache-2.0
"""Torch modules of draft heads for the exporter: hidden states in, logits of the tokens after the next one out."""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """One layer of a projection.

    Args:
        size: Size of hidden states.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states plus the layer's output."""
        return hidden + nn.functional.silu(self.linear(hidden))


class Projections(nn.ModuleList):
    """Independent heads: each projects the hidden state for an output matrix, the model's or its own.

    Args:
        settings: Description, see `qeff_zoo.checkpoint.draft_heads.kinds`.
    """

    reads_tokens = False

    def __init__(self, settings: Mapping[str, Any]) -> None:
        size, vocab = settings["hidden_size"], settings.get("vocab_size")

        def layers() -> Iterator[nn.Module]:
            yield from (Block(size) for _ in range(settings["layers"]))
            if vocab:
                yield nn.Linear(size, vocab, bias=False)

        super().__init__(nn.ModuleList(layers()) for _ in range(settings["heads"]))
        self._own = bool(vocab)

    def forward(self, hidden: Tensor, head: nn.Module, _: Tensor | None = None) -> Tensor:
        """Return logits (rows, heads, vocab) of hidden states (rows, size)."""
        logits = []
        for layers in self:
            assert isinstance(layers, nn.ModuleList)
            state = hidden
            for layer in layers:
                state = layer(state)
            logits.append(state)
        several = torch.stack(logits, dim=1)
        return several if self._own else head(several)


class Chained(nn.Module):
    """Chained heads: each reads the state of the previous head, and the last draft token.

    Args:
        settings: Description, see `qeff_zoo.checkpoint.draft_heads.kinds`.
    """

    reads_tokens = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, inner, vocab = (
            settings["hidden_size"],
            settings["inner_size"],
            settings["vocab_size"],
        )
        count, tied = settings["heads"], bool(settings.get("tied"))

        def several(make: Any) -> nn.ModuleList:
            first = make()
            return nn.ModuleList(first if tied else make() for _ in range(count))

        self.emb = several(lambda: nn.Embedding(vocab, inner))
        first, others = (
            nn.Linear(hidden, inner, bias=False),
            several(lambda: nn.Linear(inner, inner, bias=False)),
        )
        self.proj = nn.ModuleList([first, *others[: count - 1]])
        self.ln = several(lambda: Norm(inner))
        self.head = several(lambda: nn.Linear(inner, vocab, bias=False))
        self._scaled = bool(settings.get("scaled"))
        weight = 0.5 ** (0.5 / count)  # of the state
        self._share = math.sqrt((1 - weight**2) * (inner / 2)) / weight

    def forward(self, hidden: Tensor, _: nn.Module, input_ids: Tensor) -> Tensor:
        """Return logits (rows, heads, vocab).

        Args:
            hidden: (rows, size).
            input_ids: Newest token, then each draft token, (rows, heads); -1 for the most probable.
        """
        state = _normed(hidden) / math.sqrt(2) if self._scaled else hidden
        logits: list[Tensor] = []
        for number, (emb, proj, ln, head) in enumerate(
            zip(self.emb, self.proj, self.ln, self.head, strict=True)
        ):
            token = input_ids[:, number]
            likeliest = logits[-1].argmax(-1) if logits else torch.zeros_like(token)
            token = torch.where(token < 0, likeliest, token)
            state = nn.functional.gelu(ln(proj(state) + self._share * emb(token)))
            logits.append(head(state))
        return torch.stack(logits, dim=1)


class Norm(nn.Module):
    """A root-mean-square norm with a bias.

    Args:
        size: Size of the normalized states.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, values: Tensor) -> Tensor:
        """Normalize each row."""
        return _normed(values) * self.weight + self.bias


def _normed(values: Tensor) -> Tensor:
    return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + 1e-6)


_MODULES: Mapping[str, Any] = MappingProxyType({"projections": Projections, "chained": Chained})


def build(settings: Mapping[str, Any]) -> Any:
    """Build the module of draft heads, without their values."""
    return _MODULES[settings["kind"]](settings)

# SPDX-License-Identifier: Apache-2.0
"""A causal language model of a few operations, to be traced in a second, with ways to be awkward."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn

from qeff_zoo.export import loader, ops  # noqa: F401  (defines torch.ops.qeff_zoo)

VOCAB, WIDTH = 17, 8


class Layer(nn.Module):
    """One head of attention, then whatever a test adds."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.project = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def forward(self, x: Tensor, mask: Tensor, past: Any) -> Tensor:
        query, key, value = self.project(x).unsqueeze(1).chunk(3, -1)
        key, value = past.update(key, value, self.layer_idx)
        mixed = torch.ops.qeff_zoo.attention(query, key, value, mask, 0.5, 0.0)
        return self.finish(x + mixed.flatten(2))

    def finish(self, x: Tensor) -> Tensor:
        """Change the result; tests override it."""
        return x


def straight(layers: nn.ModuleList, x: Tensor, call: Callable[[Any, Tensor], Tensor]) -> Tensor:
    """Call one layer after the other."""
    for layer in layers:
        x = call(layer, x)
    return x


class Toy(nn.Module):
    """Stands in for a transformers model.

    Args:
        layer: Class of the layers.
        count: Number of layers.
        prepare: Called with every layer and its index.
        run: Calls the layers.
    """

    def __init__(
        self,
        layer: Callable[[int], nn.Module] = Layer,
        count: int = 3,
        prepare: Callable[[Any, int], None] = lambda layer, index: None,
        run: Callable[..., Tensor] = straight,
    ) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_hidden_layers=count)
        self.config.get_text_config = lambda: self.config
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(layer(index) for index in range(count))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.run = run
        for index, one in enumerate(self.layers):
            prepare(one, index)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, use_cache: bool
    ) -> Any:
        x = self.embed(input_ids)
        keys, _ = past_key_values.get_mask_sizes(input_ids.shape[1])
        queries = past_key_values.get_query_offset()[:, None, :, None]
        allowed = torch.arange(keys, device=x.device) <= queries
        mask = torch.where(allowed, 0.0, torch.finfo(x.dtype).min)
        x = self.run(self.layers, x, lambda layer, y: layer(y, mask, past_key_values))
        return SimpleNamespace(logits=self.head(x))


def on_meta(make: Callable[[], Toy]) -> Toy:
    """Make a toy without weights, as the loader does."""
    with init_empty_weights(include_buffers=False):
        toy = make().eval()
    loader.hollow(toy)
    return toy


def with_weights(make: Callable[[], Toy]) -> Toy:
    """Make a toy with the same random weights each time."""
    torch.manual_seed(0)
    return make().eval().requires_grad_(False)

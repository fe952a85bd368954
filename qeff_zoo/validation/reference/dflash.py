# SPDX-License-Identifier: Apache-2.0
"""DFlash block drafts as the paper (arXiv 2602.06036) defines them: the reference of a package's program `draft`.

Only the reference process imports this. No state is kept: each block is computed from all hidden states before it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from qeff_zoo.validation.reference.layers import (
    ROTATED,
    DraftLayerLogits,
    layers_of,
    normalize,
    put,
    rotate,
)
from qeff_zoo.validation.trial.cases import LAYER_ANSWERS


class DFlash(DraftLayerLogits):
    """Layers of Qwen3 that draft a block of tokens at once.

    Args:
        model: Hugging Face's.
        config: Config of the drafter.
        stored: Tensors of the draft model.
    """

    def __init__(self, model: Any, config: Mapping[str, Any], stored: Mapping[str, Tensor]) -> None:
        inside, count = config["dflash_config"], config["num_hidden_layers"]
        every, last = layers_of(model), config.get("num_target_layers", 0) - 3
        spread = [1 + at * (last - 1) / max(count - 1, 1) for at in range(count)]
        usual = [round(one) for one in spread] if count > 1 else [(last + 3) // 2]
        read = inside.get("target_layer_ids") or usual
        super().__init__(model, [every[layer + 1] for layer in read])
        self._count, self._epsilon = count, config["rms_norm_eps"]
        self._masks = [inside["mask_token_id"]] * (config.get("block_size") or inside["block_size"])
        self._size = config["head_dim"]
        sizes = {name: config[name] for name in ROTATED if config.get(name) is not None}
        self._rotary = LlamaRotaryEmbedding(LlamaConfig(**sizes, head_dim=self._size))
        self._parts: dict[str, Any] = {}
        for name, tensor in stored.items():
            path = f"inner.model.{name}" if name.startswith(("layers.", "norm.")) else name
            self._parts[name.rpartition(".")[0]] = put(model, path, tensor)

    def logits(
        self,
        input_ids: Tensor,
        rows: Sequence[int],
        columns: Sequence[int],
        after: Sequence[Sequence[int]],
    ) -> Tensor:
        """Return (positions, tokens, vocab) of some positions, given the next token; fewer repeat the last."""
        joined = self._parts["fc"](torch.cat(self._read, -1))
        context, found = self._normed(joined, "hidden_norm"), list[Tensor]()
        for row, column, tokens in zip(rows, columns, after, strict=True):
            logits = self._block(context[row, : column + 1], tokens[0])[: len(tokens)]
            most = max(LAYER_ANSWERS, len(tokens))
            found.append(torch.cat([logits, logits[-1:].expand(most - len(logits), -1)]))
        return torch.stack(found)

    def _block(self, context: Tensor, newest: int) -> Tensor:
        """Return the logits (tokens, vocab) after a token, which follows the context (positions, size)."""
        tokens = torch.tensor([newest, *self._masks[1:]])
        states = self.model.get_input_embeddings()(tokens)
        for layer in range(self._count):
            part = f"layers.{layer}"
            inner = self._normed(states, f"{part}.input_layernorm")
            states = states + self._attended(part, inner, context)
            inner = self._normed(states, f"{part}.post_attention_layernorm")
            gate, up, down = (
                self._parts[f"{part}.mlp.{one}_proj"] for one in ("gate", "up", "down")
            )
            states = states + down(functional.silu(gate(inner)) * up(inner))
        head: nn.Module = self.model.get_output_embeddings()
        logits: Tensor = head(self._normed(states[1:], "norm"))
        return logits

    def _attended(self, part: str, states: Tensor, context: Tensor) -> Tensor:
        """Let all tokens of a block attend to the context and to one another."""
        both, start = torch.cat([context, states]), len(context)
        query, key, value = (
            self._parts[f"{part}.self_attn.{one}_proj"](read).unflatten(-1, (-1, self._size))
            for one, read in (("q", states), ("k", both), ("v", both))
        )
        query, key = (
            self._normed(one, f"{part}.self_attn.{name}_norm")
            for one, name in ((query, "q"), (key, "k"))
        )
        cos, sin = (one[0, :, None] for one in self._rotary(both, torch.arange(len(both))[None]))
        query = query * cos[start:] + rotate(query) * sin[start:]
        key = key * cos + rotate(key) * sin
        times = query.shape[1] // key.shape[1]
        query, key, value = (
            one.repeat_interleave(count, 1).transpose(0, 1)
            for one, count in ((query, 1), (key, times), (value, times))
        )
        weights = (query @ key.mT / math.sqrt(self._size)).softmax(-1)
        mixed: Tensor = self._parts[f"{part}.self_attn.o_proj"](
            (weights @ value).transpose(0, 1).flatten(1)
        )
        return mixed

    def _normed(self, values: Tensor, name: str) -> Tensor:
        return normalize(values, self._parts[name].weight, self._epsilon)

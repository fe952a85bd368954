# SPDX-License-Identifier: Apache-2.0
"""QEfficient's `InputHandler`: inputs of a decoder's calls, with KV states as arrays, for comparisons of one's own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.config import kv_heads_of
from qeff_zoo.runtime.program import Array


def get_padding_shape_from_config(config: Any, batch_size: int, seq_len: int) -> list[int]:
    """Return the shape of a layer's keys: rows, heads, positions and head size.

    Args:
        config: Configuration of a decoder of transformers.
        batch_size: Number of rows.
        seq_len: Number of positions.
    """
    query_heads = config.num_attention_heads
    heads = kv_heads_of(config.to_dict()) or query_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // query_heads
    return [batch_size, heads, seq_len, size]


class InputHandler:
    """Inputs of prefill and decode calls, for PyTorch and for ONNX Runtime.

    Args:
        batch_size: Number of rows of a call.
        tokenizer: Tokenizer of transformers.
        config: Configuration of the decoder.
        prompt: Prompts, one a row.
        prompt_len: Length of a prefill call.
        ctx_len: Length of the KV states.
        full_batch_size: Batch slots of continuous batching; None without.
        dtype: Data type of PyTorch's states; None for float32.
    """

    def __init__(
        self,
        batch_size: int,
        tokenizer: Any,
        config: Any,
        prompt: Sequence[str],
        prompt_len: int,
        ctx_len: int,
        full_batch_size: int | None = None,
        dtype: Any = None,
    ) -> None:
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token_id = tokenizer.eos_token_id
        tokenizer.padding_side = "right"
        self.tokenizer, self.prompt, self.prompt_len = tokenizer, prompt, prompt_len
        self.config, self.ctx_len, self.dtype = config, ctx_len, dtype
        self.full_batch_size, self._rows = full_batch_size, full_batch_size or batch_size
        #: Number of layers.
        self.n_layer: int = config.get_text_config().num_hidden_layers

    def _state_shape(self, layer: int) -> tuple[int, int, int, int]:
        """Return the shape of a layer's keys: (rows, heads, positions, head size)."""
        config = self.config.get_text_config()
        _, heads, _, size = get_padding_shape_from_config(config, self._rows, self.ctx_len)
        kinds: list[str] = getattr(config, "layer_types", None) or []
        is_sliding = bool(kinds) and kinds[layer] == "sliding_attention"
        length = min(config.sliding_window, self.ctx_len) if is_sliding else self.ctx_len
        if kinds and not is_sliding:
            size = getattr(config, "global_head_dim", None) or size
        return self._rows, heads, length, size

    def _tokens(self) -> dict[str, Array]:
        """Return token ids and positions, padded to the length of a prefill call."""
        encoded = self.tokenizer(list(self.prompt), return_tensors="np", padding=True)
        tokens, length = encoded["input_ids"], encoded["input_ids"].shape[1]
        width = max(length, self.prompt_len) if not self.full_batch_size else length
        pad = [(0, 0), (0, width - length)]
        positions = np.where(encoded["attention_mask"], np.arange(length), -1)
        inputs = {
            "input_ids": np.pad(tokens, pad, constant_values=self.tokenizer.pad_token_id),
            "position_ids": np.pad(positions, pad, constant_values=-1),
        }
        if self.full_batch_size:
            inputs["batch_index"] = np.arange(self.full_batch_size)[:, None]
        return {name: value.astype(np.int64) for name, value in inputs.items()}

    def prepare_ort_inputs(self) -> dict[str, Array]:
        """Return the inputs of a prefill call for ONNX Runtime; states are zeros."""
        states = {
            f"past_{kind}.{layer}": np.zeros(self._state_shape(layer), np.float32)
            for layer in range(self.n_layer)
            for kind in ("key", "value")
        }
        return {**self._tokens(), **states}

    def prepare_pytorch_inputs(self) -> dict[str, Any]:
        """Return the inputs of a prefill call for PyTorch; states are zeros, (keys, values) of each layer."""
        import torch

        states = tuple(
            tuple(torch.zeros(self._state_shape(layer), dtype=self.dtype) for _ in range(2))
            for layer in range(self.n_layer)
        )
        tokens = {name: torch.from_numpy(value) for name, value in self._tokens().items()}
        return {**tokens, "past_key_values": states}

    def update_ort_outputs(self, ort_outputs: Mapping[str, Array]) -> dict[str, Any]:
        """Return the logits and the states of a call, keys and values in turn.

        Args:
            ort_outputs: Outputs by name.
        """
        names = [
            f"past_{kind}.{layer}_RetainedState"
            for layer in range(self.n_layer)
            for kind in ("key", "value")
        ]
        states = [ort_outputs[name] for name in names if name in ort_outputs]
        return {"logits": ort_outputs["logits"], "past_key_values": states}

    def update_ort_inputs(
        self, inputs: Mapping[str, Array], ort_outputs: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Return the inputs of the next call for ONNX Runtime.

        Args:
            inputs: Inputs of the last one.
            ort_outputs: Result of `update_ort_outputs`.
        """
        states = ort_outputs["past_key_values"]
        following = {
            "input_ids": ort_outputs["logits"][:, -1].argmax(-1).reshape(-1, 1),
            "position_ids": inputs["position_ids"].max(1, keepdims=True) + 1,
            **({"batch_index": inputs["batch_index"]} if "batch_index" in inputs else {}),
        }
        for layer in range(self.n_layer):
            following[f"past_key.{layer}"], following[f"past_value.{layer}"] = states[
                2 * layer : 2 * layer + 2
            ]
        return following

    def update_pytorch_inputs(self, inputs: Mapping[str, Any], pt_outputs: Any) -> dict[str, Any]:
        """Return the inputs of the next call for PyTorch.

        Args:
            inputs: Inputs of the last one.
            pt_outputs: Outputs.
        """
        slots = {"batch_index": inputs["batch_index"]} if "batch_index" in inputs else {}
        return {
            "input_ids": pt_outputs["logits"][:, -1].argmax(-1).reshape(-1, 1),
            "position_ids": inputs["position_ids"].max(1, keepdim=True).values + 1,
            "past_key_values": pt_outputs["past_key_values"],
            **slots,
        }

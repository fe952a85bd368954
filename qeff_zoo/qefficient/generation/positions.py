# SPDX-License-Identifier: Apache-2.0
"""Positions of a prompt with images, for a loop over calls of `QAICInferenceSession`: those of transformers' model."""

from typing import Any

import numpy as np
import torch
from transformers import AutoModelForImageTextToText

from qeff_zoo.runtime.decoding.call_inputs import PADDING


def with_positions(inputs: Any, config: Any, prefill_seq_len: int = 1) -> Any:
    """Return a processor's output, with `position_ids` if the model's rotary positions have several axes.

    Args:
        inputs: Output of the processor of the checkpoint, in torch.
        config: Configuration of the model.
        prefill_seq_len: Width of a prefill call; positions are padded to a multiple of it.

    Returns:
        The same mapping. `position_ids` is (1 + axes, rows, tokens): the position in the prompt, then those of each
        axis; -1 for padding.
    """
    if "image_grid_thw" not in inputs and "mm_token_type_ids" not in inputs:
        return inputs
    with torch.device("meta"):  # no weights
        model = AutoModelForImageTextToText.from_config(config)
    rope_index = getattr(getattr(model, "model", None), "get_rope_index", None)
    if rope_index is None:
        return inputs
    names = ("input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask")
    axes, _ = rope_index(**{name: inputs[name] for name in names if name in inputs})
    mask = np.asarray(inputs["attention_mask"]).astype(bool)
    first = np.broadcast_to(np.arange(mask.shape[1]), mask.shape)
    positions = np.concatenate([first[None], axes.numpy()])
    positions = np.where(mask[None], positions, PADDING)
    padding = -positions.shape[-1] % prefill_seq_len
    padded = np.pad(positions, ((0, 0), (0, 0), (0, padding)), constant_values=PADDING)
    inputs["position_ids"] = torch.from_numpy(padded)
    return inputs

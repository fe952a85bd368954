# SPDX-License-Identifier: Apache-2.0
"""One call of a CTC model, for tracing: `automatic-speech-recognition`.

IN   input_values (batch_size, seq_len) f32            samples; or
     input_features (batch_size, seq_len, bins) f32    feature frames, as the model takes them
     attention_mask (batch_size, seq_len) i64          1 is audio, 0 is padding after it
OUT  logits (batch_size, frames, vocab)                for each frame of the encoder
     lengths (batch_size,) i64                         number of these frames without padding
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.export.uncomputed import uncomputed
from qeff_zoo.graph.passes import whole_units
from qeff_zoo.recipe import LEAST_SAMPLES

_BATCH = 2
_MOST = 1 << 24  # samples, 17 minutes
#: Inputs of the example, and the minimum of a graph.
_EXAMPLE, _LEAST = (
    {"input_values": 8000, "input_features": 96},
    {
        "input_values": LEAST_SAMPLES,
        "input_features": 24,
    },
)
#: Attribute of rotary embeddings with the sequence length of their cached values.
_KNOWN = "cached_sequence_length"
#: Fields of configs with the number of values in a feature frame, and method of models that computes the output length.
_STACKS = "input_linear"  # of frames, side by side
_BINS = ("feature_projection_input_dim", "input_feat_per_channel", "num_mel_bins")
SUBSAMPLED = "_get_subsampling_output_length"
_RULES = (SUBSAMPLED, "_get_feat_extract_output_lengths")


class Listen(nn.Module):
    """One call of a model with a CTC head.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, audio: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits, and the number of frames of each row without padding."""
        logits = logits_of(self.model, audio, attention_mask)
        return logits, frames_of(self.model, attention_mask.sum(1))


def logits_of(model: Any, audio: Tensor, attention_mask: Tensor) -> Tensor:
    """Return a model's logits of audio, independent of the padding after it.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        audio: Samples, or feature frames.
        attention_mask: Mask, 1 is audio, 0 is padding after it.
    """
    for module in model.modules():
        if hasattr(module, _KNOWN):  # else compared with the length of the audio before
            setattr(module, _KNOWN, None)
    audio = silenced(audio, attention_mask)
    given = {model.main_input_name: audio, "attention_mask": attention_mask}
    logits: Tensor = model(**given).logits
    return logits


def silenced(audio: Tensor, attention_mask: Tensor) -> Tensor:
    """Return audio with zeros after its end, which convolutions near the end read."""
    real = attention_mask.to(audio.dtype)
    return audio * (real if audio.dim() == 2 else real[:, :, None])


def frames_of(model: Any, lengths: Tensor) -> Tensor:
    """Return the number of frames for a number of inputs, by the model's own rule.

    Args:
        model: Hugging Face model.
        lengths: (batch,), samples or feature frames.
    """
    rule = next(getattr(model, name) for name in _RULES if hasattr(model, name))
    frames: Tensor = rule(lengths).long()
    return frames


def _name_frames(graph: Any) -> None:
    """Name the symbol of the number of frames, in place of its expression in the trace."""
    logits = graph.graph.outputs[0]
    logits.shape = type(logits.shape)([logits.shape[0], "frames", logits.shape[2]])


def _fill_up(graph: Any, unit: int) -> None:
    whole_units.fill_up(graph.graph, unit)
    _name_frames(graph)


def _encoder_of(model: Any) -> Any:
    """Return the config of the encoder."""
    return getattr(model.config, "encoder_config", model.config)


def example(model: Any) -> tuple[Tensor, Tensor, Any]:
    """Return example audio of a model, its mask, and the symbol of its length.

    Args:
        model: Model from `loader.load_meta`.
    """
    name, config = model.main_input_name, _encoder_of(model)
    unit = unit_of(config.to_dict())
    shape: tuple[int, ...] = (_BATCH, _EXAMPLE[name] if unit == 1 else 3 * unit)
    mask = torch.ones(shape, dtype=torch.long)
    if name == "input_features":
        bins = next(getattr(config, one) for one in _BINS if hasattr(config, one))
        stacks = getattr(getattr(model, "encoder", None), _STACKS, None)
        shape = (*shape, stacks.in_features if stacks else bins)
    if unit > 1:
        return torch.zeros(shape), mask, unit * Dim("units", min=1, max=_MOST // unit)
    return torch.zeros(shape), mask, Dim("seq_len", min=_LEAST[name], max=_longest(config))


def unit_of(encoder: Mapping[str, Any]) -> int:
    """Return the factor of all lengths: the frames of an attention block, before all layers that halve them.

    Args:
        encoder: Config of the encoder.
    """
    halved = encoder.get("subsample_layers")
    return int(encoder["context_size"]) << len(halved) if halved else 1


def _longest(config: Any) -> int:
    """Return the maximum number of inputs, which torch.export requires; some models have as many positions."""
    positions = int(getattr(config, "max_source_positions", _MOST))
    return min(_MOST, positions * math.prod(getattr(config, "conv_stride", ())))


def run_once(model: Any) -> None:
    """Run the model without any computation."""
    with uncomputed():
        audio, mask, _ = example(model)
        model(**{model.main_input_name: audio, "attention_mask": mask})


def tracing(model: Any) -> Tracing:
    """Describe how to trace a model: wrapped module, example inputs, names and symbols.

    Args:
        model: Model from `loader.load_meta`.
    """
    audio, mask, seq = example(model)
    batch, unit = Dim("batch_size", min=2), unit_of(_encoder_of(model).to_dict())
    return Tracing(
        module=Listen(model).eval(),
        inputs={"audio": audio, "attention_mask": mask},
        dynamic_shapes={"audio": {0: batch, 1: seq}, "attention_mask": {0: batch, 1: seq}},
        input_names=[model.main_input_name, "attention_mask"],
        output_names=["logits", "lengths"],
        then=_name_frames if unit == 1 else partial(_fill_up, unit=unit),
        checked_later=True,
    )

# SPDX-License-Identifier: Apache-2.0
"""One call of an audio classification model, for tracing.

IN   input_values (batch_size, seq_len) f32            samples; or
     input_features (batch_size, seq_len, bins) f32    feature frames, as the model takes them
     attention_mask (batch_size, seq_len) i64          1 is audio, 0 is padding after it
OUT  logits (batch_size, labels)
"""

from typing import Any

from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.export.tracing import ctc_tracing


class ClassifyAudio(nn.Module):
    """One call of a model with a classification head.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, audio: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits."""
        return ctc_tracing.logits_of(self.model, audio, attention_mask)


def tracing(model: Any) -> Tracing:
    """Describe how to trace a model: wrapped module, example inputs, names and symbols.

    Args:
        model: Model from `loader.load_meta`.
    """
    audio, mask, seq = ctc_tracing.example(model)
    axes = {0: Dim("batch_size", min=2), 1: seq}
    return Tracing(
        module=ClassifyAudio(model).eval(),
        inputs={"audio": audio, "attention_mask": mask},
        dynamic_shapes={"audio": axes, "attention_mask": axes},
        input_names=[model.main_input_name, "attention_mask"],
        output_names=["logits"],
        checked_later=True,
    )

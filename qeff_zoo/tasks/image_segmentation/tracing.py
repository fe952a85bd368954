# SPDX-License-Identifier: Apache-2.0
"""One call of a segmentation model, for tracing."""

from typing import Any

from torch import Tensor, nn

from qeff_zoo.tasks.images.image_tracing import Head

#: Names of transformers' outputs of the labels and of the masks of queries, by the graph's name.
_NAMES = {
    "logits": ("class_queries_logits", "logits"),
    "pred_masks": ("masks_queries_logits", "pred_masks"),
}


class Queries(nn.Module):
    """One call of a model whose queries have a label and a mask each; images have no padding.

    Args:
        model: Hugging Face model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of labels and of masks of every query."""
        output = self.model(pixel_values=pixel_values)
        return tuple(
            next(output[name] for name in names if name in output) for names in _NAMES.values()
        )


def describe(model: Any, *, queries: bool) -> tuple[nn.Module, list[str]]:
    """Return the module to trace, and the names of its outputs.

    Args:
        model: Hugging Face model.
        queries: Whether it has queries.
    """
    if queries:
        return Queries(model), [*_NAMES]
    return Head(model, "logits"), ["logits"]

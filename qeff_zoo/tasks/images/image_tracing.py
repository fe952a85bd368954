# SPDX-License-Identifier: Apache-2.0
"""One call of an image model, for tracing: the output of its head, or one embedding of each image."""

from typing import Any

from torch import Tensor, nn

from qeff_zoo.errors import ExportError


class Head(nn.Module):
    """One call of a model with a head.

    Args:
        model: Hugging Face model.
        output: Name of the head's output, such as "logits".
    """

    def __init__(self, model: Any, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the head's output for each image."""
        output: Tensor = getattr(self.model(pixel_values=pixel_values), self.output)
        return output


class Embed(nn.Module):
    """One call of an encoder.

    Args:
        model: Hugging Face model.
        pooling: Pooling of the last states, "mean", "max" or "cls" (the first); None for the model's own.
        normalize: Whether to scale each embedding to length 1.

    Raises:
        ExportError: The model has no state for the whole image, and no pooling is set.
    """

    def __init__(self, model: Any, pooling: str | None, normalize: bool) -> None:
        super().__init__()
        names = [name.rpartition(".")[2] for name, _ in model.named_parameters()]
        if pooling == "cls" and not {"cls_token", "class_embedding"} & {*names}:
            raise ExportError(
                f"{type(model).__name__} has no state of the whole image for --pooling cls. Expected mean or max; "
                "choose one, or leave it out for what the model itself makes."
            )
        self.model, self.pooling, self.normalize = model, pooling, normalize

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return one embedding per row."""
        # For a model of images and texts, the image encoder, in the space that both share.
        call = getattr(self.model, "get_image_features", self.model)
        output = call(pixel_values=pixel_values)
        if self.pooling is None:
            if getattr(output, "pooler_output", None) is None:
                raise ExportError(
                    f"{type(self.model).__name__} returns no embedding of the whole image. Expected a pooling of its "
                    "states; choose one with --pooling."
                )
            pooled = output.pooler_output.flatten(1)
        else:
            states = output.last_hidden_state
            if states.dim() == 4:  # (batch, channels, height, width) of convolutions
                states = states.flatten(2).transpose(1, 2)
            pooled = _pool(states, self.pooling)
        return nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def _pool(states: Tensor, pooling: str) -> Tensor:
    """Reduce (batch, states, hidden) to (batch, hidden)."""
    if pooling == "cls":
        return states[:, 0]
    return states.amax(1) if pooling == "max" else states.mean(1)

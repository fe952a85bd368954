# SPDX-License-Identifier: Apache-2.0
"""ZoeDepth for batches of any size: states that are reassembled one by one, and a domain for each image.

transformers stacks the states of all layers along the batch, and chooses the domain on the host, by a vote of the
batch. For a single image the results are equal.
"""

from functools import partial
from typing import Any

import torch

from .modules import give, of_class, rebound


class _Chosen:
    """`torch` whose `argmax` is a constant.

    Args:
        index: Number of a domain.
    """

    def __init__(self, index: int) -> None:
        self._index = index

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def argmax(self, *_: Any, **__: Any) -> "_Chosen":
        """Return the constant."""
        return self

    def squeeze(self) -> "_Chosen":
        """Return the constant."""
        return self

    def item(self) -> int:
        """Return the constant."""
        return self._index


def apply(model: Any) -> int:
    """Reassemble states one by one; let heads of several domains compute each, and select by the logits of an image.

    Args:
        model: Hugging Face model.

    Returns:
        Number of changed modules.
    """
    stages = of_class(model, "ZoeDepthReassembleStage")
    for stage in stages:
        give(stage, _reassembled)
    heads = of_class(model, "ZoeDepthMultipleMetricDepthEstimationHeads")
    for head in heads:
        forwards = [
            rebound(type(head).forward, torch=_Chosen(index))
            for index in range(len(head.bin_configurations))
        ]
        give(head, partial(_selected, forwards))
    return len(stages) + len(heads)


def _reassembled(stage: Any, hidden_states: Any, patch_height: Any, patch_width: Any) -> list[Any]:
    """Return a map of each state; the first token of a state is projected with each of the others."""
    maps = []
    for states, project, layer in zip(
        hidden_states, stage.readout_projects, stage.layers, strict=True
    ):
        readout, patches = states[:, :1], states[:, 1:]
        projected = project(torch.cat((patches, readout.expand_as(patches)), -1))
        channels = projected.transpose(1, 2)
        maps.append(layer(channels.reshape(states.shape[0], -1, patch_height, patch_width)))
    return maps


def _selected(forwards: Any, head: Any, **features: Any) -> tuple[Any, Any]:
    """Return the depths of each image in its domain, and the logits of the domains."""
    depths, logits = zip(*(forward(head, **features) for forward in forwards), strict=True)
    domains = logits[0].argmax(-1)[:, None, None, None]
    selected = depths[0]
    for index, depth in enumerate(depths[1:], 1):
        selected = torch.where(domains == index, depth, selected)
    return selected, logits[0]

# SPDX-License-Identifier: Apache-2.0
"""Audio of any length through an encoder that attends within blocks, for tracing: program `audio`.

IN   input_features (blocks, frames, bins) f32     the whole recording, block by block; the last is padded
     attention_mask (blocks, frames) i64           1 is audio, 0 is padding
     window_index (windows, width) i64             frames that become the rows of a window; -1 for none
OUT  audio_embeds (audio_rows, hidden)             a row for each placeholder token: some of each window

The traced forward is transformers' own, of the audio as one sequence. If it would pad the last block or window itself,
which needs sizes that a graph cannot have, each is a row of a batch. Padding is masked in attention, and zero for
convolutions and in windows, like the space after the end of unpadded audio.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from qeff_zoo.contract import Tracing
from qeff_zoo.export.concrete import Concrete
from qeff_zoo.multimodal.tracing.forward_patches import FeatureRecorder, swapped, unread
from qeff_zoo.multimodal.tracing.patch_tracing import rename, rows_of

FEATURES, REAL, WINDOWS = "input_features", "attention_mask", "window_index"
_BLOCKS, _WINDOWS = 3, 5  # of the example
MOST = 1 << 16  # of both


class _Hidden(FeatureRecorder):
    """Masks padding in the attention within blocks.

    Args:
        real: Mask (blocks, frames), True is audio.
    """

    def __init__(self, real: Tensor) -> None:
        super().__init__()
        self.real = real

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is functional.scaled_dot_product_attention:
            scores = kwargs.get("attn_mask")
            if scores is not None:  # of distances, which attention after the encoder lacks
                least = torch.finfo(scores.dtype).min
                masked = torch.where(self.real[:, None, None, :], scores, least)
                kwargs = {**kwargs, "attn_mask": masked}
        return super().__torch_function__(func, types, args, kwargs)


class AudioForward(nn.Module):
    """The forward of audio in blocks, up to the merge.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        audio: Audio input of the recipe.
    """

    def __init__(self, model: Any, audio: Any) -> None:
        super().__init__()
        self.model, self.token = model, getattr(model.config, audio.token)
        parts = [*model.base_model.encoder.modules()]
        self.attentions = [part for part in parts if hasattr(part, audio.block)]
        self.convolutions = [part for part in parts if any(map(_looks_around, part.children()))]

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows."""
        features, mask, windows = given
        real = mask > 0
        audio = real.reshape(1, 1, -1)

        def attend(module: nn.Module) -> Callable[..., Tensor]:
            plain = module.forward

            def forward(states: Tensor, **arguments: Any) -> Tensor:
                output: Tensor = plain(states.reshape(*real.shape, -1), **arguments)
                return output.reshape(states.shape)

            return forward

        def convolve(module: nn.Module) -> Callable[..., Tensor]:
            plain = module.forward
            return lambda states: plain(states * audio.to(states.dtype))

        projector = self.model.base_model.projector
        project, query = projector.forward, projector.qformer.forward

        def in_windows(states: Tensor) -> Tensor:
            there = (windows >= 0)[..., None].to(states.dtype)
            projected: Tensor = project(states[0, windows.clamp(min=0)] * there)
            return projected

        def of_each(query_embeds: Tensor, **arguments: Any) -> Any:
            # Expanded explicitly, since transformers broadcasts one row of queries over all windows.
            return query(query_embeds=query_embeds.expand(windows.shape[0], -1, -1), **arguments)

        changes = [
            *((attention, "forward", attend(attention)) for attention in self.attentions),
            *((convolution, "forward", convolve(convolution)) for convolution in self.convolutions),
            (projector, "forward", in_windows),
            (projector.qformer, "forward", of_each),
            unread(self.model),
        ]
        tokens, hidden = torch.full((1, 2), self.token), _Hidden(real)
        with swapped(*changes), Concrete(), hidden:
            self.model(input_ids=tokens, **{FEATURES: features.reshape(1, -1, features.shape[2])})
        return (rows_of(hidden.features),)


def _looks_around(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv1d) and module.kernel_size != (1,)


def tracing(model: Any, audio: Any) -> Tracing:
    """Describe how to trace the encoder of `model`.

    Args:
        model: Model from `loader.load_meta`.
        audio: Audio input of the recipe.
    """
    encoder = model.base_model.encoder.config
    frames = int(getattr(encoder, audio.block))
    given = [
        torch.zeros(_BLOCKS, frames, encoder.input_dim),
        torch.ones(_BLOCKS, frames, dtype=torch.long),
        torch.zeros(_WINDOWS, model.base_model.projector.window_size, dtype=torch.long),
    ]
    sizes = [Dim(name, min=2, max=MOST) for name in ("blocks", "blocks", "windows")]
    return Tracing(
        module=AudioForward(model, audio).eval(),
        inputs={"given": given},
        dynamic_shapes={"given": [{0: size} for size in sizes]},
        input_names=[FEATURES, REAL, WINDOWS],
        output_names=["audio_embeds"],
        then=name_rows,
    )


def name_rows(graph: Any) -> None:
    """Name the symbol of the number of rows, in place of its expression in the trace."""
    rename(
        graph.graph.outputs,
        lambda dim, axis: dim if axis or isinstance(dim, int) else "audio_rows",
    )

# SPDX-License-Identifier: Apache-2.0
"""Audio of any length through an encoder that attends within a chunk and the context before it: program `audio`.

IN   input_features (blocks, frames, bins) f32     the whole recording, by the frames that become a chunk; the last is
                                                   padded
     attention_mask (blocks, frames) i64           1 is audio, 0 is padding
OUT  audio_embeds (audio_rows, hidden)             the rows of every chunk, padding included; or a fixed number of rows
                                                   for any audio, for models that pad it themselves
     [lengths (1,) i64]                            for those models, how many rows are of the audio

The traced forward is transformers' own. If it would cut a sequence into chunks, by sizes that a graph cannot have, the
number of chunks is that of the input blocks; the mask of a chunk's context has the same number. Padding of the last
chunk is zero for convolutions, like the space after the end of unpadded audio.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from qeff_zoo.contract import Tracing
from qeff_zoo.export.concrete import Concrete
from qeff_zoo.multimodal.tracing.audio_block_tracing import FEATURES, REAL, name_rows
from qeff_zoo.multimodal.tracing.forward_patches import FeatureRecorder, swapped, unread
from qeff_zoo.multimodal.tracing.patch_tracing import rows_of

_BLOCKS, _MOST = 3, 1 << 16  # of the example, and at most
_MERGED = 4  # frames that two convolutions make a row of
_CUT, _AROUND, _HIDDEN = (
    "_convert_to_block",
    "_extract_block_context",
    "_convert_4d_mask_to_blocked_5d",
)
#: Function that makes the mask of a sequence, and function that decides which rows a row attends to.
_MASKS, _WINDOW = "create_bidirectional_mask", "sliding_window_mask_function"
#: Method that computes the rows of audio, and its name for the padding mask.
_ROWS, _FILLED = "get_audio_features", "audio_mel_mask"


class _All(FeatureRecorder):
    """Keeps all rows if a forward would select those of the audio, and skips concatenations with empty tensors."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor):
            values, where = args
            if where.dtype is torch.bool and where.dim() == 2 < values.dim():
                return values
        if func is torch.cat:  # ONNX has no rule for an axis of one that becomes none
            joined, *axis = args
            return func([one for one in joined if not _is_empty(one)], *axis, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def _is_empty(values: Tensor) -> bool:
    return any(isinstance(size, int) and size == 0 for size in values.shape)


class AudioForward(nn.Module):
    """The forward of audio in chunks, up to the merge.

    Args:
        model: Hugging Face model.
        audio: Audio input of the recipe.
    """

    def __init__(self, model: Any, audio: Any) -> None:
        super().__init__()
        self.model, self.audio = model, audio
        self.encoder = model.base_model.audio_tower
        self.chunk = getattr(self.encoder.config, audio.chunk)
        self.attentions = [module for module in self.encoder.modules() if hasattr(module, _CUT)]
        first, *_ = self.attentions
        self.before, self.behind = first.max_past_horizon, first.max_future_horizon

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows, and for some models the number of rows of the audio."""
        features, mask = given
        chunks, real, counts = features.shape[0], mask > 0, list[Tensor]()
        changes = [*self._in_chunks(chunks, real), *self._filled_up(counts), unread(self.model)]
        token = getattr(self.model.config, self.audio.token)
        arguments = {
            FEATURES: features.flatten(0, 1)[None],
            self.audio.mask: real.flatten()[None],
        }
        module = vars(sys.modules[type(self.model).__module__])
        masks, noted = {_MASKS: lambda **_: real}, _All()
        with swapped(*changes), mock.patch.dict(module, masks), Concrete(), noted:
            self.model(input_ids=torch.full((1, 2), token), **arguments)
        return rows_of(noted.features), *counts

    def _in_chunks(self, chunks: int, real: Tensor) -> list[tuple[Any, str, Any]]:
        """Let the encoder have as many chunks as the input has blocks, and ignore the padding of the last one.

        Args:
            chunks: Number of input blocks, a symbol.
            real: Mask (chunks, frames), True is audio.

        Returns:
            Changes, see `swapped`.
        """
        context = self.before + self.chunk + self.behind
        # The context rows of each chunk, counted from the rows that precede the first chunk.
        around = torch.arange(chunks)[:, None] * self.chunk + torch.arange(context)
        merged = self.encoder.subsample_conv_projection
        merge = merged.forward

        def in_chunks(frames: Tensor, *there: Tensor) -> Any:
            found = merge(frames, *there)
            rows = found[0] if there else found
            states = rows.reshape(chunks, self.chunk, rows.shape[2]).flatten(0, 1)[None]
            return (states, real[:, ::_MERGED].flatten()[None]) if there else states

        def cut(states: Tensor) -> Tensor:
            pieces: Tensor = states.unflatten(1, (chunks, self.chunk))
            return pieces

        def surrounded(states: Tensor) -> Tensor:
            sides = (*[0, 0] * (states.dim() - 2), self.before, self.behind)
            windows: Tensor = functional.pad(states, sides)[:, around]
            return windows

        if hasattr(self.encoder, _HIDDEN):
            hidden = [(self.encoder, _HIDDEN, lambda _: self._unseen(real, around))]
        else:  # its attention masks chunks itself, and its convolutions take no mask
            parts = [child for child in merged.children() if not isinstance(child, nn.Linear)]
            hidden = [
                (part, "forward", _within(part, real[:, :: 2**at])) for at, part in enumerate(parts)
            ]
        return [
            *((attention, _CUT, cut) for attention in self.attentions),
            *((attention, _AROUND, surrounded) for attention in self.attentions),
            (merged, "forward", in_chunks),
            *hidden,
        ]

    def _filled_up(self, counts: list[Tensor]) -> list[tuple[Any, str, Any]]:
        """Let a model that pads the rows of all audio to one length do so for any number of chunks.

        Args:
            counts: List that receives the number of rows of the audio.

        Returns:
            Changes, see `swapped`.
        """
        if not self.audio.rows:
            return []
        base, most = self.model.base_model, getattr(self.model.config, self.audio.rows)
        plain = getattr(base, _ROWS)

        def filled(*args: Any, **arguments: Any) -> Any:
            output = plain(*args, **arguments)
            masked = getattr(output, _FILLED)
            counts.append((~masked).sum(1))
            output.pooler_output = functional.pad(output.pooler_output, (0, 0, 0, most))[:, :most]
            setattr(output, _FILLED, functional.pad(masked, (0, most), value=True)[:, :most])
            return output

        return [(base, _ROWS, filled)]

    def _unseen(self, real: Tensor, around: Tensor) -> Tensor:
        """Return the rows outside each chunk's attention, (1, 1, chunks, rows, rows around), by transformers' rule."""
        rule = getattr(sys.modules[type(self.model).__module__], _WINDOW)
        rows = around[:, None] - self.before
        own = around[:, : self.chunk, None]
        there = functional.pad(real[:, ::_MERGED].flatten(), (self.before, self.behind))
        visible: Tensor = rule((self.before, self.behind))(0, 0, own, rows) & there[around][:, None]
        return (~visible)[None, None]


def _within(part: nn.Module, real: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a part of the encoder whose input (1, channels, frames, bins) is zero for padding."""
    plain, there = part.forward, real.reshape(1, 1, -1, 1)
    return lambda states: plain(states * there.to(states.dtype))


def tracing(model: Any, audio: Any) -> Tracing:
    """Describe how to trace the encoder of `model`.

    Args:
        model: Model from `loader.load_meta`.
        audio: Audio input of the recipe.
    """
    module = AudioForward(model, audio).eval()
    merged = module.encoder.subsample_conv_projection
    *_, last = (submodule for submodule in merged.modules() if isinstance(submodule, nn.Conv2d))
    bins = _MERGED * merged.input_proj_linear.in_features // last.out_channels
    frames = _MERGED * module.chunk
    given = [
        torch.zeros(_BLOCKS, frames, bins),
        torch.ones(_BLOCKS, frames, dtype=torch.long),
    ]
    blocks = Dim("blocks", min=2, max=_MOST)
    return Tracing(
        module=module,
        inputs={"given": given},
        dynamic_shapes={"given": [{0: blocks}, {0: blocks}]},
        input_names=[FEATURES, REAL],
        output_names=["audio_embeds", *(["lengths"] if audio.rows else [])],
        then=name_rows,
        checked_later=True,
    )

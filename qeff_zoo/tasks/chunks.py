# SPDX-License-Identifier: Apache-2.0
"""A sound of any length through an encoder that attends within chunks of it, and what is before: program `audio`.

IN   input_features (blocks, frames, bins) f32     of the whole sound, by the frames that become a chunk; the last is
                                                   filled up
     attention_mask (blocks, frames) i64           1 is sound, 0 is what fills it up
OUT  audio_embeds (audio_rows, hidden)             a row for each of every chunk, those that fill it up, too

The forward that is traced is transformers' own. Where it would cut a sequence into chunks, by sizes that a graph does
not know, it has as many as blocks were given; so has the mask of what a chunk sees.
"""

import sys
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from qeff_zoo.export.concrete import Concrete
from qeff_zoo.recipe import Sounds
from qeff_zoo.tasks import Tracing
from qeff_zoo.tasks.blocks import FEATURES, REAL, name_rows
from qeff_zoo.tasks.patches import rows_of
from qeff_zoo.tasks.seams import Noted, swapped, unread

_BLOCKS, _MOST = 3, 1 << 16  # of the example, and at most
_MERGED = 4  # frames that two convolutions make a row of
_CUT, _AROUND, _HIDDEN = (
    "_convert_to_block",
    "_extract_block_context",
    "_convert_4d_mask_to_blocked_5d",
)
#: What makes a mask of a sequence, and what says which rows a row sees.
_MASKS, _WINDOW = "create_bidirectional_mask", "sliding_window_mask_function"


class _All(Noted):
    """Keeps all rows where a forward would choose those that are of the sound."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor):
            values, where = args
            if where.dtype is torch.bool and where.dim() == 2 < values.dim():
                return values
        return super().__torch_function__(func, types, args, kwargs)


class Sound(nn.Module):
    """The forward up to the merge, of a sound in chunks.

    Args:
        model: Hugging Face model.
        sounds: As a recipe says of them.
    """

    def __init__(self, model: Any, sounds: Sounds) -> None:
        super().__init__()
        self.model, self.sounds = model, sounds
        self.tower = model.base_model.audio_tower
        config = self.tower.config
        self.chunk = getattr(config, sounds.chunks)
        self.before, self.behind = config.attention_context_left - 1, config.attention_context_right
        self.attentions = [one for one in self.tower.modules() if hasattr(one, _CUT)]

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the rows of features."""
        features, mask = given
        chunks, real = features.shape[0], mask > 0
        context = self.before + self.chunk + self.behind
        # Of each chunk the rows around it, counted from those that are put before the first.
        around = torch.arange(chunks)[:, None] * self.chunk + torch.arange(context)
        merged = self.tower.subsample_conv_projection
        merge = merged.forward

        def in_chunks(frames: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
            found, _ = merge(frames, there)
            states = found.reshape(chunks, self.chunk, found.shape[2]).flatten(0, 1)
            return states[None], real[:, ::_MERGED].flatten()[None]

        def cut(states: Tensor) -> Tensor:
            found: Tensor = states.unflatten(1, (chunks, self.chunk))
            return found

        def surrounded(states: Tensor) -> Tensor:
            wide = functional.pad(states, (0, 0, 0, 0, self.before, self.behind))
            found: Tensor = wide[:, around]
            return found

        changes = [
            *((one, _CUT, cut) for one in self.attentions),
            *((one, _AROUND, surrounded) for one in self.attentions),
            (merged, "forward", in_chunks),
            (self.tower, _HIDDEN, lambda _: self._unseen(real, around)),
            unread(self.model),
        ]
        token = getattr(self.model.config, self.sounds.token)
        told = {
            FEATURES: features.flatten(0, 1)[None],
            self.sounds.mask: real.flatten()[None],
        }
        module, noted = vars(sys.modules[type(self.model).__module__]), _All()
        masks = {_MASKS: lambda **_: real}
        with swapped(*changes), mock.patch.dict(module, masks), Concrete(), noted:
            self.model(input_ids=torch.full((1, 2), token), **told)
        return (rows_of(noted.features),)

    def _unseen(self, real: Tensor, around: Tensor) -> Tensor:
        """Tell of each chunk what its rows do not see, (1, 1, chunks, rows, rows around), by transformers' own rule."""
        rule = getattr(sys.modules[type(self.model).__module__], _WINDOW)
        rows = around[:, None] - self.before
        own = around[:, : self.chunk, None]
        there = functional.pad(real[:, ::_MERGED].flatten(), (self.before, self.behind))
        seen: Tensor = rule((self.before, self.behind))(0, 0, own, rows) & there[around][:, None]
        return (~seen)[None, None]


def tracing(model: Any, sounds: Sounds) -> Tracing:
    """Describe how to trace the encoder of `model`.

    Args:
        model: From `loader.load_meta`.
        sounds: As a recipe says of them.
    """
    module = Sound(model, sounds).eval()
    merged = module.tower.subsample_conv_projection
    bins = _MERGED * merged.input_proj_linear.in_features // merged.layer1.conv.out_channels
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
        output_names=["audio_embeds"],
        then=name_rows,
        checked_later=True,
    )

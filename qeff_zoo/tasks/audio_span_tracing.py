# SPDX-License-Identifier: Apache-2.0
"""A sound of any length through an encoder that merges frames to rows, and reads spans of those: program `audio`.

IN   input_features (groups, frames, bins) f32     of the whole sound, by the frames that become a row; the last is
                                                   filled up
     attention_mask (groups, frames) i64           1 is sound, 0 is what fills it up
     window_index (spans, width) i64               which rows a span has; -1 where there is none, -2 where the encoder
                                                   hears nothing in its place, as behind the end of a sound of several
OUT  audio_embeds (audio_rows, hidden)             a row for each of every span
     [beside_pictures.audio_embeds (audio_rows, hidden)]   the same for prompts that have pictures, too, of a model that
                                                   may be given both, since it projects a sound otherwise there

The forward that is traced is transformers' own, of an embedding that puts rows in place of tokens itself. Where it
would cut a sound, which takes sizes that a graph does not know, each span is a row of a batch that it is told. What
fills up is zero for each of its convolutions, as what lies behind the end of a sound is.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.export.concrete import Concrete
from qeff_zoo.export.transforms.modules import with_config
from qeff_zoo.recipe_media import ImageEncoder
from qeff_zoo.runtime.audio_encoder import BESIDE
from qeff_zoo.tasks.audio_block_tracing import FEATURES, REAL, WINDOWS, name_rows
from qeff_zoo.tasks.forward_patches import swapped
from qeff_zoo.tasks.patch_tracing import rows_of
from qeff_zoo.tasks.tile_tracing import PutRecorder

from . import Tracing

_GROUPS, _SPANS, _WIDTH = 24, 3, 5  # of the example
_MOST = 1 << 16  # of the first two
#: What the embedding is told where a prompt has pictures, too, as the model's own forward tells it.
_PROJECTION = {"audio_projection_mode": "vision"}


class Sound(nn.Module):
    """The embedding of a sound up to where it puts rows in place of tokens.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        projections: What the embedding is told, for each result.
    """

    def __init__(self, model: Any, projections: Sequence[Mapping[str, str]]) -> None:
        super().__init__()
        self.projections = projections
        self.model, encoder = model, with_config(model, model.config.audio_config)
        maker = next(one for one in model.modules() if getattr(one, "encoder", None) is encoder)
        self.parts = [maker, encoder]
        convolutions = [one for one in encoder.modules() if isinstance(one, nn.Conv2d)]
        self.merges = [one for one in convolutions if one.stride != (1, 1)]

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the rows of features of all spans, in each projection."""
        features, mask, index = given
        (maker, encoder), rows = self.parts, index.shape[0] * index.shape[1]
        embed, run = encoder.embed, encoder.forward

        def in_spans(states: Tensor, _: Any) -> tuple[Tensor, Tensor, None]:
            found, _ = embed(states, None)
            there = (index >= 0)[..., None]
            unheard = torch.where(index == -1, torch.finfo(found.dtype).min, 0.0)
            picked = found[0][index.clamp(min=0)] * there.to(found.dtype)
            return picked, unheard.to(found.dtype)[:, None], None

        heard = list[Tensor]()

        def whole(states: Tensor, _: Any) -> Tensor:
            if not heard:
                found = run(states, None)
                heard.append(found.reshape(1, rows, found.shape[2]))
            return heard[0]

        changes = [
            *(
                (one, "forward", _within(one, mask[:, :: 2**at]))
                for at, one in enumerate(self.merges)
            ),
            (encoder, "forward_embeddings", in_spans),
            (encoder, "forward", whole),
        ]
        put, tokens = (
            PutRecorder(),
            torch.full((1, 2), self.model.config.audio_config.audio_token_id),
        )
        sound, found = features.flatten(0, 1)[None], list[Tensor]()
        with swapped(*changes), Concrete(), put:
            for projection in self.projections:
                maker(
                    input_ids=tokens,
                    inputs_embeds=torch.zeros(*tokens.shape, self.model.config.hidden_size),
                    audio_input_features=sound,
                    audio_embed_sizes=[rows],
                    **projection,
                )
                found.append(rows_of(put.features))
        return tuple(found)


def _within(merge: nn.Module, mask: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a convolution that finds nothing where there is no sound."""
    plain, real = merge.forward, mask.reshape(1, 1, -1, 1)
    return lambda states: plain(states * real.to(states.dtype))


def tracing(model: Any, audio: Any, images: ImageEncoder | None) -> Tracing:
    """Describe how to trace the encoder of `model`.

    Args:
        model: From `loader.load_meta`.
        audio: Declaration of the recipe.
        images: The same of pictures that prompts may have, too.
    """
    config, name = model.config.audio_config, "audio_embeds"
    projections: dict[str, Mapping[str, str]] = {name: {}}
    if images:
        projections[f"{BESIDE}{name}"] = _PROJECTION
    given = [
        torch.zeros(_GROUPS, config.time_reduction, config.input_size),
        torch.ones(_GROUPS, config.time_reduction, dtype=torch.long),
        torch.zeros(_SPANS, _WIDTH, dtype=torch.long),
    ]
    groups, spans = (Dim(name, min=2, max=_MOST) for name in ("groups", "spans"))
    width = Dim("width", min=2, max=audio.span)
    return Tracing(
        module=Sound(model, [*projections.values()]).eval(),
        inputs={"given": given},
        dynamic_shapes={"given": [{0: groups}, {0: groups}, {0: spans, 1: width}]},
        input_names=[FEATURES, REAL, WINDOWS],
        output_names=[*projections],
        then=name_rows,
        checked_later=True,
    )

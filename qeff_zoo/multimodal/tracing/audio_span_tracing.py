# SPDX-License-Identifier: Apache-2.0
"""Audio of any length through an encoder that merges frames to rows, and reads spans of rows: program `audio`.

IN   input_features (groups, frames, bins) f32     the whole recording, by the frames that become a row; the last is
                                                   padded
     attention_mask (groups, frames) i64           1 is audio, 0 is padding
     window_index (spans, width) i64               rows of a span; -1 for none, -2 for a row that is masked in the
                                                   encoder, as after the end of the shorter of several recordings
OUT  audio_embeds (audio_rows, hidden)             the rows of every span
     [beside_pictures.audio_embeds (audio_rows, hidden)]   the same for prompts with images, too, for a model that
                                                   takes both and projects audio otherwise in that case

The traced forward is transformers' own, of an embedding module that puts rows in place of tokens itself. If it would
cut the audio, which needs sizes that a graph cannot have, each span is a row of a batch. Padding is zero for each of
its convolutions, like the space after the end of unpadded audio.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.export.concrete import Concrete
from qeff_zoo.export.transforms.modules import with_config
from qeff_zoo.multimodal.encoding.audio_encoder import BESIDE
from qeff_zoo.multimodal.tracing.audio_block_tracing import FEATURES, REAL, WINDOWS, name_rows
from qeff_zoo.multimodal.tracing.forward_patches import swapped
from qeff_zoo.multimodal.tracing.patch_tracing import rows_of
from qeff_zoo.multimodal.tracing.tile_tracing import PutRecorder
from qeff_zoo.recipe_media import ImageEncoder

_GROUPS, _SPANS, _WIDTH = 24, 3, 5  # of the example
_MOST = 1 << 16  # of the first two
#: Argument of the embedding module for prompts with images, as in the model's own forward.
_PROJECTION = {"audio_projection_mode": "vision"}


class AudioForward(nn.Module):
    """The embedding module of audio, up to the merge with tokens.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        projections: Arguments of the embedding module for each result.
    """

    def __init__(self, model: Any, projections: Sequence[Mapping[str, str]]) -> None:
        super().__init__()
        self.projections = projections
        self.model, encoder = model, with_config(model, model.config.audio_config)
        maker = next(
            module for module in model.modules() if getattr(module, "encoder", None) is encoder
        )
        self.parts = [maker, encoder]
        convolutions = [module for module in encoder.modules() if isinstance(module, nn.Conv2d)]
        self.merges = [convolution for convolution in convolutions if convolution.stride != (1, 1)]

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows of all spans, in each projection."""
        features, mask, index = given
        (maker, encoder), rows = self.parts, index.shape[0] * index.shape[1]
        embed, run = encoder.embed, encoder.forward

        def in_spans(states: Tensor, _: Any) -> tuple[Tensor, Tensor, None]:
            embedded, _ = embed(states, None)
            there = (index >= 0)[..., None]
            masked = torch.where(index == -1, torch.finfo(embedded.dtype).min, 0.0)
            picked = embedded[0][index.clamp(min=0)] * there.to(embedded.dtype)
            return picked, masked.to(embedded.dtype)[:, None], None

        computed = list[Tensor]()

        def whole(states: Tensor, _: Any) -> Tensor:
            if not computed:
                output = run(states, None)
                computed.append(output.reshape(1, rows, output.shape[2]))
            return computed[0]

        changes = [
            *(
                (merge, "forward", _within(merge, mask[:, :: 2**at]))
                for at, merge in enumerate(self.merges)
            ),
            (encoder, "forward_embeddings", in_spans),
            (encoder, "forward", whole),
        ]
        put, tokens = (
            PutRecorder(),
            torch.full((1, 2), self.model.config.audio_config.audio_token_id),
        )
        audio, projected = features.flatten(0, 1)[None], list[Tensor]()
        with swapped(*changes), Concrete(), put:
            for projection in self.projections:
                maker(
                    input_ids=tokens,
                    inputs_embeds=torch.zeros(*tokens.shape, self.model.config.hidden_size),
                    audio_input_features=audio,
                    audio_embed_sizes=[rows],
                    **projection,
                )
                projected.append(rows_of(put.features))
        return tuple(projected)


def _within(merge: nn.Module, mask: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the forward of a convolution whose input is zero for padding."""
    plain, real = merge.forward, mask.reshape(1, 1, -1, 1)
    return lambda states: plain(states * real.to(states.dtype))


def tracing(model: Any, audio: Any, images: ImageEncoder | None) -> Tracing:
    """Describe how to trace the encoder of `model`.

    Args:
        model: Model from `loader.load_meta`.
        audio: Audio input of the recipe.
        images: Image input of the recipe, if prompts may have both.
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
        module=AudioForward(model, [*projections.values()]).eval(),
        inputs={"given": given},
        dynamic_shapes={"given": [{0: groups}, {0: groups}, {0: spans, 1: width}]},
        input_names=[FEATURES, REAL, WINDOWS],
        output_names=[*projections],
        then=name_rows,
        checked_later=True,
    )

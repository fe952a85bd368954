# SPDX-License-Identifier: Apache-2.0
"""One window of a sound through the encoder of a model that reads sounds and text, as it is traced: program `audio`.

IN   input_features (1, bins, frames) f32               of a window, as many frames as the encoder has positions for
     [<mask> (1, frames) i64]                           1 is sound, 0 is what fills it up, of models that ask; named
                                                        after the forward's argument
OUT  audio_embeds (rows, hidden)                        a row for each placeholder token
     [lengths (1,) i64]                                 with a mask: how many of those rows are of the sound

The forward that is traced is transformers' own, up to where it would merge the features into the text. An encoder that
reads a sound of any length at once is in `qeff_zoo.tasks.blocks` and `qeff_zoo.tasks.spans`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.concrete import Concrete
from qeff_zoo.recipe import Sounds
from qeff_zoo.tasks import Tracing, blocks, spans
from qeff_zoo.tasks.patches import rows_of
from qeff_zoo.tasks.vision import Noted, Unread, swapped

FEATURES = "input_features"
#: Configs' names for the number of positions of an encoder.
_POSITIONS = ("max_source_positions", "max_position_embeddings")


class _Heard(Noted):
    """Keeps all rows where a forward would choose those that are of the sound, and notes which."""

    real: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor):
            values, where = args
            if where.dtype is torch.bool and where.shape == values.shape[:2] != values.shape:
                self.real = where
                return values
        return super().__torch_function__(func, types, args, kwargs)


class Window(nn.Module):
    """The forward up to the merge, of a window of a sound.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        sounds: As a recipe says of them.
    """

    def __init__(self, model: Any, sounds: Sounds) -> None:
        super().__init__()
        self.model, self.names = model, [FEATURES, *([sounds.mask] if sounds.mask else [])]
        self.token = getattr(model.config, sounds.token)

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the rows of features, and perhaps how many of them count."""
        heard = _Heard()
        skip = (
            self.model.get_decoder(),
            "forward",
            lambda *_, inputs_embeds=None, **__: Unread(inputs_embeds),
        )
        tokens = torch.full((1, 2), self.token)
        with swapped(skip), Concrete(), heard:
            self.model(input_ids=tokens, **dict(zip(self.names, given, strict=True)))
        rows = rows_of(heard.features)
        if heard.real is None:
            return (rows,)
        # Frames that count may be merged to rows only after they were chosen.
        return rows, heard.real.sum(1) * rows.shape[0] // heard.real.shape[1]


def tracing(model: Any, *, sounds: Mapping[str, Any]) -> Tracing:
    """Describe how to trace the encoder of `model`.

    Args:
        model: From `loader.load_meta`.
        sounds: As a recipe says of them.
    """
    told = Sounds(**sounds)
    if told.blocks:
        return blocks.tracing(model, told)
    if told.span:
        return spans.tracing(model, told)
    bins, frames = window_of(model)
    given = [torch.zeros(1, bins, frames)]
    if told.mask:
        given.append(torch.ones(1, frames, dtype=torch.long))
    module = Window(model, told).eval()
    return Tracing(
        module=module,
        inputs={"given": given},
        dynamic_shapes={"given": [{} for _ in given]},
        input_names=module.names,
        output_names=["audio_embeds", *(["lengths"] if told.mask else [])],
    )


def window_of(model: Any) -> tuple[int, int]:
    """Return bins and frames of a window: as many as become the positions that the encoder has."""
    audio = model.config.audio_config
    frames = next(getattr(audio, name) for name in _POSITIONS if hasattr(audio, name))
    first, *others = (
        one for one in model.base_model.audio_tower.modules() if isinstance(one, nn.Conv1d)
    )
    for one in (first, *others):
        frames *= one.stride[0]
    return first.in_channels, frames

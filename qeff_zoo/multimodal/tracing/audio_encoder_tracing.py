# SPDX-License-Identifier: Apache-2.0
"""One window of audio through the encoder of an audio-language model, for tracing: program `audio`.

IN   input_features (1, bins, frames) f32               a window with as many frames as the encoder has positions;
                                                        or (blocks, 1, samples), audio of any length, for models
                                                        without an encoder that make a row of each frame of samples
     [<mask> (1, frames) i64]                           1 is audio, 0 is padding, if the model takes a mask; named
                                                        after the forward's argument
     [window_ids (1,) i64]                              number of the window in its recording, if the model has row
                                                        times, or encodes short audio otherwise than the last piece
                                                        of longer audio
OUT  audio_embeds (rows, hidden)                        a row for each placeholder token; (audio_rows, hidden)
     [lengths (1,) i64]                                 with a mask: how many of those rows are of the audio

The traced forward is transformers' own, up to where it would merge the features into the text. Encoders that read audio
of any length at once are in `audio_block_tracing`, `audio_span_tracing` and `audio_chunk_tracing` of this folder.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._python_dispatch import _disable_current_modes

from qeff_zoo.contract import Tracing
from qeff_zoo.export.concrete import Concrete
from qeff_zoo.multimodal.tracing import audio_block_tracing
from qeff_zoo.multimodal.tracing.forward_patches import FeatureRecorder, swapped, unread
from qeff_zoo.multimodal.tracing.patch_tracing import Rows, rows_of

FEATURES, NUMBER = "input_features", "window_ids"
_FRAMES = 3  # of the example
#: Configs' names for the number of positions of an encoder.
_POSITIONS = ("max_source_positions", "max_position_embeddings")
#: Functions that compute the window ends of a sequence without padding, and the length of its longest window.
_ENDS, _MOST = "get_audio_cu_seqlens", "get_max_seqlen"
#: Function that cuts audio without padding into pieces.
_CUTS = "chunk_and_pad_features"


class _AudioRecorder(FeatureRecorder):
    """Keeps all rows if a forward would select those of the audio, and records the selection."""

    real: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor):
            values, where = args
            if where.dtype is torch.bool and where.shape == values.shape[:2] != values.shape:
                self.real = where
                return values
        if func is Tensor.nonzero and args[0].dtype is torch.bool and args[0].dim() == 1:
            self.real = args[0][None]
            return torch.arange(args[0].shape[0])[:, None]
        if func is Tensor.to and args[1:] == (torch.float64,):  # which devices do not have
            return args[0]
        return super().__torch_function__(func, types, args, kwargs)


class Window(nn.Module):
    """The forward of an audio window, up to the merge.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        audio: Audio input of the recipe.
    """

    def __init__(self, model: Any, audio: Any) -> None:
        super().__init__()
        self.model, self.audio = model, audio
        self.names = [FEATURES, *filter(None, [audio.mask, NUMBER if audio.times else ""])]
        self.token = getattr(model.config, audio.token)

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows, and for some models the number of rows of the audio."""
        recorder, arguments = _AudioRecorder(), dict(zip(self.names, given, strict=True))
        changes = [unread(self.model), *self._when(arguments)]
        tokens, module = torch.full((1, 2), self.token), sys.modules[type(self.model).__module__]
        packed = {_ENDS: _ends_of(module), _MOST: lambda *_, **__: 1} if self.audio.packed else {}
        with swapped(*changes), mock.patch.dict(vars(module), packed), Concrete(), recorder:
            self.model(input_ids=tokens, **arguments)
        rows = rows_of(recorder.features)
        if recorder.real is None:
            return (rows,)
        # Frames of the audio may be merged to rows only after their selection.
        return rows, recorder.real.sum(1) * rows.shape[0] // recorder.real.shape[1]

    def _when(self, arguments: dict[str, Tensor]) -> list[tuple[Any, str, Any]]:
        """Let the model compute the times of one window's rows from those of all windows of the longest audio."""
        if (number := arguments.pop(NUMBER, None)) is None:
            return []
        base, windows = self.model.base_model, self.audio.windows
        times = getattr(base, self.audio.times)

        def when(_: Tensor, __: Tensor, rows: int) -> Tensor:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                tokens = torch.full((1, windows * rows), self.token)
                positions: Tensor = times(tokens, torch.full((windows,), rows), rows)
            return positions.index_select(0, number)

        return [(base, self.audio.times, when)]


def _made_of_samples(model: Any, frames: Tensor) -> Any:
    return model.base_model.get_audio_features(frames).pooler_output


class Packed(Window):
    """`Window` for a forward that packs audio without its padding, and cuts it: here all is audio, and cut already.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        audio: Audio input of the recipe.
    """

    def __init__(self, model: Any, audio: Any) -> None:
        super().__init__(model, audio)
        self.names = [FEATURES, audio.mask, NUMBER]
        self.each = 2 * model.config.audio_config.n_window

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the feature rows, and the number of rows of the audio."""
        features, mask, number = given
        noted = FeatureRecorder()
        alone = (mask.sum(1) < self.each) & (number == 0)
        ends = _ends_in(self.model.base_model.audio_tower, mask.sum(1), alone)
        with swapped(unread(self.model), *ends), Concrete(), noted:
            arguments, rows = self._arguments(features, mask)
            self.model(input_ids=torch.full((1, 2), self.token), **arguments)
        return rows_of(noted.features), rows

    def _arguments(self, features: Tensor, mask: Tensor) -> tuple[dict[str, Any], Tensor]:
        """Return all arguments of the forward for a window, and the number of rows of the audio."""
        each = self.each
        (states, rows), (all_of_each, _) = map(self._counts, (mask.sum(1), torch.tensor([each])))
        cut = (features * mask[:, None].to(features.dtype))[0].unflatten(1, (-1, each))
        count = int(all_of_each) * cut.shape[1]
        known = {
            "padded_feature": cut.transpose(0, 1),  # (pieces, bins, frames)
            "chunk_lengths": mask.reshape(-1, each).sum(1),
            "valid_indices": torch.arange(count),
            "pool_indices": torch.arange(0, count, 2),
            "cu_seqlens": torch.cat([torch.zeros_like(states), states, torch.tensor([count])]),
            "max_seqlen": 1,
        }
        whole = {FEATURES: features, self.audio.mask: torch.ones(mask.shape, dtype=torch.long)}
        return {**whole, **{f"audio_{name}": value for name, value in known.items()}}, rows

    def _counts(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of encoder states and of feature rows for numbers of frames, by transformers' own rule."""
        rule, model = "_get_feat_extract_output_lengths", self.model
        if own := getattr(model.base_model.audio_tower, rule, None):
            states, rows = own(frames)
            return states, rows
        half = model.config.audio_config.n_window
        rows = getattr(sys.modules[type(model).__module__], rule)(frames, half)
        return rows, rows


def _ends_in(encoder: Any, frames: Tensor, alone: Tensor) -> list[tuple[Any, str, Any]]:
    """Zero the input of convolutions after the end of audio that is shorter than a piece, if it is unpadded.

    Args:
        encoder: Encoder with consecutive convolutions.
        frames: Number of audio frames, (1,).
        alone: Whether the audio is such a piece, (1,).

    Returns:
        Changes, see `swapped`.
    """

    def within(conv: Any, count: Tensor, x: Tensor) -> Tensor:
        behind = torch.arange(x.shape[-1]) >= count
        output: Tensor = type(conv).forward(conv, torch.where(behind & alone, 0.0, x))
        return output

    changes = []
    for conv in (
        module for module in encoder.modules() if isinstance(module, nn.Conv1d | nn.Conv2d)
    ):
        changes.append((conv, "forward", partial(within, conv, frames)))
        frames = (frames - 1) // conv.stride[-1] + 1
    return changes


def _ends_of(module: Any) -> Any:
    """Return a function for the ends of a window's rows, and of its padding, by transformers' own rule.

    Args:
        module: Python module of the model.
    """

    def ends(pieces: Tensor, frames: Tensor, _: int, half: int, **__: Any) -> Tensor:
        whole = torch.tensor([2 * half * pieces.shape[0]])
        count = module._get_feat_extract_output_lengths
        return torch.cat([torch.zeros_like(whole), count(frames, half), count(whole, half)])

    return ends


def tracing_of_samples(model: Any, audio: Any) -> Tracing:
    """Describe how to trace the projection of a model that makes a row of each frame of samples.

    Args:
        model: Model from `loader.load_meta`.
        audio: Audio input of the recipe.
    """
    samples = getattr(model.config.audio_config, audio.chunk)
    return Tracing(
        module=Rows(model, _made_of_samples).eval(),
        inputs={"given": [torch.zeros(_FRAMES, 1, samples)]},
        dynamic_shapes={"given": [{0: Dim("blocks", min=2, max=audio_block_tracing.MOST)}]},
        input_names=[FEATURES],
        output_names=["audio_embeds"],
        then=audio_block_tracing.name_rows,
    )


def tracing(model: Any, audio: Any) -> Tracing:
    """Describe how to trace the encoder of `model`.

    Args:
        model: Model from `loader.load_meta`.
        audio: Audio input of the recipe.
    """
    bins, frames = window_of(model, audio)
    given = [torch.zeros(1, bins, frames)]
    if audio.mask:
        given.append(torch.ones(1, frames, dtype=torch.long))
    packs = hasattr(sys.modules[type(model).__module__], _CUTS)
    if audio.times or packs:
        given.append(torch.zeros(1, dtype=torch.long))
    module = (Packed if packs else Window)(model, audio).eval()
    return Tracing(
        module=module,
        inputs={"given": given},
        dynamic_shapes={"given": [{} for _ in given]},
        input_names=module.names,
        output_names=["audio_embeds", *(["lengths"] if audio.mask else [])],
    )


def window_of(model: Any, audio: Any) -> tuple[int, int]:
    """Return the numbers of bins and frames of a window, by the config or the positions of the encoder."""
    config = model.config.audio_config
    if frames := audio.frames(config):
        return config.num_mel_bins, frames
    frames = next(getattr(config, name) for name in _POSITIONS if hasattr(config, name))
    first, *others = (
        module for module in model.base_model.audio_tower.modules() if isinstance(module, nn.Conv1d)
    )
    for one in (first, *others):
        frames *= one.stride[0]
    return first.in_channels, frames

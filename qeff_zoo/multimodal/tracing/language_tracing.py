# SPDX-License-Identifier: Apache-2.0
"""One call of a language model with images or audio in its text, for tracing: program `language`.

The inputs are those of `qeff_zoo.export.tracing.decoder_tracing`, and after the states

IN   image_index (batch_size, seq_len) i64      feature row of each token in the next input, -1 for text
     image_embeds (image_rows, hidden) f32      output of program `vision`: all rows that the call needs, or more
     [deepstack.i (image_rows, hidden) f32]     the same, added to the states after layer i; or, if no tokens are
                                                replaced, image_embeds and these are added before listed layers
     [of_context.token_type_ids (batch_size, ctx_len) i64]   1 for image tokens of the context, for models with
                                                bidirectional attention among them; named after the argument
     audio_index, audio_embeds (audio_rows, hidden)   in place of the first two for models of audio alone: output of
                                                program `audio`; models of both have its rows among the
                                                others
     [rope_positions (3, batch_size, seq_len) i64]   time, row and column of each token, for models with such a RoPE

The forward is transformers' own. Instead of scattering features over placeholder tokens, each token takes the row of
its index; so a prompt may be cut anywhere, and images may be in any batch row. If a forward does not take computed
features, or also replaces other tokens by rows, the rows replace embeddings before it; if the whole model requires
pixels in every call, the language model within it is traced.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.export import Dim
from torch.overrides import TorchFunctionMode

from qeff_zoo.contract import Tracing
from qeff_zoo.export.tracing import decoder_tracing
from qeff_zoo.export.transforms.modules import reader_of_tokens
from qeff_zoo.export.transforms.retained_state import RetainedState
from qeff_zoo.graph.states import State, mark_tokens
from qeff_zoo.multimodal.tracing.forward_patches import MERGES, alike, swapped
from qeff_zoo.multimodal.tracing.patch_tracing import deepstack_layers
from qeff_zoo.multimodal.tracing.vision_tracing import layers_of
from qeff_zoo.recipe_media import AudioEncoder, ImageEncoder, Media

_ROWS = 5  # of the example
#: Prefix of the input that marks image tokens of the context; the forward's argument follows.
TYPES = "of_context."
#: Argument of the forward for computed features.
_TAKES = "mm_encoder_outputs"
#: Argument of the forward for tokens that are routed to vision experts.
_ROUTES = "moe_mm_token_type_ids"
_KINDS = "image", "video"
#: Module between a vision encoder and a language model, which some forwards call where they merge features.
_PROJECTOR = "multi_modal_projector"
#: Function that makes masks, and its argument for tokens with bidirectional attention.
_MASKS, _BLOCKS = "create_masks_for_generate", "block_sequence_ids"
_SUMS = Tensor.__add__, Tensor.add, torch.add
_FILLS = Tensor.masked_fill, torch.masked_fill


class _Merged(TorchFunctionMode):
    """Replaces the embeddings of tokens by their feature rows, or adds the rows to them."""

    def __init__(self, index: Tensor, features: Tensor) -> None:
        super().__init__()
        self.index, self.features = index, features
        #: Embeddings that a forward has selected from tokens with rows, to which it may add the rows.
        self.taken: Any = None
        self.adds = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in MERGES:
            added, self.adds = self.adds, False
            rows = args[2].reshape(-1, args[0].shape[-1]) if added else self.features
            return self.put(args[0], rows, add=added)
        if func is Tensor.__getitem__ and _is_mask(args[1], args[0]):
            self.taken = args[0]
            return args[0]  # only its size is used, or features are added to it
        if func in _SUMS and args[0] is self.taken:
            self.adds = True
            return args[1]
        if func in _FILLS and alike(args[1].shape, (*self.index.shape, 1)):  # of tokens
            return torch.where((self.index >= 0)[..., None], args[2], args[0])
        return func(*args, **(kwargs or {}))

    def put(self, embeds: Tensor, rows: Tensor, *, add: bool = False) -> Tensor:
        """Replace embeddings by feature rows, or add the rows."""
        picked = rows[self.index.clamp(min=0)].to(embeds.dtype)
        return torch.where((self.index >= 0)[..., None], picked + embeds if add else picked, embeds)


class _Either(list[Tensor]):
    """Features that act as a tensor, (images, rows, width), and as a list with one tensor per image."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self[0][None], name)


class _Read(SimpleNamespace):
    """Output of a vision encoder for a forward; attributes that do not exist are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _is_mask(index: Any, values: Tensor) -> bool:
    """Return whether an index is a mask of tokens, or of elements of their states."""
    chosen = isinstance(index, Tensor) and index.dtype is torch.bool and index.dim() > 1
    return chosen and alike(index.shape, values.shape[: index.dim()])


class Step(decoder_tracing.Step):
    """One call of a language model with images or audio in its text."""

    def __init__(self, *args: Any, media: Media, **named: Any) -> None:
        super().__init__(*args, **named)
        self.media, self.modality = media, _modality(media)
        self.kind = getattr(media, "taken_as", "") or self.modality

    def call(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        state: RetainedState,
        more: Sequence[Tensor],
    ) -> Any:
        """Run transformers' forward with computed features."""
        named = dict(zip(self.names, more, strict=True))
        if "rope_positions" in named:
            position_ids = torch.cat([position_ids[None], named["rope_positions"]])
        features = named[f"{self.modality}_embeds"]
        deep: list[Any] = [named[name] for name in named if name.startswith("deepstack.")]
        deep = [_Either([rows]) for rows in ([features, *deep] if self.media.added else deep)]
        if self.media.added:
            deep = [*zip(layers_of(self.media, self.model.config), deep, strict=True)]
        output = _Read(
            pooler_output=_Either([features]),
            deepstack_features=deep,
            last_hidden_state=features[None],
        )
        turned = (
            self.media.whole == "prompt"
        )  # 0 for tokens with bidirectional attention, 1 for others
        types = {
            name.removeprefix(TYPES): 1 - value if turned else value
            for name, value in named.items()
            if name.startswith(TYPES)
        }
        merged = _Merged(named[f"{self.modality}_index"], features)

        def add(hidden: Tensor, _: Any, rows: Tensor) -> Tensor:
            return merged.put(hidden, rows, add=True)

        adders = [
            (module, "_deepstack_process", add)
            for module in self.model.modules()
            if hasattr(type(module), "_deepstack_process")
        ]
        given: dict[str, Any] = {_TAKES: {self.kind: output}}
        swaps: list[tuple[Any, str, Any]] = [*adders]
        model = reader_of_tokens(self.model)
        arguments = inspect.signature(model.forward).parameters
        if _ROUTES in arguments:
            types[_ROUTES] = _of_images(self.model.config, input_ids)
        if projector := getattr(model, _PROJECTOR, None):  # features are its outputs
            swaps.append((projector, "forward", lambda rows, *_, **__: rows))
        if _TAKES not in arguments or self.media.around or self.media.embedded:
            given, embed = {}, model.get_input_embeddings()
            plain = embed.forward
            swaps.append((embed, "forward", lambda tokens: merged.put(plain(tokens), features)))
        with merged, swapped(*swaps), self._one_way():
            return model(
                input_ids=input_ids,
                position_ids=position_ids,
                past_key_values=state,
                use_cache=True,
                **given,
                **types,
            )

    def _one_way(self) -> Any:
        """Remove bidirectional attention among audio tokens, which a forward may set for all multimodal tokens."""
        module = vars(sys.modules[type(self.model).__module__])
        masks = module.get(_MASKS) if isinstance(self.media, AudioEncoder) else None
        changed = {_MASKS: lambda **named: masks(**{**named, _BLOCKS: None})} if masks else {}
        return mock.patch.dict(module, changed)


def _probe(model: Any) -> list[State]:
    """Return the states of the module that takes tokens alone."""
    return decoder_tracing.probe(reader_of_tokens(model))


def _of_images(config: Any, input_ids: Tensor) -> Tensor:
    """Return a mask of image tokens, and of the tokens that begin and end images."""
    names = (f"{kind}{part}_token_id" for kind in _KINDS for part in ("", "_start", "_end"))
    known = torch.tensor([getattr(config, name) for name in names])
    return (input_ids[..., None] == known).any(-1)


def _modality(media: Media) -> str:
    """Return the prefix of the names of features and of their rows."""
    return "audio" if isinstance(media, AudioEncoder) else "image"


def tracing(
    model: Any,
    *,
    images: ImageEncoder | None = None,
    audio: AudioEncoder | None = None,
    step: Callable[..., Step] = Step,
    **variant: Any,
) -> Tracing:
    """Describe how to trace the language model of `model`.

    Args:
        model: Model from `loader.load_meta`, possibly with fewer layers than its config has.
        images: Image input of the recipe; None for a model of audio alone.
        audio: Audio input of the recipe; None for a model of images alone.
        step: Class of the traced module.
        **variant: Arguments of `qeff_zoo.export.tracing.decoder_tracing.tracing`.
    """
    config = model.config
    every = [*([images] if images else []), *([audio] if audio else [])]
    media: Media = every[0]
    modality = _modality(media)
    features = torch.zeros(_ROWS, config.get_text_config().hidden_size)
    rows = {0: Dim(f"{modality}_rows", min=2)}
    deep = layers_of(media, config)[1:] if media.added else deepstack_layers(media, config)

    def more(batch: Any, seq: Any, ctx: Any, position_ids: Tensor) -> dict[str, tuple[Tensor, Any]]:
        inputs = {
            f"{modality}_index": (torch.full_like(position_ids, -1), {0: batch, 1: seq}),
            f"{modality}_embeds": (features, rows),
            **{f"deepstack.{index}": (features.clone(), rows) for index in range(len(deep))},
        }
        if media.axes > 1:
            inputs["rope_positions"] = (
                position_ids.expand(media.axes, -1, -1).contiguous(),
                {1: batch, 2: seq},
            )
        if media.whole:
            types = torch.zeros(len(position_ids), decoder_tracing.CTX, dtype=torch.long)
            inputs[f"{TYPES}{media.types}"] = types, {0: batch, 1: ctx}
        return inputs

    step = partial(step, media=media)
    traced = decoder_tracing.tracing(model, step=step, more=more, probe=_probe, **variant)
    around = getattr(config, media.around) if media.around else ()
    tokens = [*(attrgetter(one.token)(config) for one in every), *around]
    index = f"{modality}_index"
    return replace(traced, then=partial(_finish, then=traced.then, index=index, tokens=tokens))


def _finish(
    graph: Any, *, then: Callable[[Any], object] | None, index: str, tokens: Sequence[int]
) -> None:
    """Mark the input of a portable graph that has the feature rows of tokens."""
    if then:
        then(graph)
    for value in graph.graph.inputs:
        if value.name == index:
            mark_tokens(value, tokens)

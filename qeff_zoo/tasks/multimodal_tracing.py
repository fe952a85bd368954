# SPDX-License-Identifier: Apache-2.0
"""One call of a language model whose text has pictures or sounds in it, as it is traced: program `language`.

As in `qeff_zoo.tasks.text_generation.decoder_tracing`, and after the states

IN   image_index (batch_size, seq_len) i64      of each token its row of the features below, -1 for text
     image_embeds (image_rows, hidden) f32      what program `vision` made of pictures: all that the call needs, or more
     [deepstack.i (image_rows, hidden) f32]     the same, added to the states after layer i; or, where none take a
                                                token's place, image_embeds and these are added before listed layers
     [of_context.token_type_ids (batch_size, ctx_len) i64]   1 where the context has a token of a picture, of models
                                                in which those see one another; named after the forward's argument
     audio_index, audio_embeds (audio_rows, hidden)   of models that read sounds alone, in place of the first two: what
                                                program `audio` made; of those that read both, its rows are among the
                                                others
     [rope_positions (3, batch_size, seq_len) i64]   time, row and column of each token, of models with such a RoPE

The forward is transformers' own. Where it would scatter features over placeholder tokens, each token takes the row that
it is told; so a prompt may be cut anywhere, and pictures may be in any of the rows of a batch. A forward that does not
take features that are there already, or puts rows in place of other tokens, too, has them in place of its embeddings;
so has the language model within, where the whole asks for pixels in every call.
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

from qeff_zoo.export.transforms.modules import reader_of_tokens
from qeff_zoo.export.transforms.retained_state import RetainedState
from qeff_zoo.graph.states import State, mark_tokens
from qeff_zoo.recipe_media import AudioEncoder, ImageEncoder, Media
from qeff_zoo.tasks.forward_patches import MERGES, alike, swapped
from qeff_zoo.tasks.vision_tracing import layers_of

from . import Tracing
from .text_generation import decoder_tracing

_ROWS = 5  # of the example
#: Begins the name of what tells which tokens of the context are a picture's; ends with the forward's argument.
TYPES = "of_context."
#: The forward's argument for features that are there already.
_TAKES = "mm_encoder_outputs"
#: Its argument for tokens that have experts of pictures, of models with such experts.
_ROUTES = "moe_mm_token_type_ids"
_KINDS = "image", "video"
#: The module between a vision tower and a language model, which some forwards call where they merge features.
_PROJECTOR = "multi_modal_projector"
#: What makes masks, and its argument for tokens that see one another.
_MASKS, _BLOCKS = "create_masks_for_generate", "block_sequence_ids"
_SUMS = Tensor.__add__, Tensor.add, torch.add
_FILLS = Tensor.masked_fill, torch.masked_fill


class _Merged(TorchFunctionMode):
    """Gives tokens the rows of features that they are told, in place of what they have, or added onto that."""

    def __init__(self, index: Tensor, features: Tensor) -> None:
        super().__init__()
        self.index, self.features = index, features
        #: What a forward has taken from tokens that have rows, to which it may add those.
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
            return args[0]  # only its size is asked for, or features are added to it
        if func in _SUMS and args[0] is self.taken:
            self.adds = True
            return args[1]
        if func in _FILLS and alike(args[1].shape, (*self.index.shape, 1)):  # of tokens
            return torch.where((self.index >= 0)[..., None], args[2], args[0])
        return func(*args, **(kwargs or {}))

    def put(self, embeds: Tensor, rows: Tensor, *, add: bool = False) -> Tensor:
        """Replace embeddings by rows of features, or add those."""
        picked = rows[self.index.clamp(min=0)].to(embeds.dtype)
        return torch.where((self.index >= 0)[..., None], picked + embeds if add else picked, embeds)


class _Either(list[Tensor]):
    """Features where some forwards expect a tensor, (pictures, rows, width), others a list of one for each."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self[0][None], name)


class _Read(SimpleNamespace):
    """What a tower has made, of which a forward takes what it needs: whatever else it asks for is not there."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _is_mask(index: Any, values: Tensor) -> bool:
    """Tell whether tokens are chosen, or numbers of their states."""
    chosen = isinstance(index, Tensor) and index.dtype is torch.bool and index.dim() > 1
    return chosen and alike(index.shape, values.shape[: index.dim()])


class Step(decoder_tracing.Step):
    """One call of a language model whose text has pictures or sounds in it."""

    def __init__(self, *args: Any, media: Media, **told: Any) -> None:
        super().__init__(*args, **told)
        self.media, self.modality = media, _modality(media)
        self.kind = getattr(media, "taken_as", "") or self.modality

    def call(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        state: RetainedState,
        more: Sequence[Tensor],
    ) -> Any:
        """Run transformers' forward with features that are there already."""
        told = dict(zip(self.names, more, strict=True))
        if "rope_positions" in told:
            position_ids = torch.cat([position_ids[None], told["rope_positions"]])
        features = told[f"{self.modality}_embeds"]
        deep: list[Any] = [told[name] for name in told if name.startswith("deepstack.")]
        deep = [_Either([rows]) for rows in ([features, *deep] if self.media.added else deep)]
        if self.media.added:
            deep = [*zip(layers_of(self.media, self.model.config), deep, strict=True)]
        output = _Read(
            pooler_output=_Either([features]),
            deepstack_features=deep,
            last_hidden_state=features[None],
        )
        turned = self.media.whole == "prompt"  # 0 of tokens that see one another, and 1 of others
        types = {
            name.removeprefix(TYPES): 1 - value if turned else value
            for name, value in told.items()
            if name.startswith(TYPES)
        }
        merged = _Merged(told[f"{self.modality}_index"], features)

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
            types[_ROUTES] = _of_pictures(self.model.config, input_ids)
        if projector := getattr(model, _PROJECTOR, None):  # features come behind it
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
        """Let no tokens of sounds see one another both ways, as a forward may say of all that a call has."""
        module = vars(sys.modules[type(self.model).__module__])
        masks = module.get(_MASKS) if isinstance(self.media, AudioEncoder) else None
        changed = {_MASKS: lambda **told: masks(**{**told, _BLOCKS: None})} if masks else {}
        return mock.patch.dict(module, changed)


def _probe(model: Any) -> list[State]:
    """Return the states of what takes tokens alone."""
    return decoder_tracing.probe(reader_of_tokens(model))


def _of_pictures(config: Any, input_ids: Tensor) -> Tensor:
    """Tell the tokens of pictures, and those that begin and end them."""
    names = (f"{kind}{part}_token_id" for kind in _KINDS for part in ("", "_start", "_end"))
    known = torch.tensor([getattr(config, name) for name in names])
    return (input_ids[..., None] == known).any(-1)


def _modality(media: Media) -> str:
    """Return what begins the names of features, and of their rows."""
    return "audio" if isinstance(media, AudioEncoder) else "image"


def tracing(
    model: Any,
    *,
    images: ImageEncoder | None = None,
    sounds: AudioEncoder | None = None,
    **variant: Any,
) -> Tracing:
    """Describe how to trace the language model of `model`.

    Args:
        model: From `loader.load_meta`, possibly with fewer layers than its config says.
        images: As a recipe declares them; None of a model that reads sounds alone.
        sounds: The same of sounds; None of a model that reads pictures alone.
        **variant: As of `qeff_zoo.tasks.text_generation.decoder_tracing.tracing`.
    """
    config = model.config
    every = [*([images] if images else []), *([sounds] if sounds else [])]
    told: Media = every[0]
    modality = _modality(told)
    features = torch.zeros(_ROWS, config.get_text_config().hidden_size)
    rows = {0: Dim(f"{modality}_rows", min=2)}
    deep = getattr(config.vision_config, told.deepstack) if told.deepstack else ()
    deep = layers_of(told, config)[1:] if told.added else deep

    def more(batch: Any, seq: Any, ctx: Any, position_ids: Tensor) -> dict[str, tuple[Tensor, Any]]:
        found = {
            f"{modality}_index": (torch.full_like(position_ids, -1), {0: batch, 1: seq}),
            f"{modality}_embeds": (features, rows),
            **{f"deepstack.{index}": (features.clone(), rows) for index in range(len(deep))},
        }
        if told.axes > 1:
            found["rope_positions"] = (
                position_ids.expand(told.axes, -1, -1).contiguous(),
                {1: batch, 2: seq},
            )
        if told.whole:
            types = torch.zeros(len(position_ids), decoder_tracing.CTX, dtype=torch.long)
            found[f"{TYPES}{told.types}"] = types, {0: batch, 1: ctx}
        return found

    step = partial(Step, media=told)
    made = decoder_tracing.tracing(model, step=step, more=more, probe=_probe, **variant)
    around = getattr(config, told.around) if told.around else ()
    tokens = [*(attrgetter(one.token)(config) for one in every), *around]
    index = f"{modality}_index"
    return replace(made, then=partial(_finish, then=made.then, index=index, tokens=tokens))


def _finish(
    graph: Any, *, then: Callable[[Any], object] | None, index: str, tokens: Sequence[int]
) -> None:
    """Let an input of a portable graph say which tokens' features it finds."""
    if then:
        then(graph)
    for value in graph.graph.inputs:
        if value.name == index:
            mark_tokens(value, tokens)

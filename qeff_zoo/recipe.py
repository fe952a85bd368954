# SPDX-License-Identifier: Apache-2.0
"""Declarations: what a recipe can say about an architecture. Values only; nothing here acts.

A recipe is one frozen `Recipe` in one file named after its Hugging Face `model_type`. Whatever the core must know about
a model is a field here. Importing a recipe imports neither torch nor transformers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from qeff_zoo.recipe_media import Asked as Asked
from qeff_zoo.recipe_media import AudioEncoder as AudioEncoder
from qeff_zoo.recipe_media import ImageEncoder as ImageEncoder
from qeff_zoo.recipe_media import Media as Media
from qeff_zoo.recipe_media import Speech as Speech
from qeff_zoo.recipe_media import SubModels as SubModels

#: Role of a program in its package.
Role: TypeAlias = Literal[
    "decoder", "encoder", "vision", "tiles", "frames", "audio", "heads", "draft", "assistant", "alignment"
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes a package is specialized for; 0, None or nothing where one does not apply to the task.

    Args:
        prefill_seq_len: Prompt tokens taken by one prefill call.
        ctx_len: Rows of the KV cache: prompt and generated tokens together.
        batch_size: Rows of one call.
        full_batch_size: Cache slots of a continuous-batching package; None for none.
        seq_lens: Sequence lengths of an encoder, ascending.
        comp_ctx_lengths_prefill: See `qeff_zoo.tasks.compute_contexts`.
        comp_ctx_lengths_decode: See `qeff_zoo.tasks.compute_contexts`.
        num_speculative_tokens: Drafted tokens that a decode call may check, ascending.
        prefill_only: Whether there are calls for prompts alone, whose states another package goes on from.
        decode_only: Whether there are calls for one token of a row alone, and for drafted ones.
        image_size: Of pictures of any size, those that a program of fixed sizes is made for: `HEIGHTxWIDTH` in pixels.
        max_num_images: Pictures of a prompt at most, of models that read them by cross-attention.
    """

    prefill_seq_len: int = 0
    ctx_len: int = 0
    batch_size: int = 1
    full_batch_size: int | None = None
    seq_lens: tuple[int, ...] = ()
    comp_ctx_lengths_prefill: tuple[int, ...] = ()
    comp_ctx_lengths_decode: tuple[int, ...] = ()
    num_speculative_tokens: tuple[int, ...] = ()
    prefill_only: bool = False
    decode_only: bool = False
    image_size: tuple[str, ...] = ()
    max_num_images: int = 0

    @property
    def apart(self) -> bool:
        """Whether prompts run in one package, and answers in another."""
        return self.prefill_only or self.decode_only


@dataclass(frozen=True, kw_only=True)
class SoundShape(Shape):
    """The sizes of a package that writes of sounds of any length.

    Args:
        inputs_per_row: Samples, or frames of features, that become a row of what the decoder asks of the encoder.
    """

    inputs_per_row: int


@dataclass(frozen=True, kw_only=True)
class PatchShape(Shape):
    """The sizes of a package that reads pictures of any size with programs of fixed ones.

    Args:
        patches: Of the pictures that it is made for, ascending.
        merged: Patches that become a row of features.
        window: Rows of features on a side of a window of attention; 0 without windows.
    """

    patches: tuple[int, ...]
    merged: int
    window: int = 0


@dataclass(frozen=True, kw_only=True)
class Transform:
    """A change of torch modules, by name.

    `qeff_zoo.export.transforms.<name>.apply(model, **parameters)` returns the number of modules changed.

    Args:
        name: Module below `qeff_zoo.export.transforms`.
        count: From the text config, the number of modules that must change; another number is an error.
        parameters: Keyword arguments, JSON values.
        version: Raised when the transform's result changes; part of a package's identity.
    """

    name: str
    count: Callable[[Any], int] = field(compare=False)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1


@dataclass(frozen=True, kw_only=True)
class Component:
    """A model that becomes a program of its own in the package.

    Args:
        role: Of the program: "decoder", "encoder", ….
        task: Hub pipeline tag of what it computes.
    """

    role: str
    task: str


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A configuration that runs in seconds, awkward on purpose, with every layer kind at least twice.

    Args:
        config: Arguments of the Hugging Face config class.
        name: Tells apart several variants of one recipe.
        image_processor: Content of its preprocessor_config.json, where it reads images.
        ctx_len: Rows of the context that it is tried with, where one picture takes more than the usual; 0 for those.
    """

    config: Mapping[str, Any]
    name: str = "base"
    image_processor: Mapping[str, Any] = field(default_factory=dict)
    ctx_len: int = 0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that is special about one architecture.

    Args:
        model_type: Hugging Face `model_type`; the file's name with `-` and `.` written `_`.
        architectures: Class names of `config.architectures` that this recipe covers; how they end also says which
            tasks it serves besides `task`, see `qeff_zoo.tasks.tasks_of`.
        task: Hub pipeline tag; names a module of `qeff_zoo.tasks`. The default where a checkpoint does not tell.
        special: In words, what sets the architecture apart; `qeff-zoo show` prints it.
        transforms: Applied in order.
        images: How pictures come in, of a model that reads them.
        towers: The same by `model_type` of a vision config, of checkpoints whose tower takes them otherwise.
        sounds: The same of a model that hears.
        speech: How what is written of speech begins; None where generation_config.json says it.
        halves: Which models it may be made of; None where its halves are of its own architecture.
        asked: What an encoder reads besides a picture; None where it reads that alone.
        between: Names, in the text's config, of the tokens that an answer begins and ends with; nothing where
            generation_config.json says it.
        shapes: Named profiles; the first is the default.
        retains_context: Some state of a decoder grows with the context; else all are windows or recurrent states.
        fixed_kv_heads: Why `--kv-heads` cannot repeat the key/value heads, in words; nothing where it can, or where a
            config tells.
        positions_after_padding: Learned positions are counted from `pad_token_id + 1`, so that many fewer tokens fit.
        told_by: Fields of config.json by which its checkpoints are known that have no `model_type`.
        requires: Packages beside those of extra `build` that transformers' class needs; extras have their names.
        image_processor: transformers' class that makes arrays of pictures, where a checkpoint's own files name none.
        compile_flags: Options of one target by its name, which the architecture needs instead of their defaults.
        tiny: Configurations of the tiny parity ladder.
        rev: Raised when a change here must rebuild packages although no other field shows it.
    """

    model_type: str
    architectures: tuple[str, ...]
    task: str
    special: str
    transforms: tuple[Transform, ...] = ()
    images: ImageEncoder | None = None
    towers: Mapping[str, ImageEncoder] = field(default_factory=dict)
    sounds: "AudioEncoder | None" = None
    speech: Speech | None = None
    halves: SubModels | None = None
    asked: Asked | None = None
    between: tuple[str, ...] = ()
    shapes: Mapping[str, Shape]
    retains_context: bool = True
    fixed_kv_heads: str = ""
    positions_after_padding: bool = False
    told_by: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    image_processor: str = ""
    compile_flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tiny: tuple[Tiny, ...]
    rev: int = 1

    @property
    def media(self) -> Media | None:
        """How what is no text comes in, of a model that reads it among text: pictures, where it reads both."""
        return self.images or self.sounds


def frames(count: Callable[[Any], int]) -> Transform:
    """Declare that `count(config)` norms over time and convolutions of an encoder of sound know its end.

    Args:
        count: Number of modules, from the config.
    """
    return Transform(name="frames", count=count)


def row_positions(count: Callable[[Any], int] = lambda config: 1) -> Transform:
    """Declare that `count(config)` tables or biases of a decoder take positions that differ from row to row."""
    return Transform(name="row_positions", count=count)


def rms_norm(count: Callable[[Any], int], *, offset: float = 0.0, suffix: str = "") -> Transform:
    """Declare that `count(config)` RMS norms become the semantic op.

    Args:
        count: Number of norm modules, from the text config.
        offset: Added to the weight before use (Gemma stores weight - 1).
        suffix: What the name of their class ends with, where that is not RMSNorm.
    """
    given = {"offset": offset, "suffix": suffix}
    parameters = {name: value for name, value in given.items() if value}
    return Transform(name="rms_norm", count=count, parameters=parameters)


def experts(count: Callable[[Any], int] | None = None) -> Transform:
    """Declare that `count(config)` blocks of experts become semantic ops, whole or each of their products.

    Args:
        count: Number of blocks, from the text config; None for `sparse_layers`.
    """
    return Transform(name="experts", version=3, count=count or sparse_layers)


def recurrence(count: Callable[[Any], int]) -> Transform:
    """Declare that the scans of `count(config)` state-space or linear-attention layers become semantic ops."""
    return Transform(name="recurrence", version=2, count=count)


def window_cache(count: Callable[[Any], int] | None = None) -> Transform:
    """Declare that the sliding-window layers keep a cache of their window only.

    Args:
        count: Number of layers, from the text config; None for `sliding_layers`.
    """
    return Transform(name="window_cache", version=2, count=count or sliding_layers)


def layers_of(kind: str) -> Callable[[Any], int]:
    """Return what counts the layers that `layer_types` of a text config calls by a name, as "full_attention"."""
    return lambda config: list(config.layer_types).count(kind)


def sliding_layers(config: Any) -> int:
    """Count the layers whose attention slides; without a window none does, whatever `layer_types` says."""
    return layers_of("sliding_attention")(config) if config.sliding_window else 0


def sparse_layers(config: Any) -> int:
    """Count the layers with experts, by whichever of transformers' fields the config has; all if it has none."""
    return sum(map(partial(_is_sparse, config), range(config.num_hidden_layers)))


def declared(config: Any, *names: str, default: Any = None) -> Any:
    """Return the first value of a config's fields; a field that its class lacks is not read by its model.

    Args:
        config: As transformers parses it, which keeps unknown fields as well.
        *names: The fields, in order.
        default: Returned if there is no value.
    """
    known = (getattr(config, name) for name in names if hasattr(type(config), name))
    return next((value for value in known if value is not None), default)


def _is_sparse(config: Any, layer: int) -> bool:
    """Tell whether a layer has experts."""
    said = partial(declared, config)

    if kinds := said("mlp_layer_types", default=()):
        return bool(kinds[layer] == "sparse")
    first = said("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", default=0)
    last = said("moe_layer_end_index", default=layer)
    step = said("decoder_sparse_step", "moe_layer_interval", default=1)
    dense = layer in said("mlp_only_layers", default=()) or not said("num_experts", default=1)
    return bool(first <= layer <= last and (layer + 1) % step == 0 and not dense)


DECODER_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(prefill_seq_len=128, ctx_len=4096),
    "throughput": Shape(prefill_seq_len=128, ctx_len=4096, full_batch_size=16),
    "long": Shape(prefill_seq_len=256, ctx_len=32768),
}
#: Pictures have the size that a checkpoint's processor gives them.
IMAGE_SHAPES: Mapping[str, Shape] = {"latency": Shape(), "throughput": Shape(batch_size=8)}
#: Tokens that are written of a picture: a line of text, a caption, or with "long" a page.
CAPTION_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(prefill_seq_len=16, ctx_len=512),
    "throughput": Shape(prefill_seq_len=16, ctx_len=512, full_batch_size=8),
    "long": Shape(prefill_seq_len=16, ctx_len=4096),
}
#: Lengths with those of a picture, of which there are hundreds of tokens.
IMAGE_PROMPT_SHAPES: Mapping[str, Shape] = {
    name: replace(shape, ctx_len=min(shape.ctx_len, 1024), seq_lens=(640, 1024))
    for name, shape in CAPTION_SHAPES.items()
}
ENCODER_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(seq_lens=(32, 128, 256)),
    "throughput": Shape(seq_lens=(128, 512), batch_size=8),
}
#: Lengths in samples, of which there are 16,000 a second.
SOUND_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(seq_lens=(80_000, 240_000, 480_000)),
    "throughput": Shape(seq_lens=(480_000,), batch_size=8),
}
#: Lengths in frames of features, of 20 ms each.
FRAME_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(seq_lens=(250, 750, 1500)),
    "throughput": Shape(seq_lens=(1500,), batch_size=8),
}
#: Tokens of what was said in a window of sound, of which the decoder has positions for 448.
WINDOW_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(prefill_seq_len=32, ctx_len=448),
    "throughput": Shape(prefill_seq_len=32, ctx_len=448, full_batch_size=8),
}
#: The same for sounds of any length, of which a model writes at once.
AUDIO_SEQ2SEQ_SHAPES: Mapping[str, SoundShape] = {
    "latency": SoundShape(
        prefill_seq_len=8, ctx_len=256, seq_lens=(80_000, 240_000, 480_000), inputs_per_row=384
    ),
    "throughput": SoundShape(
        prefill_seq_len=8, ctx_len=256, seq_lens=(480_000,), inputs_per_row=384, full_batch_size=8
    ),
}
#: Tokens of a text, and of what is written of it.
SEQ2SEQ_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(prefill_seq_len=16, ctx_len=256, seq_lens=(64, 256, 512)),
    "throughput": Shape(
        prefill_seq_len=16, ctx_len=256, seq_lens=(64, 256, 512), full_batch_size=8
    ),
    "long": Shape(prefill_seq_len=16, ctx_len=512, seq_lens=(512, 1024)),
}

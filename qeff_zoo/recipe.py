# SPDX-License-Identifier: Apache-2.0
"""Declarations of an architecture for recipes. Values only; nothing here acts.

A recipe is one frozen `Recipe` in one file named after its Hugging Face `model_type`. Every property of a model that
the core requires is a field here. Importing a recipe imports neither torch nor transformers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from qeff_zoo.recipe_media import AudioEncoder as AudioEncoder
from qeff_zoo.recipe_media import ImageEncoder as ImageEncoder
from qeff_zoo.recipe_media import ImagePrompt as ImagePrompt
from qeff_zoo.recipe_media import Media as Media
from qeff_zoo.recipe_media import Speech as Speech
from qeff_zoo.recipe_media import SubModels as SubModels

#: Role of a program in its package.
Role: TypeAlias = Literal[
    "decoder", "encoder", "vision", "tiles", "frames", "audio", "heads", "draft", "assistant", "alignment",
    "text_encoder", "text_encoder_2", "text_encoder_3", "unet", "transformer", "transformer_2", "vae_encoder",
    "vae_encoder_next", "vae_decoder", "vae_decoder_next", "image_encoder",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes that a package is specialized for; 0, None or empty for sizes that the task does not have.

    Args:
        prefill_seq_len: Number of prompt tokens of one prefill call.
        ctx_len: Length of the KV cache: prompt and generated tokens together.
        batch_size: Number of rows of one call.
        full_batch_size: Number of batch slots with continuous batching; None without.
        seq_lens: Sequence lengths of an encoder, ascending.
        comp_ctx_lengths_prefill: Compute contexts of prefill, see `qeff_zoo.contract.compute_contexts`.
        comp_ctx_lengths_decode: Compute contexts of decode, see `qeff_zoo.contract.compute_contexts`.
        num_speculative_tokens: Numbers of draft tokens that a decode call may verify, ascending.
        prefill_only: Whether the package has prefill calls alone; another package decodes from their states.
        decode_only: Whether the package has decode calls alone, of one token per slot and of draft tokens.
        image_size: Sizes of images that fixed shapes are specialized for, if a model takes any size: `HEIGHTxWIDTH` in
            pixels.
        max_num_images: Maximum number of images in a prompt, for models with cross-attention to images.
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
        """Whether prefill and decode run in separate packages."""
        return self.prefill_only or self.decode_only


#: Minimum number of audio samples that a graph reads: a tenth of a second.
LEAST_SAMPLES = 1600


@dataclass(frozen=True, kw_only=True)
class AudioShape(Shape):
    """Sizes of a package that decodes from audio of any length.

    Args:
        inputs_per_row: Number of samples or feature frames per row of encoder states.
    """

    inputs_per_row: int


@dataclass(frozen=True, kw_only=True)
class PatchShape(Shape):
    """Sizes of a package that encodes images of any size with fixed shapes.

    Args:
        patches: Numbers of patches per image that it is specialized for, ascending.
        merged: Number of patches per feature row.
        window: Feature rows on a side of an attention window; 0 without windows.
    """

    patches: tuple[int, ...]
    merged: int
    window: int = 0


@dataclass(frozen=True)
class TokenId:
    """Id of a token that is in the checkpoint's tokenizer files alone, in fields of `Recipe.alias`.

    Args:
        token: Text of the token.
    """

    token: str


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline of diffusers: a checkpoint of several components, each in a folder with a configuration of its own.

    Args:
        family: Module of `qeff_zoo.tasks.diffusion.families` that traces and runs it; a manifest records the name.
        components: Class of each component whose weights a package has, by its folder.
        optional: Folders of components that checkpoints may lack.
    """

    family: str
    components: Mapping[str, str]
    optional: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Transform:
    """A named change of torch modules.

    `qeff_zoo.export.transforms.apply` compares the number of changed modules with its count.

    Args:
        name: Module below `qeff_zoo.export.transforms`, or a function of its module `expert_blocks`.
        count: Number of modules that must change, from the text config; another number is an error.
        parameters: Keyword arguments, JSON values.
        version: Version of the transform, raised if its result changes; part of a package's identity.
    """

    name: str
    count: Callable[[Any], int] = field(compare=False)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1


@dataclass(frozen=True, kw_only=True)
class Component:
    """A model that becomes its own program in the package.

    Args:
        role: Role of the program: "decoder", "encoder", ….
        task: Hub pipeline tag of its computation.
    """

    role: str
    task: str


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A configuration that runs in seconds, deliberately irregular, with every layer kind at least twice.

    Args:
        config: Arguments of the Hugging Face config class.
        name: Name of the variant, if a recipe has several.
        image_processor: Content of its preprocessor_config.json, if it reads images.
        ctx_len: Context length of its validation, if one image exceeds the default; 0 otherwise.
    """

    config: Mapping[str, Any]
    name: str = "base"
    image_processor: Mapping[str, Any] = field(default_factory=dict)
    ctx_len: int = 0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that distinguishes one architecture.

    Args:
        model_type: Hugging Face `model_type`; the file's name with `-` and `.` written `_`.
        architectures: Class names of `config.architectures` that this recipe covers; their suffixes also set which
            tasks it serves besides `task`, see `qeff_zoo.contract.tasks_of`.
        task: Hub pipeline tag; names a module of `qeff_zoo.tasks`. It is the default if the checkpoint sets none.
        special: Description of what sets the architecture apart; `qeff-zoo show` prints it.
        transforms: Transforms in the order of their application.
        pipeline: Components of a pipeline of diffusers, whose class name is the `model_type`; None for other models.
        images: Image input of a model that reads images.
        vision_encoders: Image inputs by `model_type` of the vision config, if they differ from `images`.
        audio: Audio input of a model that reads audio.
        speech: Decoder prompt of a speech model; None if generation_config.json sets it.
        submodels: Encoders and decoders that it may consist of; None if both are of its own architecture.
        image_prompt: Encoder prompt besides an image; None if the encoder reads the image alone.
        answer_delimiters: Names, in the text config, of the first and last token of a generated text; empty if
            generation_config.json sets them.
        shapes: Named profiles; the first is the default.
        embeds: Whether published checkpoints also embed prompts with images, by the state of the last token.
        retains_context: Whether some state of a decoder grows with the context; otherwise all are windows or recurrent
            states.
        fixed_kv_heads: Reason why `--kv-heads` cannot repeat the key/value heads; empty if it can, or if the config
            decides.
        positions_after_padding: Whether learned positions are counted from `pad_token_id + 1`, so that as many fewer
            tokens fit.
        detected_by: Fields of config.json that identify its checkpoints without a `model_type`.
        alias: Function that returns the fields to add to a config.json with code of its own, if the recipe covers it
            in another form; else None. `image_processor` replaces the settings in the checkpoint's files.
        variants: `model_type` of another recipe by the field of config.json that selects it, as in AutoConfig.
        former_text_types: `model_type` of the text config by its former names, which published checkpoints have; "" is
            for a text config without one, if it is not that of the first tiny configuration.
        requires: Python packages that transformers' class needs beyond extra `build`; extras have their names.
        image_processor: Image processor class of transformers, if a checkpoint's files name none or one of its code.
        compile_flags: Compiler options by target, which replace that target's defaults for the architecture.
        tiny: Configurations of the tiny parity ladder.
        rev: Revision, raised if a change here must rebuild packages although no other field shows it.
    """

    model_type: str
    architectures: tuple[str, ...]
    task: str
    special: str
    transforms: tuple[Transform, ...] = ()
    pipeline: Pipeline | None = None
    images: ImageEncoder | None = None
    vision_encoders: Mapping[str, ImageEncoder] = field(default_factory=dict)
    audio: "AudioEncoder | None" = None
    speech: Speech | None = None
    submodels: SubModels | None = None
    image_prompt: ImagePrompt | None = None
    answer_delimiters: tuple[str, ...] = ()
    shapes: Mapping[str, Shape]
    embeds: bool = False
    retains_context: bool = True
    fixed_kv_heads: str = ""
    positions_after_padding: bool = False
    detected_by: tuple[str, ...] = ()
    alias: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = field(
        default=lambda config: None, compare=False
    )
    variants: Mapping[str, str] = field(default_factory=dict)
    former_text_types: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    image_processor: str = ""
    compile_flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tiny: tuple[Tiny, ...]
    rev: int = 1

    @property
    def media(self) -> Media | None:
        """Declaration of multimodal inputs among text: the image input, if the model has both."""
        return self.images or self.audio


def frames(count: Callable[[Any], int]) -> Transform:
    """Declare that `count(config)` time norms and convolutions of an audio encoder respect the end of the audio.

    Args:
        count: Number of modules, from the config.
    """
    return Transform(name="frames", count=count)


def row_positions(count: Callable[[Any], int] = lambda config: 1) -> Transform:
    """Declare that `count(config)` tables or biases of a decoder take positions that differ per slot."""
    return Transform(name="row_positions", count=count)


def rms_norm(count: Callable[[Any], int], *, offset: float = 0.0, suffix: str = "") -> Transform:
    """Declare that `count(config)` RMS norms become the semantic op.

    Args:
        count: Number of norm modules, from the text config.
        offset: Added to the weight before use (Gemma stores weight - 1).
        suffix: Suffix of their class name, if it is not RMSNorm.
    """
    given = {"offset": offset, "suffix": suffix}
    parameters = {name: value for name, value in given.items() if value}
    return Transform(name="rms_norm", count=count, parameters=parameters)


def experts(count: Callable[[Any], int] | None = None) -> Transform:
    """Declare that `count(config)` expert blocks become semantic ops, as a whole or per product.

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
    """Return a function that counts the layers of a kind in `layer_types` of a text config, as "full_attention"."""
    return lambda config: list(config.layer_types).count(kind)


def sliding_layers(config: Any) -> int:
    """Count the sliding-window layers; without a window size there are none, whatever `layer_types` has."""
    return layers_of("sliding_attention")(config) if config.sliding_window else 0


def sparse_layers(config: Any) -> int:
    """Count the layers with experts, by the config's fields for them; all layers if it has none."""
    return sum(map(partial(_is_sparse, config), range(config.num_hidden_layers)))


def declared(config: Any, *names: str, default: Any = None) -> Any:
    """Return the first value of a config's fields; a model does not read fields that its class lacks.

    Args:
        config: Config parsed by transformers, which keeps unknown fields as well.
        *names: Names of the fields, in order of precedence.
        default: Returned if there is no value.
    """
    known = (getattr(config, name) for name in names if hasattr(type(config), name))
    return next((value for value in known if value is not None), default)


def _is_sparse(config: Any, layer: int) -> bool:
    """Whether a layer has experts."""
    value_of = partial(declared, config)

    if kinds := value_of("mlp_layer_types", default=()):
        return bool(kinds[layer] == "sparse")
    first = value_of(
        "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", default=0
    )
    last = value_of("moe_layer_end_index", default=layer)
    step = value_of("decoder_sparse_step", "moe_layer_interval", default=1)
    dense = layer in value_of("mlp_only_layers", default=()) or not value_of(
        "num_experts", default=1
    )
    return bool(first <= layer <= last and (layer + 1) % step == 0 and not dense)


DECODER_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(prefill_seq_len=128, ctx_len=4096),
    "throughput": Shape(prefill_seq_len=128, ctx_len=4096, full_batch_size=16),
    "long": Shape(prefill_seq_len=256, ctx_len=32768),
}
#: Profiles of image models, whose image size the checkpoint's processor sets.
IMAGE_SHAPES: Mapping[str, Shape] = {"latency": Shape(), "throughput": Shape(batch_size=8)}
#: Profile of pipelines that draw videos, one at a time.
VIDEO_SHAPES: Mapping[str, Shape] = {"latency": Shape()}
#: Lengths of generated text about an image: a line of text, a caption, or with "long" a page.
CAPTION_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(prefill_seq_len=16, ctx_len=512),
    "throughput": Shape(prefill_seq_len=16, ctx_len=512, full_batch_size=8),
    "long": Shape(prefill_seq_len=16, ctx_len=4096),
}
#: Lengths that include image tokens, of which an image has hundreds.
IMAGE_PROMPT_SHAPES: Mapping[str, Shape] = {
    name: replace(shape, ctx_len=min(shape.ctx_len, 1024), seq_lens=(640, 1024))
    for name, shape in CAPTION_SHAPES.items()
}
ENCODER_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(seq_lens=(32, 128, 256, 512)),
    "throughput": Shape(seq_lens=(128, 512), batch_size=8),
}
#: Lengths in samples at 16,000 per second.
AUDIO_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(seq_lens=(80_000, 240_000, 480_000)),
    "throughput": Shape(seq_lens=(480_000,), batch_size=8),
}
#: Lengths in feature frames of 20 ms each.
FRAME_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(seq_lens=(250, 750, 1500)),
    "throughput": Shape(seq_lens=(1500,), batch_size=8),
}
#: Tokens of the transcript of an audio window; the decoder has positions for 448.
WINDOW_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(prefill_seq_len=32, ctx_len=448),
    "throughput": Shape(prefill_seq_len=32, ctx_len=448, full_batch_size=8),
}
#: The same for audio of any length, which the model transcribes in one pass.
AUDIO_SEQ2SEQ_SHAPES: Mapping[str, AudioShape] = {
    "latency": AudioShape(
        prefill_seq_len=8, ctx_len=256, seq_lens=(80_000, 240_000, 480_000), inputs_per_row=384
    ),
    "throughput": AudioShape(
        prefill_seq_len=8, ctx_len=256, seq_lens=(480_000,), inputs_per_row=384, full_batch_size=8
    ),
}
#: Lengths of a source text, and of the generated text.
SEQ2SEQ_SHAPES: Mapping[str, Shape] = {
    "latency": Shape(prefill_seq_len=16, ctx_len=256, seq_lens=(64, 256, 512)),
    "throughput": Shape(
        prefill_seq_len=16, ctx_len=256, seq_lens=(64, 256, 512), full_batch_size=8
    ),
    "long": Shape(prefill_seq_len=16, ctx_len=512, seq_lens=(512, 1024)),
}

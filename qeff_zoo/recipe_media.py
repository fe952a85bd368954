# SPDX-License-Identifier: Apache-2.0
"""Declarations: how audio, speech and other multimodal inputs reach a model. Values only, as in `qeff_zoo.recipe`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, kw_only=True)
class Media:
    """Image or audio input of a language model, whose features another program computes.

    A field is a value that several recipes set. Properties are values of a family; a family may override one by a
    field.

    Args:
        token: Field of the config with the placeholder token that has one occurrence per feature row; `part.field` for
            a field of a part.
        axes: Axes of rotary positions: 1, or 3 for time, height and width.
        before: Tokens before the placeholder tokens, which the marker expands to: ids, fields of the config, or texts.
        after: Tokens after them.
    """

    token: str
    axes: int = 1
    before: tuple[int | str, ...] = ()
    after: tuple[int | str, ...] = ()

    #: Field of the config with the token that a chat template writes before each marker, by which a forward finds
    #: images.
    begun: ClassVar[str] = ""
    #: Fields of the config that list layers of the language model before which features are added, in the order in
    #: which its forward lists those; none of them take a token's place then. Of pairs the second is that layer.
    added: ClassVar[tuple[str, ...]] = ()
    #: Field of the config that lists the tokens around an image's rows that have rows of features as well.
    around: ClassVar[str] = ""
    #: Field of the config with the token that ends an answer, whatever generation_config.json has; empty for that file.
    ends: ClassVar[str] = ""
    #: Fields of the config with the tokens that are written among and around an image's rows, and attend to them and
    #: are attended to as if they had rows.
    among: ClassVar[tuple[str, ...]] = ()
    #: Names of special tokens, of which the first that a tokenizer has begins every prompt.
    opening: ClassVar[tuple[str, ...]] = ()
    #: Text between the images of a chat and its text, if all images come first; empty if they are where the template
    #: has them.
    before_text: ClassVar[str] = ""

    @property
    def types(self) -> str:
        """Argument of the forward that marks image tokens, if attention depends on them."""
        return ""

    @property
    def whole(self) -> str:
        """Tokens that must be in one prefill call, since they attend to one another.

        "image", "images" for all images of a prompt with the text between them, "prompt", or empty.
        """
        return ""

    @property
    def deepstack(self) -> str:
        """Field of the vision config that lists the layers whose features are added in the language model."""
        return ""

    @property
    def marker(self) -> str:
        """Field of the config with the token that stands for an image or audio in a prompt; empty for `token`.

        Or a text of any number of tokens.
        """
        return ""

    @property
    def spaced(self) -> str:
        """Format of the marker, `{}`, in the text of a prompt, which is tokenized together with its surroundings.

        A space at the end is added only before a word.
        """
        return ""

    @property
    def text(self) -> str:
        """Format of the text after the last image of a prompt, such as `<bos>{}`; empty for no change."""
        return ""

    @property
    def mask(self) -> str:
        """Name of the padding mask in the processor's output, if the processor pads."""
        return ""

    @property
    def embedded(self) -> bool:
        """Whether feature rows replace embeddings before the forward, since it takes no features of this kind."""
        return False

    @property
    def adapter(self) -> str:
        """Folder of a checkpoint, "." for its own, with an adapter that is active only for multimodal prompts."""
        return ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Self":
        """Return the declaration of a manifest's values, in which tuples are lists."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**plain)


@dataclass(frozen=True, kw_only=True)
class ImageEncoder(Media):
    """Image input of a language model: values, and hooks that `qeff_zoo.multimodal` implements.

    Args:
        types: Argument of the forward that marks image tokens, if attention depends on them.
        deepstack: Field of the vision config that lists the layers whose features are added in the language model.
        video: Field of the config with the placeholder token of a video, or the token itself if no config has it;
            empty if the vision encoder reads no frames.
        video_processor: transformers' class for videos, if a checkpoint's own files name none.
        stamp: Texts before and after the rows of each step of a video, which is read as an image by itself, and
            between steps; those around it are formatted with the step's time in seconds, the same without its fraction
            as `second`, as minutes and seconds as `clock`, and its `number`. Empty if a video is read as one, or if its
            processor has them. Then texts before and after the whole video, perhaps empty, if the tokenizer reads the
            text together with its surroundings, so that no token stands for a video; the first is formatted with the
            number of its `frames`, in words, and its `duration`.
    """

    token: str = "image_token_id"
    types: str = ""
    deepstack: str = ""
    video: str = ""
    video_processor: str = ""
    stamp: tuple[str, ...] = ()

    #: Name of the pixels in the result of a processor, and of the forward's argument.
    pixels: ClassVar[str] = "pixel_values"
    #: Name of tiles in the result of a processor, if those have another size than the whole and a program of their own.
    tiles: ClassVar[str] = ""
    #: Whether images have any size, which no padding fills up.
    any_size: ClassVar[bool] = False
    #: Whether layers of the language model read images by cross-attention, so that no token has a row of features.
    by_cross_attention: ClassVar[bool] = False
    #: Whether frames of videos go through other operators than images: a program of their own.
    has_frame_program: ClassVar[bool] = False
    #: Special tokens around the number of each image of a prompt.
    numbered: ClassVar[tuple[str, ...]] = ()
    #: Chat template of prompts with videos, if the processor has one for those.
    video_template: ClassVar[str] = ""

    @property
    def nested(self) -> bool:
        """Whether the forward takes the tiles of an image on an axis of their own."""
        return False

    @property
    def one_piece(self) -> bool:
        """Whether an image is one array of one size, so that one program may read it with the text."""
        raise NotImplementedError

    def geometry(self, config: Mapping[str, Any]) -> Any:
        """Return the geometry of patches; None if the vision encoder takes images.

        Args:
            config: Config of the model.
        """
        raise NotImplementedError

    def frame_geometry(self, config: Mapping[str, Any]) -> Any:
        """Return the geometry of patches of the frame program; None if that takes frames."""
        raise NotImplementedError

    @property
    def prompt_layout(self) -> Any:
        """How an image is written into a prompt."""
        raise NotImplementedError

    def trace(self, model: Any, *, side: int | None = None) -> Any:
        """Describe how to trace the vision encoder.

        Args:
            model: Model from `loader.load_meta`.
            side: Pixels on a side of an image; None for the config's value.
        """
        raise NotImplementedError

    def trace_language(self, model: Any, audio: Any = None, **variant: Any) -> Any:
        """Describe how to trace the language model.

        Args:
            model: Model from `loader.load_meta`, possibly with fewer layers than its config has.
            audio: Audio input of the same prompts, if the model has one.
            **variant: Arguments of `qeff_zoo.multimodal.tracing.language_tracing.tracing`.
        """
        raise NotImplementedError

    def trace_frame(self, model: Any) -> Any:
        """Describe how to trace the frame program."""
        raise NotImplementedError

    def forward_arguments(self, pixels: Any, more: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of transformers' forward for one tile.

        Args:
            pixels: (1, channels, height, width).
            more: The program's other inputs.
        """
        raise NotImplementedError

    def traced_with(self, model: Any) -> Any:
        """Return a context in which the forward is traced."""
        raise NotImplementedError

    def encode(self, vision: Any, digest: bytes, prepared: Any) -> Any:
        """Return the features of an image: here tile by tile.

        Args:
            vision: Runner of the program.
            digest: Digest of the image.
            prepared: Arrays of the processor.
        """
        raise NotImplementedError

    def tiles_of(self, vision: Any, prepared: Any) -> Any:
        """Return the tiles of an image without padding, and the masks of the program's inputs."""
        raise NotImplementedError

    def cropped(self, tile: Any, height: int, width: int, config: Mapping[str, Any]) -> Any:
        """Return a tile (channels, rows, columns) without padding.

        Args:
            tile: Tile from the processor.
            height: Number of rows without padding.
            width: Number of columns without padding.
            config: Config of the model.
        """
        raise NotImplementedError

    def chosen(self, features: Any, prepared: Any) -> Any:
        """Return the features of a tile that the processor selects."""
        raise NotImplementedError

    def rows_of(self, vision: Any, inputs: Any) -> int | None:
        """Return the rows of features of a program's inputs; None if its outputs have a fixed number."""
        raise NotImplementedError

    @property
    def arrays(self) -> tuple[str, ...]:
        """Further arrays that the processor returns for each image."""
        raise NotImplementedError

    def is_uncut(self, images: int) -> bool:
        """Whether images of a prompt are not cut into tiles.

        Args:
            images: Number of images in the prompt.
        """
        raise NotImplementedError

    def check_prompt(self, images: int, videos: int) -> None:
        """Raise `GenerationError` if a prompt may not have so many images and videos."""

    def video_arrays(self, pixels: Any, given: Mapping[str, Any], known: Any) -> Any:
        """Name the arrays of a video as those of images are named.

        Args:
            pixels: Pixels of all frames.
            given: Output of the processor.
            known: Times of the steps, and the duration, if the processor returns them.
        """
        raise NotImplementedError

    def video_rows(self, prepared: Any, config: Mapping[str, Any]) -> int:
        """Return the minimum number of feature rows of a video.

        Args:
            prepared: Arrays from `video_arrays`.
            config: Config of the model.
        """
        raise NotImplementedError

    @property
    def drawn_as_pixels(self) -> bool:
        """Whether validation draws images for the processor, and not its results."""
        raise NotImplementedError

    def sample(self, vision: Any, size: tuple[int, int], random: Any) -> Any:
        """Draw a random output of the processor.

        Args:
            vision: Runner of the program.
            size: Height and width in feature rows, if the vision encoder takes any size.
            random: A generator of numpy.
        """
        raise NotImplementedError

    def sample_frame(self, vision: Any, size: tuple[int, int], random: Any) -> Any:
        """Draw a random output of the video processor, for the frame program."""
        raise NotImplementedError

    def joined(self, arrays: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Return torch tensors of several images as transformers' processor returns them in one call.

        Args:
            arrays: Tensors of each image, by name.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class AudioEncoder(Media):
    """Audio input of a language model: values, and hooks that a family implements.

    Args:
        mask: Name of the padding mask in the processor's output, if the processor pads.
        embedded: Whether feature rows replace embeddings before the forward, since it takes no features of this kind.
        adapter: Folder of a checkpoint, "." for its own, with an adapter that is active only for multimodal prompts.

    Attributes:
        features: Name of the features of a recording in the processor's output and in the forward's arguments.
        separate: Whether the reference computes one recording at a time, since the padding of the shorter of several
            recordings would change their features.
        taken_as: Modality whose arguments the forward takes encoded recordings by, if it takes none of audio.
        text_messages: Whether the chat template takes messages as texts, not as lists of parts.
        any_length: Name of recordings that no padding fills up, if a program reads them at any length; nothing if
            program shapes are fixed.
    """

    features: ClassVar[str] = "input_features"
    separate: ClassVar[bool] = False
    taken_as: ClassVar[str] = ""
    text_messages: ClassVar[bool] = False
    any_length: ClassVar[str] = ""

    token: str = "audio_token_id"
    mask: str = ""
    embedded: bool = False
    adapter: str = ""

    def trace(self, model: Any, images: Any) -> Any:
        """Describe how to trace the encoder.

        Args:
            model: Model from `loader.load_meta`.
            images: Image input of the same prompts, if the model has one.
        """
        raise NotImplementedError

    def encoder(self) -> Any:
        """Return the class that runs the program of the encoder."""
        raise NotImplementedError

    def prepare(self, features: Any, shape: Sequence[int], samples: Any) -> dict[str, Any]:
        """Return the arrays of a recording, as transformers' processor returns them.

        Args:
            features: The feature extractor.
            shape: Shape of one window or block of the program's input.
            samples: Samples of one channel.

        Raises:
            MediaError: The recording exceeds the maximum length.
        """
        raise NotImplementedError

    def samples(self, shape: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield random recordings without end, as `prepare` returns them, for validation.

        Args:
            shape: Shape of the program's input, as in `prepare`.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Speech:
    """Decoder prompt of a speech model, if no file of a checkpoint has it.

    Args:
        languages: Codes of the spoken languages.
        begins: Tokens of the prompt, with `{source}` for the code of the spoken language, and `{target}` for that of
            the transcript; empty if the checkpoint's chat template writes them.
        translates: Whether the two languages may differ.
    """

    languages: tuple[str, ...]
    begins: tuple[str, ...] = ()
    translates: bool = False


@dataclass(frozen=True, kw_only=True)
class ImagePrompt:
    """Encoder prompt besides an image: its tokens follow the placeholder tokens of the image.

    Args:
        placeholder: Name in the config of the placeholder token.
        strides: Name in `vision_config` of the factors that divide an image's sides, one per stage.
        questions: Texts of the prompt in place of a task's token; `{input}` is the rest of the prompt, and a text
            without it allows no rest.
    """

    placeholder: str
    strides: str
    questions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SubModels:
    """Encoders and decoders that a checkpoint may consist of, each with its own architecture.

    Args:
        encoders: `model_type` of each encoder.
        decoders: `model_type` of each decoder.
        after_padding: Decoders whose learned positions are counted from `pad_token_id + 1`.
        tagging: Encoders whose checkpoints generate tags: special tokens are part of a generated text, and a prompt is
            its beginning. With other encoders, the decoder start token precedes a prompt.
    """

    encoders: tuple[str, ...]
    decoders: tuple[str, ...]
    after_padding: tuple[str, ...] = ()
    tagging: tuple[str, ...] = ()

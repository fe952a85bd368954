# SPDX-License-Identifier: Apache-2.0
"""Declarations: how audio, speech and other multimodal inputs reach a model. Values only, as in `qeff_zoo.recipe`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class Media:
    """How pictures or sounds, of which another program makes rows of features, come into a language model.

    Args:
        token: Field of the config with the token of which there is one for each row of features; `part.field` of one of
            its parts.
        axes: Of rotary positions: 1, or 3 for time, height and width.
        types: Argument that tells the forward which tokens are a picture's, where attention depends on that.
        whole: What must be in one call of prefill, since its tokens see one another: "image", "images" for all those of
            a prompt with what lies between them, "prompt", or nothing.
        deepstack: Field of the vision config that lists the layers whose features are added in the language model.
        marker: Field of the config with the token that stands for a picture or sound in a prompt, or a text that does,
            which need not be one token; nothing for `token`.
        before: Tokens before those of the rows, of those that the marker becomes: ids, fields of the config, or texts.
        after: Tokens after them.
        begun: Field of the config with the token that a chat template writes before each marker, where a forward finds
            pictures by that.
        spaced: How its marker, `{}`, is written into a prompt's text, which is read with what stands beside it; a space
            at the end only before a word.
        text: How what follows the last picture of a prompt is written, as `<bos>{}`; nothing for as it is.
        mask: What a processor calls the part of its result that is no padding, where it fills up.
        embedded: Whether rows are put among the embeddings of tokens, since a forward cannot be told them as it can be
            those of another kind.
        adapter: Folder of a checkpoint, "." for its own, that has an adapter which is to be on only where a prompt has
            pictures or sounds.
    """

    token: str
    axes: int = 1
    types: str = ""
    whole: str = ""
    deepstack: str = ""
    marker: str = ""
    before: tuple[int | str, ...] = ()
    after: tuple[int | str, ...] = ()
    begun: str = ""
    spaced: str = ""
    text: str = ""
    mask: str = ""
    embedded: bool = False
    adapter: str = ""

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

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Self":
        """Return the declaration of a manifest's values, in which tuples are lists."""
        plain: dict[str, Any] = {
            name: tuple(one) if isinstance(one, list) else one for name, one in values.items()
        }
        return cls(**plain)


@dataclass(frozen=True, kw_only=True)
class Speech:
    """How what is written of speech begins, where no file of a checkpoint says it.

    Args:
        languages: Codes of those that may be spoken.
        begins: Its tokens, with `{source}` in place of the code of the language that is spoken, and `{target}` of that
            which is written; nothing where a checkpoint's chat template writes them.
        translates: Whether the one may differ from the other.
    """

    languages: tuple[str, ...]
    begins: tuple[str, ...] = ()
    translates: bool = False


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What an encoder reads besides a picture: a prompt, behind the places of the picture's tokens.

    Args:
        placeholder: Name in the config of the token that stands in those places.
        strides: Name in `vision_config` of what a picture's sides are divided by, one stage after the other.
        questions: What a prompt says in place of a task's token; `{input}` is what else the prompt has, and where it is
            not, there must be nothing else.
    """

    placeholder: str
    strides: str
    questions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SubModels:
    """The models that a checkpoint may be made of, where each of its halves is of an architecture of its own.

    Args:
        encoders: `model_type` of what reads.
        decoders: `model_type` of what writes.
        after_padding: Those decoders whose learned positions are counted from `pad_token_id + 1`.
        tagging: Those encoders whose checkpoints answer in tags: special tokens are part of an answer, and a prompt is
            how it begins. Beside others, the token that begins every answer comes before a prompt.
    """

    encoders: tuple[str, ...]
    decoders: tuple[str, ...]
    after_padding: tuple[str, ...] = ()
    tagging: tuple[str, ...] = ()

# SPDX-License-Identifier: Apache-2.0
"""Settings of prompts with images or audio, as a checkpoint's files have them: texts of its processor, token ids."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.config import token_of
from qeff_zoo.checkpoint.files import PROCESSOR_SETTINGS
from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.recipe_media import Media
from qeff_zoo.runtime.text.chat_template import special_tokens
from qeff_zoo.runtime.text.tokenizer import Tokenizer

#: Suffixes of config fields with a token, and with several.
FIELDS = "_id", "_index"
_LISTS = "_ids"
#: Suffix of the names of special tokens.
_SPECIAL = "_token"


@dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """Texts and tokens that a checkpoint's processor writes into prompts.

    Args:
        special: Special tokens by name.
        renamed: Tokens of the checkpoint's processor that replace those of its class.
        image_token: Text for an image in a prompt; empty for that of the recipe.
        opening: Text that every prompt begins with.
        opening_follows_images: Whether that text follows the images at the beginning of a prompt.
        adds_special_tokens: Whether prompts get the tokenizer's special tokens.
        chats_like_prompts: Whether rendered chats get them, too.
        numbered: Names of the tokens around the number of each image; empty without numbers.
        layout: Settings that the layout of an image's placeholder tokens depends on.
    """

    special: Mapping[str, str]
    renamed: Mapping[str, str]
    image_token: str
    opening: str
    opening_follows_images: bool
    adds_special_tokens: bool
    chats_like_prompts: bool
    numbered: Sequence[str]
    layout: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path, media: Media, layout: Iterable[str]) -> "PromptSettings":
        """Return the settings of a package.

        Args:
            folder: Folder of the package.
            media: Declaration of the encoder in the package's manifest.
            layout: Names of the processor settings that the layout depends on.
        """
        processor = read_json(folder / "processor_config.json")
        images = processor.get("image_processor") or read_json(folder / "preprocessor_config.json")
        # Settings that transformers' processor has built in.
        built_in = read_json(folder / PROCESSOR_SETTINGS)
        special = special_tokens(folder)
        openings = filter(None, map(special.get, media.opening))
        return cls(
            special=special,
            renamed=built_in.get("renamed_tokens", {}),
            image_token=built_in.get("image_token") or "",
            opening=built_in.get("opening") or next(openings, ""),
            opening_follows_images=bool(built_in.get("opening_follows_images")),
            adds_special_tokens=built_in.get("add_special_tokens", True),
            chats_like_prompts=bool(built_in.keys() - {"feature_extractor"}),
            numbered=getattr(media, "numbered", ()) if images.get("use_image_id", True) else (),
            layout={name: processor[name] for name in layout if name in processor},
        )


class TokenNames:
    """Token ids of the names in a recipe: fields of the config, special tokens, or texts.

    Args:
        config: Config of the model.
        tokenizer: Tokenizer of the package, if it has one.
        settings: Settings of prompts, with special and renamed tokens.
        nouns: Images, or recordings: what the tokens stand for, for errors.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        tokenizer: Tokenizer | None,
        settings: PromptSettings,
        nouns: str,
    ) -> None:
        self.tokenizer, self.settings, self.nouns = tokenizer, settings, nouns
        self._config = config

    def token_id(self, field: str) -> int:
        """Return the id of a token in the config; older configs have an `_index` field.

        Raises:
            GenerationError: The config has neither field.
        """
        token = token_of(self._config, field)
        if token is None:
            raise GenerationError(
                f"config.json of the package has no {field!r}; expected the id of a token, by which {self.nouns} are "
                "written. Add it to the checkpoint's config.json, and build again."
            )
        return token

    def tokens_of(self, *names: int | str) -> list[int]:
        """Return the tokens of names in a recipe, and of ids; texts have none without a tokenizer.

        Raises:
            GenerationError: The config or the tokenizer's settings lack a name.
        """
        return [token for name in names for token in self._tokens_of(name)]

    def _tokens_of(self, name: int | str) -> list[int]:
        if isinstance(name, int):
            return [name]
        if name.endswith(FIELDS):
            return [self.token_id(name)]
        text = self._renamed(name)
        if text.endswith(_SPECIAL) and self.tokenizer is not None:
            text = self.special_token(text)
        field, _, index = text.rpartition(".")
        if field.endswith(_LISTS):
            return [self._token_in_list(field, index)]
        if self.tokenizer is None:
            return []
        tokens, whole = self.encode(text), self.tokenizer.token_id(text)
        # A token that is not special may be split differently when it stands alone.
        return tokens if len(tokens) == 1 or whole is None else [whole]

    def _token_in_list(self, field: str, index: str) -> int:
        """Return the id of a token in a list of the config."""
        ids = self._config.get(field)
        number = int(index) if index.isdecimal() else -1
        if not isinstance(ids, Sequence) or not 0 <= number < len(ids):
            raise GenerationError(
                f"config.json of the package has {field!r} {ids!r}; expected a list with an id at place {index}, by "
                f"which {self.nouns} are written. Add it to the checkpoint's config.json, and build again."
            )
        return int(ids[number])

    def _renamed(self, text: str) -> str:
        """Return the text that replaces a token of the processor's class, or one of its numbered tokens: "TILE_2"."""
        renamed = self.settings.renamed
        stem, _, number = text.rpartition("_")
        if number.isdecimal() and stem in renamed:
            return f"{renamed[stem]}_{number}"
        return renamed.get(text, text)

    def special_token(self, name: str) -> str:
        """Return the text of a special token.

        Raises:
            GenerationError: The tokenizer's settings have no such token.
        """
        special = self.settings.special
        if name not in special:
            raise GenerationError(
                f"tokenizer_config.json of the package has no {name!r}; expected the token that is written for "
                f"{self.nouns}. Add it to the checkpoint's file, as a special token of the model, and build again."
            )
        return special[name]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text alone, without special tokens."""
        assert self.tokenizer is not None
        return self.tokenizer.encode(text, special_tokens=False) if text else []

    def shown(self, token: int) -> str | int:
        """Return the text of a token, for errors; its id without a tokenizer."""
        return self.tokenizer.piece(token).strip() if self.tokenizer else token

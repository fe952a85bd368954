# SPDX-License-Identifier: Apache-2.0
"""Tokens of images or audio in a prompt: markers, and the placeholder tokens that they expand to."""

from collections.abc import Callable, Sequence

from qeff_zoo.errors import GenerationError
from qeff_zoo.recipe_media import Media
from qeff_zoo.runtime.caches.feature_cache import Reader
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded, MultimodalSpans, arrange
from qeff_zoo.tasks.multimodal.prompt_settings import FIELDS, TokenNames


class MediaTokens:
    """Markers and placeholder tokens of a package's prompts.

    A prompt has one marker for each image or audio input, which expands to a placeholder token for each of its features
    and the tokens around these.

    Args:
        names: Tokens of the names in the recipe.
        media: Declaration of the encoder in the package's manifest.
        reader: Encoder of the images or audio.
        argument: Argument of requests for them.
        around: Ids of further tokens that are replaced by features.
    """

    def __init__(
        self,
        names: TokenNames,
        media: Media,
        reader: Reader,
        argument: str,
        around: Sequence[int] = (),
    ) -> None:
        self._names, self._media, self._layout = names, media, reader.layout
        #: Placeholder token of a feature.
        self.placeholder = names.token_id(media.token)
        #: All tokens that are replaced by features.
        self.placeholders = {self.placeholder, *around}
        #: Further tokens of an image, which attend bidirectionally to its image tokens.
        self.among = {names.token_id(name) for name in media.among}
        #: Token before each marker, by which the model finds it.
        self._begun = [names.token_id(media.begun)] if media.begun else []
        self._argument = argument
        #: Token that marks a whole image or audio input in a prompt before expansion, and the text of a marker that
        #: is not a token.
        self.marker, self.mark = self._marker(media.marker or media.token)
        #: Markers by argument of a request.
        self.markers = {argument: self.marker}

    def _marker(self, named: str) -> tuple[int, str]:
        """Return the token of a marker, and its text if that is not a token.

        Args:
            named: Field of the config, or a text; a text of the checkpoint's processor overrides it.
        """
        tokenizer = self._names.tokenizer
        own = self._names.settings.image_token if self._argument == "images" else ""
        text = own or ("" if named.endswith(FIELDS) else named)
        token = tokenizer.token_id(text) if own and tokenizer else None
        if token is not None:
            return token, ""
        return (self.placeholder, text) if text else (self._names.token_id(named), "")

    def add(self, argument: str, token: int) -> None:
        """Add another input of prompts, whose marker and placeholder are the same token."""
        self.placeholders |= {token}
        self.markers[argument] = token

    @property
    def own(self) -> set[int]:
        """Tokens that stand for features, or attend as those do."""
        return self.placeholders | self.among

    def place(self, argument: str) -> list[int]:
        """Return the tokens that a chat template writes for an image or audio input, by argument of `markers`."""
        begun = self._begun if argument == self._argument else ()
        return [*begun, self.markers[argument]]

    def begun(self, run: Sequence[int]) -> list[int]:
        """Return the tokens of an input, after those that a chat template has to write before them."""
        return [*self._begun, *run]

    def run_of(self, encoded: Encoded) -> list[int]:
        """Return the placeholder tokens of an image or audio input, and those around them if there is a tokenizer."""
        tokens_of, settings = self._names.tokens_of, self._names.settings.layout
        run = tokens_of(*self._media.before)
        for part in self._layout.write(encoded.grid, encoded.rows, **settings):
            run += [self.placeholder] * part if isinstance(part, int) else tokens_of(part)
        return run + tokens_of(*self._media.after)

    def expanded(
        self,
        tokens: Sequence[int],
        parts: Sequence[Encoded],
        run_of: Callable[[Encoded], list[int]],
    ) -> list[int]:
        """Expand the marker of each image or audio input into placeholder tokens and the tokens around them.

        Args:
            tokens: Token ids of the prompt.
            parts: Encoded images or audio in the order of the prompt.
            run_of: A function that returns the tokens of each.

        Raises:
            GenerationError: If the prompt has other markers than these, or tokens that only an expansion has.
        """
        if len(self.markers) == 1:  # else they were counted already
            self.check_count(tokens, self.marker, len(parts))
        self._check_begun(tokens)
        markers = {*self.markers.values()}
        if taken := (self.own - {*markers, self.placeholder}) & {*tokens}:
            raise GenerationError(
                f"The prompt has the tokens {sorted(taken)}, which stand around {self._names.nouns}; expected them to "
                "be written by this package alone. Leave them out."
            )
        left, number, whole = iter(parts), 0, list[int]()
        for token in tokens:
            if token in markers:
                part = next(left)
                run = self._number(number) * part.numbered + run_of(part)
                # A shared token ends an image and begins the next.
                whole += run[1:] if self._layout.joined and whole[-1:] == run[:1] else run
                number += part.numbered
            else:
                whole.append(token)
        return whole

    def _number(self, number: int) -> list[int]:
        """Return the tokens with the number of preceding images or audio inputs, for processors that write them."""
        if not (around := self._names.settings.numbered):
            return []
        begin, end = around
        return self._names.tokens_of(begin, str(number), end)

    def check_count(
        self, tokens: Sequence[int], marker: int, parts: int, nouns: str | None = None
    ) -> None:
        """Check that a prompt has as many markers as inputs.

        Args:
            tokens: Token ids of the prompt.
            marker: Token of the marker.
            parts: Number of inputs.
            nouns: Kind of the inputs; None for that of the markers.

        Raises:
            GenerationError: If the numbers differ.
        """
        count = sum(token == marker for token in tokens)
        self.check_places(count, self.mark or self._names.shown(marker), parts, nouns)

    def check_places(
        self, count: int, shown: str | int, parts: int, nouns: str | None = None
    ) -> None:
        """As `check_count`, for markers that were counted in the text; `shown` is the text of one."""
        nouns = nouns or self._names.nouns
        if count != parts:
            raise GenerationError(
                f"The prompt has {count} places for {nouns}, and there are {parts} {nouns}; expected as many of both. "
                f"Write {shown!r} where each belongs, or use the chat template (--chat), which writes it, so that a "
                "message's text needs none."
            )

    def _check_begun(self, tokens: Sequence[int]) -> None:
        """Check that each marker has the required token before it, if the model requires any."""
        before = {tokens[at - 1] for at, token in enumerate(tokens) if at and token == self.marker}
        if not self._begun or (before <= {*self._begun} and tokens[0] != self.marker):
            return
        begin = self._names.shown(self._begun[0])
        raise GenerationError(
            f"The prompt has a place for {self._names.nouns} without {begin!r} before it, by which the model finds it; "
            "expected that before each. Write it, and what ends it, or use the chat template (--chat), which does."
        )

    def spans(
        self, tokens: Sequence[int], parts: Sequence[Encoded], prompt: int | None = None
    ) -> MultimodalSpans | None:
        """Return encoded images or audio with their positions in a prompt.

        Args:
            tokens: Token ids with expanded placeholders.
            parts: Encoded images or audio in the order of the prompt.
            prompt: Number of tokens in the prompt; by default it ends with the last image.
        """
        return arrange(
            tokens,
            self.placeholders,
            parts,
            axes=self._media.axes,
            whole=self._media.whole,
            prompt=prompt,
            among=self.among,
        )

# SPDX-License-Identifier: Apache-2.0
"""An any-to-any package as a session: pictures, sounds and prompts in, generated text and metrics out."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.media.steps import Steps
from qeff_zoo.multimodal.manifest import audio_of, entry_of
from qeff_zoo.runtime.answers import Request
from qeff_zoo.runtime.audio_encoder import BESIDE, Hearing, SoundPreparer
from qeff_zoo.runtime.feature_cache import Reader
from qeff_zoo.runtime.image_text_to_text import ImageTextToTextSession
from qeff_zoo.runtime.media_text import FEATURE_CACHE_BYTES, Prepared, listed
from qeff_zoo.runtime.multimodal_spans import Encoded
from qeff_zoo.runtime.program import Program
from qeff_zoo.runtime.prompts import Prompt
from qeff_zoo.tasks import ANY_TO_ANY

_ROWS = "audio_embeds"


class AnyToAnySession(ImageTextToTextSession):
    """An opened package of the task `any-to-any`.

    Args:
        folder: The package.
        program: Its language model, opened.
        audio: Its encoder of sounds, opened.
        chosen: What the package's recipe says: `images` and `sounds` of the manifest's `spec.task`.
        feature_cache_bytes: Memory for what was read of pictures, and as much for what was read of sounds.
        **more: As of `ImageTextToTextSession`.

    Raises:
        GenerationError: Another task's package, or the KV cache does not fit into memory.

    Example:
        >>> session = qeff_zoo.load("packages/qwen2.5-omni")  # doctest: +SKIP
        >>> seen = {"images": ["a.png"], "audio": ["b.wav"]}
        >>> session.generate("Is that it?", **seen, chat=True)  # doctest: +SKIP
    """

    task = ANY_TO_ANY

    def __init__(
        self,
        folder: Path,
        program: Program,
        *,
        audio: Program,
        chosen: Mapping[str, Any],
        feature_cache_bytes: int = FEATURE_CACHE_BYTES,
        **more: Any,
    ) -> None:
        super().__init__(
            folder, program, chosen=chosen, feature_cache_bytes=feature_cache_bytes, **more
        )
        #: Declaration of the audio input.
        self.audio = audio_of(chosen["sounds"])
        encoder = self.audio.encoder()
        self.hearing: Hearing = encoder(audio, self.config, feature_cache_bytes, self.audio)
        self._prepare_sound = SoundPreparer(self.hearing)
        #: The token that stands for a row of a sound.
        self._heard = self._id(self.audio.token)
        self.placeholders |= {self._heard}
        self.markers["audio"] = self._heard
        if self.audio.spaced:
            self.spaced[self._heard] = self.audio.spaced

    @property
    def takes(self) -> tuple[str, ...]:
        """Arguments of a request beside its prompt."""
        return (*super().takes, "audio")

    @property
    def of_media(self) -> dict[str, Any]:
        """What the recipe says of pictures, and of sounds."""
        return {**super().of_media, "audio": entry_of(self.audio)}

    @property
    def readers(self) -> tuple[Reader, ...]:
        """What reads pictures, and what reads sounds."""
        return (self.reader, self.hearing)

    def prepare_sound(self, given: Any) -> Any:
        """Make the arrays of a sound that the encoder takes, as `SoundPreparer` does."""
        return self._prepare_sound(given, self.folder)

    def encoding(self, argument: str, given: Sequence[Any]) -> list[Steps[Encoded]]:
        """As of `MediaTextSession`."""
        if argument == "audio":
            return [self._prepare_sound.encoding(one, self.folder) for one in given]
        return super().encoding(argument, given)

    def request(
        self,
        prompt: Prompt,
        *,
        chat: bool = False,
        audio: Sequence[Any] = (),
        **choices: Any,
    ) -> Request:
        """As of `ImageTextToTextSession`; sounds, too, in the prompt's order.

        With `chat`, pictures come first, then videos, then sounds, then the text.
        """
        audio = listed(audio)
        if not (chat and audio and isinstance(prompt, str)):
            heard = [self.prepare_sound(one) for one in audio]
            return super().request(prompt, chat=chat, audio=heard, **choices)
        brought = {kind: listed(choices.get(f"{kind}s", ())) for kind in ("image", "video")}
        kinds = [kind for kind, some in {**brought, "audio": audio}.items() for _ in some]
        made = self.request(self._message(kinds, prompt), audio=audio, **choices)
        return replace(made, text=prompt)

    def request_of(
        self,
        tokens: Sequence[int],
        prepared: Sequence[Prepared],
        *,
        audio: Sequence[Prepared] = (),
        **choices: Any,
    ) -> Request:
        """As of `MediaTextSession`, of pictures and of sounds, each in the prompt's order."""
        sound = self.markers["audio"]
        self._check_count(tokens, self.marker, len(prepared))
        self._check_count(tokens, sound, len(audio), "sounds")
        left = {self.marker: iter(prepared), sound: iter(audio)}
        both = [next(left[token]) for token in tokens if token in left]
        return super().request_of(tokens, both, **choices)

    def look(self, prepared: Sequence[Prepared | Encoded]) -> list[Encoded]:
        """Return what the pictures and sounds of a prompt are to the language model."""
        beside = not all(map(self._is_sound, prepared))
        return [
            self._listen(one, beside=beside)
            if self._is_sound(one)
            else super(AnyToAnySession, self).look([one])[0]
            for one in prepared
        ]

    def _is_sound(self, one: Prepared | Encoded) -> bool:
        return one.kind == "sounds" if isinstance(one, Encoded) else self.hearing.name in one

    def _listen(self, prepared: Prepared | Encoded, *, beside: bool) -> Encoded:
        """Return a sound's rows as the language model takes those of pictures; nothing is added to its states.

        Args:
            prepared: The sound, or what the encoder made of it.
            beside: Whether the prompt has pictures, too, where some models read a sound otherwise.
        """
        heard = prepared if isinstance(prepared, Encoded) else self.hearing.look(prepared)
        digest, rows = heard.digest, heard.features[_ROWS]
        if beside and (other := f"{BESIDE}{_ROWS}") in heard.features:
            rows = heard.features[other]
            digest = hashlib.blake2b(BESIDE.encode() + digest, digest_size=32).digest()
        first, *added = self.decoder.feature_names
        features = {first: rows, **{name: np.zeros_like(rows) for name in added}}
        return replace(heard, digest=digest, features=features)

    def run_of(self, encoded: Encoded) -> list[int]:
        """Return the tokens that a picture or sound takes in a prompt."""
        if encoded.kind == "pictures":
            return super().run_of(encoded)
        before, after = map(self._all_named, (self.audio.before, self.audio.after))
        return [*before, *[self._heard] * encoded.rows, *after]

    def run_begun(self, encoded: Encoded) -> list[int]:
        """As of `MediaTextSession`."""
        return super().run_begun(encoded) if encoded.kind == "pictures" else self.run_of(encoded)

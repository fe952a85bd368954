# SPDX-License-Identifier: Apache-2.0
"""Session of an any-to-any package: images, audio and prompts in, generated text and metrics out."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.contract import ANY_TO_ANY
from qeff_zoo.media.steps import Steps
from qeff_zoo.multimodal.encoding.audio_encoder import BESIDE, AudioPreparer, AudioReader
from qeff_zoo.multimodal.encoding.prepared import Prepared
from qeff_zoo.multimodal.manifest import audio_of, entry_of
from qeff_zoo.runtime.caches.feature_cache import Reader
from qeff_zoo.runtime.decoding.call_inputs import feature_names
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
from qeff_zoo.runtime.engine.answers import Request
from qeff_zoo.runtime.engine.prompts import Prompt, options_of
from qeff_zoo.runtime.program import Program
from qeff_zoo.runtime.text.chat_template import ChatOptions
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.tasks.multimodal.session import FEATURE_CACHE_BYTES, listed

_ROWS = "audio_embeds"


class AnyToAnySession(ImageTextToTextSession):
    """Open package of the task `any-to-any`.

    Args:
        folder: Folder of the package.
        program: Language model, opened.
        audio: Audio encoder, opened.
        chosen: Settings of the package's recipe: `images` and `audio` of the manifest's `spec.task`.
        feature_cache_bytes: Memory for the features of images, and as much for those of audio.
        **more: Arguments of `ImageTextToTextSession`.

    Raises:
        GenerationError: If the package is of another task, or the KV cache does not fit into memory.

    Example:
        >>> session = qeff_zoo.load("packages/qwen2.5-omni")  # doctest: +SKIP
        >>> media = {"images": ["a.png"], "audio": ["b.wav"]}
        >>> session.generate("Is that it?", **media, chat=True)  # doctest: +SKIP
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
        self.audio = audio_of(chosen["audio"])
        encoder = self.audio.encoder()
        self.audio_reader: AudioReader = encoder(
            audio, self.config, feature_cache_bytes, self.audio
        )
        self._prepare_audio = AudioPreparer(self.audio_reader)
        #: Placeholder token of audio features.
        self._audio_token = self.names.token_id(self.audio.token)
        self.media_tokens.add("audio", self._audio_token)
        if self.audio.spaced:
            self.prompt_text.spaced[self._audio_token] = self.audio.spaced

    @property
    def takes(self) -> tuple[str, ...]:
        """Arguments of a request besides its prompt."""
        return (*super().takes, "audio")

    @property
    def of_media(self) -> dict[str, Any]:
        """Recipe settings of images and of audio."""
        return {**super().of_media, "audio": entry_of(self.audio)}

    @property
    def readers(self) -> tuple[Reader, ...]:
        """Image encoder and audio encoder."""
        return (self.reader, self.audio_reader)

    def prepare_audio(self, given: Any) -> Any:
        """Return the encoder inputs of an audio input, see `SoundPreparer`."""
        return self._prepare_audio(given, self.folder)

    def encoding(self, argument: str, given: Sequence[Any]) -> list[Steps[Encoded]]:
        """See `MediaTextSession`."""
        if argument == "audio":
            return [self._prepare_audio.encoding(one, self.folder) for one in given]
        return super().encoding(argument, given)

    def request(
        self,
        prompt: Prompt,
        *,
        chat: bool | ChatOptions = False,
        audio: Sequence[Any] = (),
        **choices: Any,
    ) -> Request:
        """See `ImageTextToTextSession`, with audio in the prompt's order.

        With `chat`, images come first, then videos, then audio, then the text.
        """
        audio = listed(audio)
        if not (chat and audio and isinstance(prompt, str)):
            encoded_audio = [self.prepare_audio(one) for one in audio]
            return super().request(prompt, chat=chat, audio=encoded_audio, **choices)
        brought = {kind: listed(choices.get(f"{kind}s", ())) for kind in ("image", "video")}
        kinds = [kind for kind, some in {**brought, "audio": audio}.items() for _ in some]
        created = self.request(
            self._message(kinds, prompt, options_of(chat)), audio=audio, **choices
        )
        return replace(created, text=prompt)

    def request_of(
        self,
        tokens: Sequence[int],
        prepared: Sequence[Prepared],
        *,
        audio: Sequence[Prepared] = (),
        **choices: Any,
    ) -> Request:
        """See `MediaTextSession`, with images and audio, each in the prompt's order."""
        marker, audio_token = self.media_tokens.marker, self._audio_token
        self.media_tokens.check_count(tokens, marker, len(prepared))
        self.media_tokens.check_count(tokens, audio_token, len(audio), "recordings")
        left = {marker: iter(prepared), audio_token: iter(audio)}
        both = [next(left[token]) for token in tokens if token in left]
        return super().request_of(tokens, both, **choices)

    def look(self, prepared: Sequence[Prepared | Encoded]) -> list[Encoded]:
        """Return the encoded images and audio of a prompt."""
        beside = not all(map(self._is_audio, prepared))
        return [
            self._listen(one, beside=beside)
            if self._is_audio(one)
            else super(AnyToAnySession, self).look([one])[0]
            for one in prepared
        ]

    def _is_audio(self, one: Prepared | Encoded) -> bool:
        return one.kind == "audio" if isinstance(one, Encoded) else self.audio_reader.name in one

    def _listen(self, prepared: Prepared | Encoded, *, beside: bool) -> Encoded:
        """Return audio features in the form of image features; features that are added to layers are zero.

        Args:
            prepared: Encoder inputs of the audio, or its features.
            beside: Whether the prompt has images, too, for which some models encode audio differently.
        """
        encoded_audio = (
            prepared if isinstance(prepared, Encoded) else self.audio_reader.look(prepared)
        )
        digest, rows = encoded_audio.digest, encoded_audio.features[_ROWS]
        if beside and (other := f"{BESIDE}{_ROWS}") in encoded_audio.features:
            rows = encoded_audio.features[other]
            digest = hashlib.blake2b(BESIDE.encode() + digest, digest_size=32).digest()
        first, *added = feature_names(self.decoder.program)
        features = {first: rows, **{name: np.zeros_like(rows) for name in added}}
        return replace(encoded_audio, digest=digest, features=features)

    def run_of(self, encoded: Encoded) -> list[int]:
        """Return the placeholder tokens of an image or audio input in a prompt."""
        if encoded.kind == "images":
            return super().run_of(encoded)
        run = [self._audio_token] * encoded.rows
        return self.names.tokens_of(*self.audio.before, *run, *self.audio.after)

    def run_begun(self, encoded: Encoded) -> list[int]:
        """See `MediaTextSession`."""
        return super().run_begun(encoded) if encoded.kind == "images" else self.run_of(encoded)

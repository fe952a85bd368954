# SPDX-License-Identifier: Apache-2.0
"""Session of an audio-text-to-text package: audio and prompts in, generated text and metrics out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.config import model_config
from qeff_zoo.contract import AUDIO_TEXT_TO_TEXT
from qeff_zoo.media.steps import Steps
from qeff_zoo.multimodal.encoding.audio_encoder import AudioPreparer, AudioReader
from qeff_zoo.multimodal.manifest import audio_of, entry_of
from qeff_zoo.package.files import read_json
from qeff_zoo.recipe_media import AudioEncoder
from qeff_zoo.runtime.caches.prefix_cache import PrefixCacheOptions
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded
from qeff_zoo.runtime.program import Program
from qeff_zoo.runtime.text.chat_template import USUAL_CHAT, ChatOptions, Message
from qeff_zoo.tasks.multimodal.session import FEATURE_CACHE_BYTES, USUAL, MediaTextSession


class AudioTextToTextSession(MediaTextSession):
    """Open package of the task `audio-text-to-text`.

    Args:
        folder: Folder of the package.
        program: Language model, opened.
        audio: Audio encoder, opened.
        chosen: Recipe settings of audio: `audio` of the manifest's `spec.task`.
        prefixes: Options of the prefix cache, as in `TextGenerationSession`.
        feature_cache_bytes: Memory for audio features, so that a second question needs no encoding.

    Raises:
        GenerationError: If the package is of another task, or the KV cache does not fit into memory.

    Example:
        >>> session = qeff_zoo.load("packages/qwen2-audio")  # doctest: +SKIP
        >>> session.generate("Transcribe this.", audio=["speech.wav"], chat=True)  # doctest: +SKIP
    """

    task = AUDIO_TEXT_TO_TEXT
    part, argument = "audio", "audio"
    reader: AudioReader
    media: AudioEncoder

    def __init__(
        self,
        folder: Path,
        program: Program,
        *,
        audio: Program,
        chosen: Mapping[str, Any],
        prefixes: PrefixCacheOptions = USUAL,
        feature_cache_bytes: int = FEATURE_CACHE_BYTES,
    ) -> None:
        media = audio_of(chosen["audio"])
        config = model_config(read_json(folder / "config.json"))
        reader = media.encoder()(audio, config, feature_cache_bytes, media)
        super().__init__(folder, program, reader=reader, media=media, prefixes=prefixes)
        self._prepare = AudioPreparer(reader)

    def _entry(self) -> Mapping[str, Any]:
        return entry_of(self.media)

    def _rendered(self, messages: Sequence[Message], options: ChatOptions = USUAL_CHAT) -> str:
        """Render messages; the parts of each are concatenated if the chat template supports text alone."""
        if self.media.text_messages and self.tokenizer is not None:
            marker = self.tokenizer.piece(self.media_tokens.marker).strip()
            messages = [
                {
                    **message,
                    "content": "".join(part.get("text", marker) for part in message["content"]),
                }
                if isinstance(message.get("content"), list)
                else message
                for message in messages
            ]
        return super()._rendered(messages, options)

    def encoding(self, argument: str, given: Sequence[Any]) -> list[Steps[Encoded]]:
        """See `MediaTextSession`."""
        return [self._prepare.encoding(one, self.folder) for one in given]

    def prepare(self, given: Any) -> Any:
        """Return the encoder inputs of an audio input, see `SoundPreparer`."""
        return self._prepare(given, self.folder)

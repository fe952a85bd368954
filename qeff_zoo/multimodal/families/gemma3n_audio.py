# SPDX-License-Identifier: Apache-2.0
"""Audio of Gemma 3n: chunks, with the same number of audio tokens per recording, inserted as image features."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.families.audio_chunks import AudioChunks


@dataclass(frozen=True, kw_only=True)
class Gemma3nAudio(AudioChunks):
    """Audio in chunks, padded to `audio_soft_tokens_per_image` audio tokens."""

    spaced: ClassVar[str] = "\n\n{}\n\n"
    rows: ClassVar[str] = "audio_soft_tokens_per_image"
    separate: ClassVar[bool] = True
    taken_as: ClassVar[str] = "image"

    mask: str = "input_features_mask"
    before: tuple[int | str, ...] = ("boa_token_id",)
    after: tuple[int | str, ...] = ("eoa_token_id",)
    chunk: str = "conf_attention_chunk_size"

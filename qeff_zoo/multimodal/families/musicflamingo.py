# SPDX-License-Identifier: Apache-2.0
"""Audio of Music Flamingo: windows with rotary embedding by time in the recording."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.families.audio_windows import AudioWindows


@dataclass(frozen=True, kw_only=True)
class MusicFlamingoAudio(AudioWindows):
    """Audio in windows with times."""

    times: ClassVar[str] = "_build_audio_timestamps"

# SPDX-License-Identifier: Apache-2.0
"""Audio of Voxtral: windows, whose features are computed over the whole recording."""

from dataclasses import dataclass
from typing import ClassVar

from qeff_zoo.multimodal.families.audio_windows import AudioWindows


@dataclass(frozen=True, kw_only=True)
class VoxtralAudio(AudioWindows):
    """Audio in windows, computed at once."""

    joined: ClassVar[bool] = True

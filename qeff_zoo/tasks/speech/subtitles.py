# SPDX-License-Identifier: Apache-2.0
"""Subtitles of a transcription: SubRip (srt) or WebVTT (vtt)."""

from collections.abc import Iterable

from qeff_zoo.tasks.speech.speech_results import TimedText


def srt(parts: Iterable[TimedText]) -> str:
    """Return subtitles in the format of video players.

    Args:
        parts: Timed texts in order.
    """
    return "".join(
        f"{number}\n{_clock(part.start, ',')} --> {_clock(part.end, ',')}\n{_line(part.text)}\n\n"
        for number, part in enumerate(parts, 1)
    )


def vtt(parts: Iterable[TimedText]) -> str:
    """Return subtitles in the format of browsers.

    Args:
        parts: Timed texts in order.
    """
    cues = (
        f"{_clock(part.start, '.')} --> {_clock(part.end, '.')}\n{_line(part.text)}\n\n"
        for part in parts
    )
    return "WEBVTT\n\n" + "".join(cues)


def _clock(seconds: float, mark: str) -> str:
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{mark}{thousandths:03}"


def _line(text: str) -> str:
    """Remove text that would end a subtitle or its time line."""
    return " ".join(text.split()).replace("-->", "->")

# SPDX-License-Identifier: Apache-2.0
"""Frames of samples, their power spectra, and mel filters, as feature extractors compute them."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

#: Kaldi's constants: samples in a frame, from one frame to the next, and in a spectrum.
WIDTH, HOP, SIZE = 400, 160, 512
_FLOOR = 1.192092955078125e-07  # minimum energy
_HIGHEST = 8000.0  # hertz, of Whisper's filters


def frames_of(samples: Array, width: int, hop: int) -> Array:
    """Cut samples into overlapping frames, (frames, width)."""
    if len(samples) < width:
        return np.zeros((0, width))
    return np.lib.stride_tricks.sliding_window_view(samples, width)[::hop]


def power(frames: Array, window: Array, size: int) -> Array:
    """Return the power spectra of frames, (frames, size // 2 + 1), with Hugging Face's rounding."""
    spectra = np.fft.rfft(frames * window, n=size, axis=1).astype(np.complex64)
    powers: Array = np.abs(spectra, dtype=np.float64) ** 2
    return powers


@lru_cache
def kaldi_filters(bins: int, size: int, rate: int, low: float, high: float) -> Array:
    """Return Kaldi's mel filters, (size // 2 + 1, bins): triangles in mel, not in hertz."""

    def mel(hertz: Any) -> Array:
        return np.asarray(1127.0 * np.log(1.0 + hertz / 700.0))

    edges = np.linspace(mel(low), mel(high), bins + 2)
    return _triangles(edges, mel((rate / size) * np.arange(size // 2 + 1)))


@lru_cache
def slaney_filters(bins: int, size: int, rate: int) -> Array:
    """Return mel filters of Slaney's toolbox, (size // 2 + 1, bins): triangles in hertz, of equal areas."""
    knee, step = 15.0, 27.0 / np.log(6.4)  # mels at 1,000 Hz; the scale is logarithmic above

    def hertz(mel: Array) -> Array:
        return np.where(mel < knee, 200.0 / 3 * mel, 1000.0 * np.exp((mel - knee) / step))

    edges = hertz(np.linspace(0.0, knee + step * np.log(_HIGHEST / 1000.0), bins + 2))
    filters = _triangles(edges, np.linspace(0, rate // 2, size // 2 + 1))
    scaled: Array = filters * (2.0 / (edges[2:] - edges[:-2]))
    return scaled


@lru_cache
def htk_filters(
    bins: int, size: int, rate: int, low: float = 0.0, high: float | None = None
) -> Array:
    """Return mel filters by HTK's scale, (size // 2 + 1, bins): triangles in hertz, of equal heights."""
    limits = (low, rate // 2 if high is None else high)
    least, most = (2595.0 * np.log10(1.0 + limit / 700.0) for limit in limits)
    edges = 700.0 * (10.0 ** (np.linspace(least, most, bins + 2) / 2595.0) - 1.0)
    return _triangles(edges, np.linspace(0, rate // 2, size // 2 + 1))


def _triangles(edges: Array, frequencies: Array) -> Array:
    """Return triangular filters between neighboring edges, (frequencies, filters)."""
    widths = np.diff(edges)
    slopes = edges[None, :] - frequencies[:, None]
    falling, rising = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    filters: Array = np.maximum(0, np.minimum(falling, rising))
    return filters


def reflected(samples: Array, start: int, stop: int) -> Array:
    """Return samples from one position to another, reflected beyond both ends."""
    before, behind = max(0, -start), max(0, stop - len(samples))
    if not before and not behind:
        return samples[start:stop]
    reach = max(before, behind) + 1  # samples that are reflected
    first = max(0, min(start, len(samples) - reach))
    last = min(len(samples), max(stop, reach))
    around = np.pad(samples[first:last], (before, behind), mode="reflect")
    at = start - first + before
    return around[at : at + stop - start]


def kaldi_logs(settings: Mapping[str, Any]) -> Callable[[Array], Array]:
    """Return the function that computes Kaldi's log-mel features, (frames, bins), without normalization."""
    bins, rate = int(settings.get("num_mel_bins", 80)), int(settings.get("sampling_rate", 16_000))
    window = np.hanning(WIDTH) ** 0.85  # Povey's
    filters = kaldi_filters(bins, SIZE, rate, 20.0, rate // 2)

    def compute(samples: Array) -> Array:
        # In the range of 16-bit integers, as Kaldi reads samples.
        whole = np.asarray(samples, np.float32) * (2**15)
        frames = frames_of(whole.astype(np.float64), WIDTH, HOP)
        frames = frames - frames.mean(axis=1, keepdims=True)
        frames[:, 1:] -= 0.97 * frames[:, :-1]
        frames[:, 0] *= 1 - 0.97
        mel = np.maximum(_FLOOR, (filters.T @ power(frames, window, SIZE).T).T)
        logs: Array = np.log(mel).astype(np.float32)
        return logs

    return compute

# SPDX-License-Identifier: Apache-2.0
"""Audio feature extraction, as Hugging Face's feature extractors compute it, by numpy alone.

Settings of a package's preprocessor_config.json go in. A `Features` comes out, which is called with samples.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qeff_zoo.checkpoint.files import PROCESSOR_SETTINGS
from qeff_zoo.errors import MediaError, PackageError
from qeff_zoo.media.spectra import (
    HOP,
    SIZE,
    WIDTH,
    frames_of,
    htk_filters,
    kaldi_filters,
    kaldi_logs,
    reflected,
    slaney_filters,
)
from qeff_zoo.media.steps import Steps, finished
from qeff_zoo.package.files import read_json

from . import audio_chunking, dither

Array: TypeAlias = NDArray[Any]

_EPSILON, _RATE = 1e-7, 16_000
_BLOCK = 3000  # frames computed at once
_GEMMA = 480_000  # maximum samples of Gemma 3n and 4
#: Default settings of Gemma 3n; and the multiple of samples to which silence pads a recording.
_GEMMA3N = {
    "frame_length_ms": 32.0, "min_frequency": 125.0, "max_frequency": 7600.0, "preemphasis": 0.97,
    "fft_overdrive": True, "mel_floor": 1e-5,
}  # fmt: skip
_WHOLE = 128


@dataclass(frozen=True, kw_only=True)
class Features:
    """Feature extractor: how audio becomes the input of a model.

    Args:
        name: Name of the input.
        rate: Sampling rate in hertz.
        compute: A function of samples that returns (inputs,) or (inputs, bins), float32.
        step: Number of samples from one input to the next.
        least: Number of samples that the first input takes.
        most: Number of samples to which a recording is padded or cut by default; 0 for the whole recording.
        cut: A function that splits the samples of a recording into pieces, each of which is processed separately.
        in_steps: A function like `compute` that works in steps; None if `compute` takes one step.
    """

    name: str
    rate: int
    compute: Callable[[Array], Array]
    step: int = 1
    least: int = 1
    most: int = 0
    cut: Callable[[Array], list[Array]] = field(default=lambda samples: [samples], repr=False)
    in_steps: Callable[[Array], Steps[Array]] | None = field(default=None, repr=False)

    def computing(self, samples: Array) -> Steps[Array]:
        """Compute the inputs of a recording; a long one takes several steps."""
        if self.in_steps is None:
            return self.compute(samples)
        return (yield from self.in_steps(samples))

    def count(self, samples: int) -> int:
        """Return the number of inputs that a number of samples yields."""
        return max(0, (samples - self.least) // self.step + 1)

    def check_length(self, samples: Array, most: int) -> None:
        """Reject a recording that is too long.

        Args:
            samples: Samples of one channel.
            most: Maximum number of samples; 0 for any.

        Raises:
            MediaError: If there are more samples.
        """
        if 0 < most < len(samples):
            raise MediaError(
                f"The recording has {len(samples) / self.rate:,.1f} seconds; expected at most "
                f"{most / self.rate:,.0f}, the model's maximum. Cut it."
            )

    def samples(self, inputs: int) -> int:
        """Return the maximum number of samples that yields a number of inputs."""
        return (inputs - 1) * self.step + self.least + self.step - 1


def load_features(folder: Path) -> Features:
    """Return the feature extractor of a package or checkpoint.

    Args:
        folder: A folder with processor_settings.json that has `feature_extractor`, as builds write it; or with
            preprocessor_config.json; or with processor_config.json that has `feature_extractor` or `audio_processor`.

    Raises:
        PackageError: If the files are damaged, or the feature extractor is unknown.
    """
    if held := read_json(folder / PROCESSOR_SETTINGS).get("feature_extractor"):
        return find(held)
    settings = read_json(folder / "preprocessor_config.json")
    whole = read_json(folder / "processor_config.json")
    part = whole.get("feature_extractor") or whole.get("audio_processor", {})
    is_image = part and "feature_extractor_type" not in settings
    return find(part if is_image or not settings else settings)


def find(settings: Mapping[str, Any]) -> Features:
    """Return the feature extractor that a package's settings configure.

    Args:
        settings: The content of preprocessor_config.json; empty for plain samples.

    Raises:
        PackageError: If the feature extractor is unknown.
    """
    kind = str(settings.get("feature_extractor_type", "Wav2Vec2FeatureExtractor"))
    if kind not in KINDS:
        raise PackageError(
            f"preprocessor_config.json asks for {kind!r}; expected one of {', '.join(sorted(KINDS))}. Give the model "
            "features that were computed elsewhere."
        )
    return KINDS[kind](settings)


# --- samples -----------------------------------------------------------------------------------


def _plain(settings: Mapping[str, Any]) -> Features:
    """Raw samples, or samples normalized to mean 0 and variance 1."""
    normalizes = bool(settings.get("do_normalize", True))

    def compute(samples: Array) -> Array:
        whole = np.asarray(samples, np.float32)
        if not normalizes:
            return whole
        centred: Array = (whole - whole.mean()) / np.sqrt(whole.var() + _EPSILON)
        return centred.astype(np.float32, copy=False)

    rate = int(settings.get("sampling_rate", _RATE))
    return Features(name="input_values", rate=rate, compute=compute)


def _samples(settings: Mapping[str, Any]) -> Features:
    """Raw samples in frames that do not overlap; silence pads the last."""
    width = int(settings.get("audio_samples_per_token", 640))

    def compute(samples: Array) -> Array:
        whole = np.pad(np.asarray(samples, np.float32), (0, -len(samples) % width))
        return whole.reshape(-1, width)

    rate = int(settings.get("sampling_rate", _RATE))
    return Features(name="input_features", rate=rate, compute=compute, step=width)


# --- spectra -----------------------------------------------------------------------------------


def _kaldi(settings: Mapping[str, Any]) -> Features:
    """Kaldi's features, each bin normalized to mean 0 and variance 1, several frames concatenated."""
    stride, logs_of = int(settings.get("stride", 2)), kaldi_logs(settings)

    def compute(samples: Array) -> Array:
        logs = logs_of(samples)
        logs = (logs - logs.mean(0)) / np.sqrt(logs.var(0, ddof=1) + _EPSILON)
        count = len(logs) // stride
        beside: Array = logs[: count * stride].reshape(count, -1)
        return beside

    return Features(
        name="input_features",
        rate=int(settings.get("sampling_rate", _RATE)),
        compute=compute,
        step=HOP * stride,
        least=WIDTH + HOP * (stride - 1),
    )


def _utterance(settings: Mapping[str, Any]) -> Features:
    """Kaldi's features, each bin normalized to mean 0 and standard deviation 1 over the whole recording."""
    logs_of = kaldi_logs(settings)
    normalizes = bool(settings.get("do_ceptral_normalize", True))
    centres, scales = (
        normalizes and bool(settings.get(name, True))
        for name in ("normalize_means", "normalize_vars")
    )

    def compute(samples: Array) -> Array:
        logs = np.ascontiguousarray(logs_of(samples))  # sums depend on the order in memory
        if centres:
            logs = logs - logs.mean(axis=0)
        if scales:
            spread = logs.std(axis=0)
            logs = logs / np.where(spread > 0, spread, 1)  # silence stays unchanged
        return logs

    return Features(
        name="input_features",
        rate=int(settings.get("sampling_rate", _RATE)),
        compute=compute,
        step=HOP,
        least=WIDTH,
    )


def _whisper(settings: Mapping[str, Any]) -> Features:
    """Whisper's log-mel features, whose minimum depends on the maximum of the whole recording."""
    bins, size = int(settings.get("feature_size", 80)), int(settings.get("n_fft", 400))
    rate, hop = int(settings.get("sampling_rate", _RATE)), int(settings.get("hop_length", 160))
    window = np.hanning(size + 1)[:-1].astype(np.float32)
    filters = slaney_filters(bins, size, rate).astype(np.float32)

    def computing(samples: Array) -> Steps[Array]:
        count, whole = len(samples) // hop, np.asarray(samples, np.float32)
        logs = np.empty((count, bins), np.float32)
        for start in range(0, count, _BLOCK):  # hours of spectra do not fit into memory
            stop = min(start + _BLOCK, count)
            around = reflected(whole, start * hop - size // 2, (stop - 1) * hop - size // 2 + size)
            spectra = np.fft.rfft(frames_of(around, size, hop) * window, axis=1)
            powers = (spectra.real**2 + spectra.imag**2).astype(np.float32, copy=False)
            logs[start:stop] = np.log10(np.maximum(powers @ filters, 1e-10))
            yield
        np.maximum(logs, logs.max() - 8, out=logs)
        logs += 4
        logs /= 4
        return logs

    most = rate * int(settings.get("chunk_length", 30))
    return Features(
        name="input_features",
        rate=rate,
        compute=lambda samples: finished(computing(samples)),
        step=hop,
        least=hop,
        most=most,
        in_steps=computing,
    )


def _qwen3(settings: Mapping[str, Any]) -> Features:
    """Whisper's log-mel features with more bins; silence pads short audio."""
    whisper = _whisper({"feature_size": 128, **settings})
    least = int(settings.get("min_length", _RATE // 2))

    def compute(samples: Array) -> Array:
        return whisper.compute(np.pad(samples, (0, max(0, least - len(samples)))))

    return replace(whisper, compute=compute, in_steps=None)


def _granite_logs(settings: Mapping[str, Any], bins: int) -> Callable[..., Array]:
    """Return the function that computes Granite Speech's log-mel features, whose minimum depends on their maximum.

    Args:
        settings: The content of preprocessor_config.json.
        bins: Number of mel bins.

    Returns:
        A function of samples and a number of frames, by default all, that returns (frames, bins).
    """
    rate, hop = int(settings.get("sampling_rate", _RATE)), int(settings.get("hop_length", HOP))
    loudest = float(settings.get("logmel_floor_db", 8.0))
    size, width = int(settings.get("n_fft", SIZE)), int(settings.get("win_length", WIDTH))
    window = np.zeros(size, np.float32)
    window[(size - width) // 2 :][:width] = np.hanning(width + 1)[:-1]
    filters = htk_filters(bins, size, rate).astype(np.float32)

    def compute(samples: Array, count: int | None = None) -> Array:
        around = np.pad(np.asarray(samples, np.float32), size // 2, mode="reflect")
        frames = frames_of(around, size, hop)[:count]
        logs = np.empty((len(frames), bins), np.float32)
        for start in range(0, len(frames), _BLOCK):
            spectra = np.fft.rfft(frames[start : start + _BLOCK] * window, axis=1)
            powers = (spectra.real**2 + spectra.imag**2).astype(np.float32, copy=False)
            logs[start : start + _BLOCK] = np.log10(np.maximum(powers @ filters, 1e-10))
        scaled: Array = np.maximum(logs, logs.max() - loudest) / 4 + 1
        return scaled

    return compute


def _granite(settings: Mapping[str, Any]) -> Features:
    """Granite Speech's log-mel features, two frames concatenated."""
    bins = int(settings.get("n_mels", 80))  # `feature_size` is ignored
    rate, hop = int(settings.get("sampling_rate", _RATE)), int(settings.get("hop_length", HOP))
    size, logs_of = int(settings.get("n_fft", SIZE)), _granite_logs(settings, bins)

    def compute(samples: Array) -> Array:
        logs = logs_of(samples)
        pairs: Array = logs[: len(logs) // 2 * 2].reshape(-1, 2 * bins)
        return pairs

    # The spectrum of the first frame reflects this many samples.
    return Features(
        name="input_features", rate=rate, compute=compute, step=2 * hop, least=size // 2 + 1
    )


def _granite5(settings: Mapping[str, Any]) -> Features:
    """Granite Speech 5: log-mel features and their deltas, two frames concatenated, the last one padded."""
    bins, reach = (
        int(settings.get("num_mel_bins", 80)),
        int(settings.get("delta_win_length", 3)) // 2,
    )
    rate, hop = int(settings.get("sampling_rate", _RATE)), int(settings.get("hop_length", HOP))
    logs_of, distances = _granite_logs(settings, bins), np.arange(1, reach + 1)
    slope = np.float32(2 * np.square(distances).sum())

    def compute(samples: Array) -> Array:
        count = -(-(len(samples) // hop) // 2) * 2
        lacking = max(0, (count - 1) * hop + 1 - len(samples))
        logs = logs_of(np.pad(samples, (0, lacking)), count)
        near = np.pad(logs, ((reach, reach), (0, 0)), mode="edge")
        steps = [at * (near[reach + at :][:count] - near[reach - at :][:count]) for at in distances]
        both = np.concatenate([logs, sum(steps) / slope], axis=1, dtype=np.float32)
        return both.reshape(-1, 4 * bins)

    return Features(name="input_features", rate=rate, compute=compute, step=2 * hop, least=hop)


def _nemo(settings: Mapping[str, Any]) -> Features:
    """NeMo's log-mel features, each bin normalized to mean 0 and standard deviation 1 over the whole recording."""
    bins, size = int(settings.get("feature_size", 80)), int(settings.get("n_fft", SIZE))
    rate, hop = int(settings.get("sampling_rate", _RATE)), int(settings.get("hop_length", HOP))
    width, emphasis = int(settings.get("win_length", WIDTH)), settings.get("preemphasis", 0.97)
    window = np.zeros(size, np.float32)
    window[(size - width) // 2 :][:width] = np.hanning(width)
    filters = slaney_filters(bins, size, rate).astype(np.float32)

    def compute(samples: Array) -> Array:
        whole, count = np.array(samples, np.float32), len(samples) // hop
        if emphasis is not None:
            whole[1:] -= np.float32(emphasis) * whole[:-1].copy()
        frames = frames_of(np.pad(whole, size // 2), size, hop)
        logs = np.empty((count, bins), np.float32)
        for start in range(0, count, _BLOCK):
            stop = min(start + _BLOCK, count)
            spectra = np.fft.rfft(frames[start:stop] * window, axis=1)
            powers = (spectra.real**2 + spectra.imag**2).astype(np.float32, copy=False)
            logs[start:stop] = np.log(powers @ filters + np.float32(2**-24))
        centred = logs - logs.mean(0)
        spread = np.sqrt((centred**2).sum(0) / max(1, count - 1))
        scaled: Array = centred / (spread + np.float32(1e-5))
        return scaled

    return Features(name="input_features", rate=rate, compute=compute, step=hop, least=hop)


def _cohere(settings: Mapping[str, Any]) -> Features:
    """NeMo's log-mel features with more bins and a little noise; a long recording is split at quiet places."""
    nemo = _nemo({"feature_size": 128, **settings})
    loudness = np.float32(settings.get("dither", 1e-5))

    def compute(samples: Array) -> Array:
        noise = loudness * dither.noise(len(samples), seed=len(samples)) if loudness > 0 else 0
        return nemo.compute(np.asarray(samples, np.float32) + noise)

    def samples_of(name: str, usual: float) -> int:
        return round(float(settings.get(name, usual)) * nemo.rate)

    most, search = samples_of("max_audio_clip_s", 35.0), samples_of("overlap_chunk_second", 5.0)
    window = int(settings.get("min_energy_window_samples", _RATE // 10))
    cut = partial(audio_chunking.cut, most=most, search=search, window=window)
    return replace(nemo, compute=compute, cut=cut)


def _lasr(settings: Mapping[str, Any]) -> Features:
    """LASR's log-mel features, without normalization."""
    bins, size = int(settings.get("feature_size", 128)), int(settings.get("n_fft", SIZE))
    rate, hop = int(settings.get("sampling_rate", _RATE)), int(settings.get("hop_length", HOP))
    width = int(settings.get("win_length", WIDTH))
    window, filters = np.hanning(width), kaldi_filters(bins, size, rate, 125.0, 7500.0)

    def compute(samples: Array) -> Array:
        frames = frames_of(np.asarray(samples, np.float32), width, hop)
        logs = np.empty((len(frames), bins), np.float32)
        for start in range(0, len(frames), _BLOCK):
            spectra = np.fft.rfft(frames[start : start + _BLOCK] * window, n=size, axis=1)
            powers = np.abs(spectra) ** 2
            logs[start : start + _BLOCK] = np.log(np.maximum(powers @ filters, 1e-5))
        return logs

    return Features(name="input_features", rate=rate, compute=compute, step=hop, least=width)


def _phi4(settings: Mapping[str, Any]) -> Features:
    """Phi-4 multimodal's log-mel features, with preemphasis within each frame."""
    bins, size = int(settings.get("feature_size", 80)), int(settings.get("n_fft", SIZE))
    rate, hop = int(settings.get("sampling_rate", _RATE)), int(settings.get("hop_length", HOP))
    width, emphasis = int(settings.get("win_length", WIDTH)), settings.get("preemphasis", 0.97)
    limits = (settings.get("mel_min_frequency", 0), settings.get("mel_max_frequency", 7690))
    window = np.hamming(width)
    filters = kaldi_filters(bins, size, rate, *limits).astype(np.float32)

    def compute(samples: Array) -> Array:
        frames = frames_of(np.asarray(samples, np.float32), width, hop)
        logs = np.empty((len(frames), bins), np.float32)
        for start in range(0, len(frames), _BLOCK):
            some = frames[start : start + _BLOCK]
            before = np.concatenate([some[:, :1], some[:, :-1]], axis=1)
            loud = (some - np.float32(emphasis) * before) * np.float32(2**15)
            spectra = np.fft.rfft(loud * window, n=size, axis=1).astype(np.complex64)
            logs[start : start + _BLOCK] = np.log(np.maximum(np.abs(spectra) ** 2 @ filters, 1))
        return logs

    return Features(name="audio_input_features", rate=rate, compute=compute, step=hop, least=width)


def _gemma3n(settings: Mapping[str, Any]) -> Features:
    """Gemma 3n's log-mel features, of audio padded with a little silence."""

    def hann(width: int) -> Array:
        """Return Hann's window with Hugging Face's rounding."""
        angles = 2 * np.pi * np.arange(width, dtype=np.float32) / width
        window: Array = 0.5 * (1 - np.cos(angles))
        return window

    gemma4 = _gemma4({**_GEMMA3N, **settings}, least=np.maximum, hann=hann, centred=False)

    def compute(samples: Array) -> Array:
        return gemma4.compute(np.pad(samples, (0, -len(samples) % _WHOLE)))

    return replace(gemma4, compute=compute)


def _gemma4(
    settings: Mapping[str, Any],
    *,
    least: Callable[..., Array] = np.add,
    hann: Callable[[int], Array] = lambda width: np.hanning(width + 1)[:-1],
    centred: bool = True,
) -> Features:
    """Gemma 4's log-mel features.

    Args:
        settings: The content of preprocessor_config.json.
        least: A function that applies the floor and so keeps logarithms finite.
        hann: A function of the number of samples in a frame that returns its window.
        centred: Whether the first frame begins half a frame before the first sample.
    """
    rate = int(settings.get("sampling_rate", _RATE))
    lengths = (settings.get("frame_length_ms", 20.0), settings.get("hop_length_ms", 10.0))
    width, hop = (round(rate * length / 1000) for length in lengths)
    size = 2 ** math.ceil(math.log2(width)) * (2 if settings.get("fft_overdrive") else 1)
    limits = float(settings.get("min_frequency", 0)), float(settings.get("max_frequency", 8000))
    filters = htk_filters(int(settings.get("feature_size", 128)), size, rate, *limits)
    window, first = hann(width).astype(np.float32), width // 2 if centred else 0
    loud, emphasis = settings.get("input_scale_factor", 1.0), settings.get("preemphasis", 0.0)
    floor = float(settings.get("mel_floor", 1e-3))
    mean = np.reshape(settings.get("per_bin_mean") or 0.0, -1)
    spread = np.reshape(settings.get("per_bin_stddev") or 1.0, -1)

    def emphasized(frames: Array) -> Array:
        """Apply preemphasis; the first sample uses itself, or one more sample that was read, as its predecessor."""
        before, own = frames[:, :-1], frames[:, 1:]
        if not emphasis:
            return before
        if settings.get("preemphasis_htk_flavor", True):
            of_itself, others = (
                before[:, :1] * (1 - emphasis),
                before[:, 1:] - emphasis * before[:, :-1],
            )
            return np.concatenate([of_itself, others], axis=1)
        taken: Array = own - emphasis * before
        return taken

    def compute(samples: Array) -> Array:
        around = np.pad(np.asarray(samples, np.float32) * np.float32(loud), (first, 0))
        frames = frames_of(around, width + 1, hop)
        logs = np.empty((len(frames), filters.shape[1]), np.float32)
        for start in range(0, len(frames), _BLOCK):
            some = emphasized(frames[start : start + _BLOCK]) * window
            spectra = np.abs(np.fft.rfft(some, n=size, axis=1))
            logs[start : start + _BLOCK] = (np.log(least(spectra @ filters, floor)) - mean) / spread
        return logs

    return Features(
        name="input_features",
        rate=rate,
        compute=compute,
        step=hop,
        least=width + 1 - first,
        most=_GEMMA,
    )


KINDS: Mapping[str, Callable[[Mapping[str, Any]], Features]] = {
    "Wav2Vec2FeatureExtractor": _plain,
    "SeamlessM4TFeatureExtractor": _kaldi,
    "Speech2TextFeatureExtractor": _utterance,
    "WhisperFeatureExtractor": _whisper,
    "Qwen3ASRFeatureExtractor": _qwen3,
    "ParakeetFeatureExtractor": _nemo,
    "CohereAsrFeatureExtractor": _cohere,
    "LasrFeatureExtractor": _lasr,
    "GraniteSpeechFeatureExtractor": _granite,
    "GraniteSpeech5FeatureExtractor": _granite5,
    "Phi4MultimodalFeatureExtractor": _phi4,
    "Gemma3nAudioFeatureExtractor": _gemma3n,
    "Gemma4AudioFeatureExtractor": _gemma4,
    "Gemma4UnifiedAudioFeatureExtractor": _samples,
}

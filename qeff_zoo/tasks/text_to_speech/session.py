# SPDX-License-Identifier: Apache-2.0
"""Session of a text-to-speech package: texts in, samples out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.program import Array, Program, require
from qeff_zoo.runtime.sizes import EncoderSizes
from qeff_zoo.tasks.text_to_speech import passages
from qeff_zoo.tasks.text_to_speech.characters import Characters
from qeff_zoo.tasks.text_to_speech.speech import Speech, SpeechOptions
from qeff_zoo.tasks.text_to_speech.task import NAME

#: Text, or token ids.
Text: TypeAlias = str | Sequence[int]
#: Function of a shape that returns standard normal noise.
Draw: TypeAlias = Callable[[tuple[int, ...]], Array]
_PIECES = {"log_durations", "prior_means", "prior_log_variances"}
_MOST_FRAMES = 1 << 16  # ten minutes or more


@dataclass(frozen=True, kw_only=True)
class Priors:
    """Output of the text encoder for a text.

    Args:
        log_durations: Natural logarithms of the frames of each token, (tokens,).
        means: Means of a token's frames, (tokens, width).
        log_variances: Logarithms of their standard deviations, (tokens, width).
    """

    log_durations: Array
    means: Array
    log_variances: Array

    def durations(self, rate: float) -> Array:
        """Return the number of frames of each token, float32.

        Args:
            rate: Speaking rate.
        """
        frames: Array = np.ceil(np.exp(self.log_durations) * np.float32(1 / rate))
        return frames

    def frames(self, durations: Array, draw: Draw, scale: float) -> Array:
        """Return the frames of a text, (frames, width); one if all durations are 0.

        Args:
            durations: Number of frames of each token.
            draw: Source of noise, (frames, width).
            scale: Factor of the noise.
        """
        counts = durations.astype(np.int64)
        means, logs = (np.repeat(one, counts, axis=0) for one in (self.means, self.log_variances))
        if not len(means):
            means = logs = np.zeros((1, self.means.shape[1]), np.float32)
        frames: Array = means + draw(means.shape) * np.exp(logs) * np.float32(scale)
        return frames


class TextToSpeechSession:
    """An opened package of the task `text-to-speech`.

    Args:
        folder: The package.
        program: Opened text encoder of the package.
        audio: Opened program that makes samples.

    Raises:
        GenerationError: The package is of another task.

    Example:
        >>> session = qeff_zoo.load("packages/mms-tts-eng")  # doctest: +SKIP
        >>> session.synthesize("Good morning.", seed=0)[0].seconds  # doctest: +SKIP
        1.04
    """

    task = NAME

    def __init__(self, folder: Path, program: Program, *, audio: Program) -> None:
        require(program, folder, self.task, {"input_ids", "attention_mask"}, _PIECES)
        require(audio, folder, self.task, {"latents", "attention_mask"}, {"waveform"})
        self.folder, self._encoder, self._audio = folder, program, audio
        self.sizes = EncoderSizes.read(program.specializations)
        self.config = read_json(folder / "config.json")
        self.characters = Characters.find(folder)
        self.tokenizer = None  # of text generation
        #: Samples per second.
        self.rate = int(self.config.get("sampling_rate") or 16_000)
        #: Samples of a frame.
        self.hop = prod(self.config["upsample_rates"])
        self.vocab_size = int(self.config["vocab_size"])
        self.speakers = int(self.config.get("num_speakers") or 1)

    @property
    def has_fixed_frames(self) -> bool:
        """Whether the program of samples has a largest number of frames."""
        return not isinstance(self._audio.inputs["latents"].shape[1], str)

    def options(self, **chosen: Any) -> SpeechOptions:
        """Return the options of a request; see `SpeechOptions.of`."""
        return SpeechOptions.of(self.config, **chosen)

    def synthesize(self, texts: str | Sequence[Text], **chosen: Any) -> list[Speech]:
        """Return the speech of each text. The parts of a text that exceeds the package's lengths are joined.

        Args:
            texts: One text or several; or token ids.
            **chosen: Fields of `SpeechOptions`; and `speed`, a factor of the speaking rate.

        Raises:
            GenerationError: A text has nothing to speak or is too long, or an option is not one of the model.
        """
        options = self.options(**chosen)
        every: Sequence[Text] = [texts] if isinstance(texts, str) else texts
        read = [self.read(one) for one in every]  # refused before anything is computed
        return [Speech.joined([*self.speak(parts, options)]) for parts in read]

    def stream(self, text: Text, **chosen: Any) -> Iterator[Speech]:
        """Return the speech of a text sentence by sentence.

        Args:
            text: Text, or token ids.
            **chosen: See `synthesize`.
        """
        return self.speak(self.read(text, by_sentence=True), self.options(**chosen))

    def read(self, text: Text, *, by_sentence: bool = False) -> list[list[int]]:
        """Return the tokens of a text, in parts that a call takes. Thread-safe.

        Args:
            text: Text, or token ids, which are one part.
            by_sentence: Whether each sentence is a part.

        Raises:
            GenerationError: There is nothing to speak, or a word exceeds the package's lengths.
        """
        if not isinstance(text, str):
            return [self._checked([int(token) for token in text])]
        if self.characters is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no vocab.json and cannot take the text {text[:40]!r}; expected "
                "token ids. Give a list of them."
            )
        longest = self.sizes.seq_lens[-1]
        encode = self.characters.encode
        parts = passages.parts_of(text, encode, longest, by_sentence=by_sentence)
        if not parts:
            raise GenerationError(
                f"The text {text[:40]!r} has nothing to speak: no character of it is in the model's vocabulary. "
                f"Expected characters such as {''.join(self._examples())!r}. Write it in the language of the model."
            )
        return [self._checked(tokens) for tokens in parts]

    def _examples(self) -> list[str]:
        assert self.characters
        letters = [one for one in self.characters.vocabulary if len(one) == 1 and one.isalpha()]
        return letters[:8]

    def _checked(self, tokens: list[int]) -> list[int]:
        longest = self.sizes.seq_lens[-1]
        if not 0 < len(tokens) <= longest:
            raise GenerationError(
                f"A text has {len(tokens):,} tokens; expected 1 to {longest:,}, the package's longest sequence. Change "
                "it, or build the package with a longer one."
            )
        foreign = next((token for token in tokens if not 0 <= token < self.vocab_size), None)
        if foreign is not None:
            raise GenerationError(
                f"Token id {foreign!r} is not of this model; expected 0 to {self.vocab_size - 1:,}. Encode the text "
                "with the package's own tokenizer."
            )
        return tokens

    def speak(self, parts: Sequence[Sequence[int]], options: SpeechOptions) -> Iterator[Speech]:
        """Yield the speech of each part of a text.

        Args:
            parts: Token ids of each part, see `read`.
            options: Options of all parts.
        """
        size = self.sizes.batch_size
        for start in range(0, len(parts), size):
            rows = parts[start : start + size]
            # Noise of its own for each part, whatever else is in the call.
            draws = [_noise_of(options.seed, start + row) for row in range(len(rows))]
            noise = [draw((len(tokens), 2)) for draw, tokens in zip(draws, rows, strict=True)]
            every = [options] * len(rows)
            frames = []
            for priors, draw in zip(self.encode(rows, noise, every), draws, strict=True):
                durations = priors.durations(options.speaking_rate)
                self._require_frames(durations)
                frames.append(priors.frames(durations, draw, options.noise_scale))
            for audio in self.decode(frames, every):
                yield Speech(audio=audio, sampling_rate=self.rate)

    def _require_frames(self, durations: Array) -> None:
        """Refuse speech that is longer than a call makes."""
        sizes = EncoderSizes.read(self._audio.specializations)
        most = sizes.seq_lens[-1] if self.has_fixed_frames else _MOST_FRAMES
        if not (total := float(durations.sum())) <= most:
            raise GenerationError(
                f"The speech of {len(durations):,} tokens has {total:,.0f} frames of {self.hop / self.rate:.3g} s; "
                f"expected at most {most:,} in a call. Speak faster, or shorten the sentence."
            )

    def encode(
        self,
        rows: Sequence[Sequence[int]],
        noise: Sequence[Array],
        options: Sequence[SpeechOptions],
        seq_len: int | None = None,
    ) -> list[Priors]:
        """Run one call of the text encoder.

        Args:
            rows: Token ids of at most `batch_size` texts.
            noise: Standard normal noise of each text, (tokens, 2).
            options: Options of each text.
            seq_len: Sequence length of the package; None for the shortest that fits all rows.
        """
        seq_len = seq_len or self.sizes.covering(max(map(len, rows)))
        ids = np.zeros((len(rows), seq_len), np.int64)
        mask, noises = np.zeros_like(ids), np.zeros((*ids.shape, 2), np.float32)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
            scale = np.float32(options[row].noise_scale_duration)
            noises[row, : len(tokens)] = noise[row] * scale
        feeds: dict[str, Array] = {"input_ids": ids, "attention_mask": mask, "noise": noises}
        outputs = self._run(self._encoder, feeds, options)
        return [
            Priors(
                log_durations=outputs["log_durations"][row, : len(tokens)],
                means=outputs["prior_means"][row, : len(tokens)],
                log_variances=outputs["prior_log_variances"][row, : len(tokens)],
            )
            for row, tokens in enumerate(rows)
        ]

    def decode(self, rows: Sequence[Array], options: Sequence[SpeechOptions]) -> list[Array]:
        """Run one call of the program of samples; return the samples of each row.

        Args:
            rows: Frames of at most `batch_size` texts, (frames, width) each.
            options: Options of each text.
        """
        longest = max(map(len, rows))
        latents = np.zeros((len(rows), longest, rows[0].shape[1]), np.float32)
        mask = np.zeros(latents.shape[:2], np.int64)
        for row, frames in enumerate(rows):
            latents[row, : len(frames)], mask[row, : len(frames)] = frames, 1
        outputs = self._run(self._audio, {"latents": latents, "attention_mask": mask}, options)
        waves = outputs["waveform"].astype(np.float32, copy=False)
        return [wave[: len(frames) * self.hop] for wave, frames in zip(waves, rows, strict=True)]

    def _run(
        self, program: Program, feeds: dict[str, Array], options: Sequence[SpeechOptions]
    ) -> dict[str, Array]:
        """Run one call with the inputs that a program has."""
        speakers = np.array([[option.speaker] for option in options], np.int64)
        feeds = {**feeds, "speaker_id": speakers}
        return dict(program.run({name: feeds[name] for name in program.inputs}))


def _noise_of(seed: int, part: int) -> Draw:
    """Return a source of standard normal noise for a part of a text."""
    random = np.random.default_rng((seed, part))
    return lambda shape: random.standard_normal(shape, np.float32)

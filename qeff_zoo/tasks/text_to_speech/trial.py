# SPDX-License-Identifier: Apache-2.0
"""Sample texts through a text-to-speech package, with noise that the reference gets too."""

import random
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from qeff_zoo.tasks.text_to_speech.points import resized, row_of
from qeff_zoo.tasks.text_to_speech.session import Priors, TextToSpeechSession
from qeff_zoo.tasks.text_to_speech.speech import SpeechOptions
from qeff_zoo.validation.judgement.parity import Array
from qeff_zoo.validation.trial import sample_texts
from qeff_zoo.validation.trial.package_runner import Key, Trial, TrialContext

#: Stage of texts, whose tokens the reference makes itself.
_TEXTS = "texts"
#: Compared rows of a text: logarithms of durations, priors, samples.
_ROWS = 3
_DRAWS = 256  # of noise, until no duration is near a whole number of frames, where rounding decides
_NEAR = 1e-4
_FRAMES = 2.0  # of a token on average, as in speech


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A text with its noise.

    Args:
        tokens: Token ids.
        durations_noise: (tokens, 2).
        frames_noise: (frames, width).
        options: Speaker, and a rate at which the text has a common number of frames.
    """

    tokens: list[int]
    durations_noise: Array
    frames_noise: Array
    options: SpeechOptions


class SpeechTrial:
    """Runs a text-to-speech package on sample texts.

    Args:
        session: Session of the package.
    """

    def __init__(self, session: TextToSpeechSession) -> None:
        self.session = session

    def call_once(self) -> None:
        """Speak a few tokens."""
        session = self.session
        tokens = [0] * session.sizes.seq_lens[0]
        options = session.options(seed=0, noise_scale=0, noise_scale_duration=0)
        (priors,) = session.encode([tokens], [np.zeros((len(tokens), 2), np.float32)], [options])
        session.decode([priors.means[:2]], [options])

    def run(self, context: TrialContext) -> Trial:
        """Run every stage."""
        session = self.session
        stages, lengths = context.task.stages()(session.sizes)
        texts = sample_texts.draw(lengths, None, session.vocab_size)
        written = self._texts()
        tokens_of_texts = [*texts, *(self.session.read(text)[0] for text in written)]
        cases = [self._case(tokens, number) for number, tokens in enumerate(tokens_of_texts)]
        answers: dict[str, Array] = {}
        keys: dict[str, list[Key]] = {}
        for stage in stages:
            outputs: list[Array] = []
            keys[stage.name] = []
            for call in stage.calls:
                rows = [cases[number] for number in call.sequences]
                outputs += self._call(rows, call.seq_len)
                keys[stage.name] += [
                    (number, index, 0) for number in call.sequences for index in range(_ROWS)
                ]
                context.step(1)
            answers[stage.name] = np.stack(outputs)
        if written:
            numbers = range(len(texts), len(cases))
            keys[_TEXTS] = [(number, index, 0) for number in numbers for index in range(_ROWS)]
            answers[_TEXTS] = np.stack(
                [row for number in numbers for row in self._call([cases[number]], None)]
            )
        return Trial(
            sequences=[case.tokens for case in cases],
            positions=[[*range(_ROWS)] for _ in cases],
            keys=keys,
            answers=answers,
            runs=[],
            texts=[[ord(one) for one in text] for text in written],
            recordings=[array for case in cases for array in _given(case)],
        )

    def _texts(self) -> list[str]:
        """Return texts of the vocabulary's characters and others, which the reference tokenizes itself."""
        tokenizer = self.session.characters
        if tokenizer is None or not tokenizer.reads_plain_text:
            return []
        letters = [one for one in tokenizer.vocabulary if len(one) == 1 and one.isprintable()]
        texts = []
        for number in range(3):
            drawn = random.Random(number).choices(letters, k=12)
            halves = "".join(drawn[:6]), "".join(drawn[6:]).upper()
            texts.append(f" {halves[0]}, {halves[1]} 7!? ")
        longest = self.session.sizes.seq_lens[-1]
        return [text for text in texts if 0 < len(tokenizer.encode(text)) <= longest]

    def _case(self, tokens: list[int], number: int) -> _Case:
        """Return a text with noise at which no duration is near a whole number."""
        session, width = self.session, int(self.session.config["flow_size"])
        usual = session.options(seed=0, speaker=number % session.speakers)
        for draw in range(_DRAWS):
            generator = np.random.default_rng((number, draw))
            noise = generator.standard_normal((len(tokens), 2), np.float32)
            (priors,) = session.encode([tokens], [noise], [usual])
            frames = np.exp(priors.log_durations)
            rate = max(float(frames.mean(dtype=np.float64)) / _FRAMES, 1e-3)
            options = replace(usual, speaking_rate=float(np.float32(rate)))
            exact = frames * np.float32(1 / options.speaking_rate)
            if (abs(exact - exact.round()) > _NEAR * np.maximum(exact, 1)).all():
                break
        count = max(1, int(priors.durations(options.speaking_rate).sum()))
        noise_of_frames = generator.standard_normal((count, width), np.float32)
        return _Case(
            tokens=tokens, durations_noise=noise, frames_noise=noise_of_frames, options=options
        )

    def _call(self, cases: list[_Case], seq_len: int | None) -> list[Array]:
        """Return the compared rows of texts that share the calls; speakers are those of each."""
        session, rows = self.session, list[Array]()
        priors: list[Priors] = session.encode(
            [case.tokens for case in cases],
            [case.durations_noise for case in cases],
            [case.options for case in cases],
            seq_len,
        )
        frames = [
            prior.frames(
                prior.durations(case.options.speaking_rate),
                partial(_fitted, case.frames_noise),
                case.options.noise_scale,
            )
            for prior, case in zip(priors, cases, strict=True)
        ]
        waves = session.decode(frames, [case.options for case in cases])
        for one, wave in zip(priors, waves, strict=True):
            both = np.stack([one.means, one.log_variances])
            rows += [row_of(one.log_durations), row_of(both), row_of(wave)]
        return rows


def _fitted(noise: Array, shape: tuple[int, ...]) -> Array:
    return resized(noise, shape[0])


def _given(case: _Case) -> list[Array]:
    """Return what the reference reads of a case besides its tokens."""
    options = np.array([case.options.speaking_rate, case.options.speaker], np.float64)
    return [case.durations_noise, case.frames_noise, options]

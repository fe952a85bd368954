# SPDX-License-Identifier: Apache-2.0
"""Special tokens of a speech model: decoder prompts, and constraints on the next token.

Input: generation_config.json and config.json of a package. The rules are those of transformers' `generate`: its
    settings, and for models of windows those of Whisper, whose timestamps come in pairs and never decrease.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from qeff_zoo.checkpoint.config import positions_of
from qeff_zoo.checkpoint.generation_settings import GenerationSettings, effective_of, problems
from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.decoding.logits_processors import LogitsProcessors
from qeff_zoo.runtime.decoding.sampling import Sampling
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.languages import code_of
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.tasks.speech.speech_prompts import Begins
from qeff_zoo.tasks.speech.speech_settings import (
    LENGTH,
    forced_tokens,
    speech_problems,
    usual_options,
)

from . import speech_prompts

#: Transcription in the spoken language, or translation to another.
SpeechTask: TypeAlias = Literal["transcribe", "translate"]
TASKS: tuple[SpeechTask, ...] = get_args(SpeechTask)
#: Tokens of the published Whispers for English alone; the multilingual ones have more.
_ENGLISH_TOKENS = 51_864
_ENGLISH = "en"
#: Seconds between consecutive timestamp tokens.
TICK = 0.02


@dataclass(frozen=True, kw_only=True)
class SpeechTokens:
    """Special tokens of a package.

    Args:
        start: First token of every output.
        end: Last token of every output.
        languages: Tokens by code, such as "en", or their numbers for models whose prompt takes the language; empty for
            models of one language.
        tasks: Tokens by task, or their numbers for models whose prompt takes the task; empty for models that only
            transcribe.
        no_times: Token that selects text without timestamps; None for models without timestamps, whose tokens follow
            it.
        before: Token before the previous text; None if the prompt takes none.
        latest_start: Maximum of the first timestamp in ticks; None for no limit.
        forced: First tokens of an older package's outputs, by position; None for a detected language.
        settings: Generation settings.
        windows: Whether a model of windows generates, as Whisper does.
        only: Code of the language of a model of one language, if its files name it.
        positions: Number of decoder positions.
        usual: Options of a transcription that the checkpoint sets, by name.
        begins: Function that makes the decoder prompt from languages, for models whose prompt takes them; else None.
    """

    start: int
    end: int
    languages: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    no_times: int | None = None
    before: int | None = None
    latest_start: int | None = None
    forced: Sequence[int | None] = ()
    settings: GenerationSettings = field(default_factory=GenerationSettings)
    windows: bool = True
    only: str | None = None
    positions: int = 0
    usual: Mapping[str, Any] = field(default_factory=dict)
    begins: Begins | None = field(default=None, compare=False)

    @classmethod
    def read(
        cls,
        folder: Path,
        settings: Mapping[str, Any] | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        windows: bool = True,
        vocab_size: int | None = None,
    ) -> "SpeechTokens":
        """Read a package's settings; older checkpoints have them in config.json instead of generation_config.json.

        Args:
            folder: The package.
            settings: Declaration of speech in the recipe; None for the settings of the files.
            tokenizer: Tokenizer of the package.
            windows: Whether the model takes windows, as Whisper does.
            vocab_size: Size of the vocabulary; None if unknown.

        Raises:
            GenerationError: `generate` would refuse a setting, or the files lack the first and last tokens of an
                output.
        """
        config, generation = read_json(folder / "config.json"), effective_of(folder)
        if reasons := [
            *problems(generation, vocab_size),
            *speech_problems(config, generation, windows),
        ]:
            raise GenerationError(
                "\n".join(f"Package {str(folder)!r}: {reason}" for reason in reasons)
            )
        values = GenerationSettings.of(generation)
        start = values.decoder_start_token_id
        start = values.bos_token_id if start is None else start
        assert start is not None
        suppressed = values.suppress_tokens
        before = generation.get("prev_sot_token_id")
        if before is None and len(suppressed) >= 2:  # where older checkpoints have it
            before = suppressed[-2]
        forced = forced_tokens(config, generation) if windows else [values.forced_bos_token_id]
        known = {
            name.strip("<|>"): token for name, token in (generation.get("lang_to_id") or {}).items()
        }
        tasks: dict[str, int] = generation.get("task_to_id") or {}
        if settings:
            known = {code: number for number, code in enumerate(settings["languages"])}
            tasks = {
                task: number for number, task in enumerate(TASKS) if settings.get("translates")
            }
        return cls(
            start=start,
            end=values.eos_token_id[0],
            languages=known,
            begins=speech_prompts.find(folder, settings, tokenizer)
            if settings and tokenizer
            else None,
            tasks=tasks,
            no_times=generation.get("no_timestamps_token_id"),
            before=before,
            latest_start=generation.get("max_initial_timestamp_index"),
            forced=forced if windows or forced != [None] else (),
            settings=_without_times(values, windows),
            windows=windows,
            only=None if known else _only_language({**config, **generation}),
            positions=positions_of(config) or 0,
            usual=usual_options(generation) if windows else {},
        )

    @property
    def first_time(self) -> int | None:
        """Token of timestamp 0."""
        return None if self.no_times is None else self.no_times + 1

    def language_token(self, language: str) -> int:
        """Return the token of a language.

        Args:
            language: Code or name, such as "en" or "English".

        Raises:
            GenerationError: The model does not support the language.
        """
        code = code_of(language)
        if code in self.languages:
            return self.languages[code]
        known = (
            f"one of {', '.join(sorted(self.languages))}. Leave it out, or give one of those."
            if self.languages
            else "none, since the model knows one language only. Leave it out."
        )
        raise GenerationError(f"Language {language!r} is not known to this model; expected {known}")

    def code_of(self, token: int | None) -> str | None:
        """Return the code of a language token, or of the only language of a model."""
        return next(
            (code for code, language in self.languages.items() if language == token), self.only
        )

    def needs_language(self, language: str | None, task: SpeechTask | None) -> bool:
        """Return whether the language must be detected before the prompt."""
        is_set = language is not None or (
            task is None and self.forced and self.forced[0] is not None
        )
        return bool(self.languages) and not is_set

    def limit(self, begun: Sequence[int], ctx_len: int) -> int:
        """Return the maximum number of tokens of a window after its prompt.

        Args:
            begun: Number of tokens of the prompts of this window and of those before.
            ctx_len: Maximum number of tokens of prompt and output.
        """
        settings = self.settings
        if settings.max_new_tokens is not None:
            return min(settings.max_new_tokens, ctx_len - begun[-1])
        longest = settings.max_length
        if self.windows:
            # Whisper's `generate` does not count prompts, and adds those of all windows.
            most = self.positions // 2 - 1
            longest = (LENGTH if longest is None else longest) + sum(
                min(most, one) for one in begun
            )
        return max(1, min(longest or ctx_len, ctx_len) - begun[-1])

    def beginning(
        self,
        language: int | None,
        task: SpeechTask | None,
        *,
        times: bool,
        target: str | None = None,
        detected: bool = False,
    ) -> tuple[int, ...]:
        """Return the decoder prompt.

        Args:
            language: Token of the language, detected or requested; None for models of one language.
            task: Task of the model; None for the package's default.
            times: Whether to generate timestamps.
            target: Target language of a translation; None for English if the task is translation.
            detected: Whether the language was detected, and not requested.

        Raises:
            GenerationError: The model does not support the task or the language.
        """
        if target is not None:
            task = "translate"
        if task is not None and task not in TASKS:
            raise GenerationError(
                f"The task is {task!r}; expected {' or '.join(TASKS)}. Choose one of them."
            )
        if task == "translate" and task not in self.tasks:
            raise GenerationError(
                "This model only writes down what is said; expected one that translates for task 'translate'. Leave "
                "the task out, or take a multilingual model."
            )
        if target is not None and self.begins is None and code_of(target) != _ENGLISH:
            raise GenerationError(
                f"The language to translate into is {target!r}; expected English, into which alone this model "
                "translates. Leave it out."
            )
        if times and self.no_times is None:
            raise GenerationError(
                "This model returns no times: generation_config.json has no `no_timestamps_token_id`. Expected one "
                "that does. Ask for text alone, of recordings that fit into one window."
            )
        if self.begins is not None:
            return self._prefix(language, (target or _ENGLISH) if task == "translate" else None)
        requested = language is not None and not detected
        tokens = [self.start, *([] if task or requested else self.forced)]
        if language is not None:
            tokens[1:2] = [language]
        wanted = task or ("transcribe" if requested else "")
        if wanted in self.tasks and not set(self.tasks.values()) & set(tokens):
            tokens.append(self.tasks[wanted])
        last = None if self.no_times is None else tokens[-1]
        if not times and last != self.no_times:
            tokens.append(self.no_times)
        elif times and last is not None and last == self.no_times:
            tokens.pop()
        return tuple(token for token in tokens if token is not None)

    def _prefix(self, language: int | None, target: str | None) -> tuple[int, ...]:
        """Return the decoder prompt of requested languages, completed as in `generate`.

        Args:
            language: Token of the spoken language.
            target: Target language of a translation; None for the spoken language.
        """
        source = self.code_of(language)
        if source is None:
            raise GenerationError(
                f"This model requires the spoken language; expected one of "
                f"{', '.join(sorted(self.languages))}. Give it (--language CODE)."
            )
        assert self.begins is not None
        written = source if target is None else self.code_of(self.language_token(target))
        assert written is not None
        first, *others = self.begins(source, written)
        return (self.start, *([] if first == self.start else [first]), *others)

    def detected(self, logits: Array) -> int:
        """Return the token of the most probable language.

        Args:
            logits: Logits (vocab,), after `start` alone.
        """
        every = np.fromiter(self.languages.values(), np.int64)
        return int(every[logits[every].argmax()])

    def silence(self, logits: Array) -> float | None:
        """Return the probability of no speech; None for models without timestamps.

        Args:
            logits: Logits (vocab,), after `start`.
        """
        if self.no_times is None:
            return None
        shares = np.exp(logits - logits.max())
        return float(shares[self.no_times - 1] / shares.sum())  # the no-speech token precedes it

    def processors(self, begun: Sequence[int], limit: int) -> LogitsProcessors:
        """Return the logits processors of a window.

        Args:
            begun: Tokens of its prompt.
            limit: Maximum number of tokens after it.
        """
        return LogitsProcessors(
            self.settings,
            Sampling(repetition_penalty=self.settings.repetition_penalty),
            begun,
            source=(),
            limit=limit,
        )

    def timed(self, logits: Array, answer: Sequence[int]) -> Array:
        """Return logits with the lowest value for timestamps that must not follow, and text in their place.

        Args:
            logits: Logits (vocab,), float32, after the newest token; not modified.
            answer: Tokens so far, without the prompt.
        """
        scores = logits.copy()
        self._keep_times(scores, answer)
        return scores

    def _keep_times(self, scores: Array, answer: Sequence[int]) -> None:
        """Constrain timestamps to ascending pairs, starting with one; prefer one more probable than any text token."""
        first = self.first_time
        assert first is not None
        scores[first - 1] = -np.inf
        is_time = [token >= first for token in answer[-2:]]
        ends_in_time = bool(is_time) and is_time[-1]
        in_pair = len(answer) < 2 or is_time[-2]
        if ends_in_time:
            if in_pair:
                scores[first:] = -np.inf
            else:
                scores[: self.end] = -np.inf
        latest = next((token for token in reversed(answer) if token >= first), None)
        if latest is not None:
            # The second timestamp of a pair may equal the first; the next pair must not precede it.
            scores[first : latest + (0 if ends_in_time and not in_pair else 1)] = -np.inf
        if not answer:
            scores[:first] = -np.inf
            if self.latest_start is not None:
                scores[first + self.latest_start + 1 :] = -np.inf
        text = scores[:first].max()
        top = max(text, scores[first:].max())
        if np.exp(scores[first:] - top).sum() > np.exp(text - top):
            scores[:first] = -np.inf


def _without_times(settings: GenerationSettings, windows: bool) -> GenerationSettings:
    """Return settings that count tokens after the prompt, which has the forced first token."""
    if windows or settings.forced_bos_token_id is None:
        return settings
    begun = {
        name: max(1, value - 1)
        for name in ("max_new_tokens", "min_new_tokens")
        if (value := getattr(settings, name))
    }
    return replace(settings, **begun)


def _only_language(settings: Mapping[str, Any]) -> str | None:
    """Return the language of a model whose settings have a flag of several languages, which is false: English.

    None if any file names languages all the same: `generate` of a file without them takes none, and the language of the
    model is unknown.
    """
    if settings.get("lang_to_id"):
        return None
    multilingual = settings.get("is_multilingual")
    alone = (
        settings.get("vocab_size") == _ENGLISH_TOKENS if multilingual is None else not multilingual
    )
    return _ENGLISH if alone else None

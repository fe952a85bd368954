# SPDX-License-Identifier: Apache-2.0
"""Session of a question-answering model: questions and contexts in, spans of the contexts with scores out."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from qeff_zoo.contract import QUESTION_ANSWERING
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.text.tokenizer import EncodedPair, Tokenizer
from qeff_zoo.tasks.encoders.answer_spans import (
    CONTEXT,
    AnswerRules,
    ExtractedAnswer,
    answers_of,
    windows_of,
)
from qeff_zoo.tasks.encoders.session import EncoderSession

#: Defaults of transformers' pipeline: tokens of a window, of two windows, and of an answer.
_WINDOW, _OVERLAP, _LONGEST = 384, 128, 15
#: Maximum number of answers.
_MOST = 1024


class QuestionAnsweringSession(EncoderSession):
    """An opened package of the task `question-answering`; see `EncoderSession` for how to open it.

    Example:
        >>> session = qeff_zoo.load("packages/roberta-base-squad2")  # doctest: +SKIP
        >>> session.find_answers("Where does Ada live?", "Ada lives in Turin.")[0][
        ...     0
        ... ].text  # doctest: +SKIP
        'Turin'
    """

    task = QUESTION_ANSWERING
    output = "logits"
    takes_pairs = True

    def __init__(self, folder: Path, program: Program) -> None:
        super().__init__(folder, program)
        words = self.tokenizer
        self._first = words.token_named(None, ("cls_token",)) if words else None

    @property
    def words(self) -> Tokenizer:
        """Tokenizer.

        Raises:
            GenerationError: The package has none.
        """
        if self.tokenizer is None:
            raise GenerationError(
                f"Package {str(self.folder)!r} has no tokenizer.json, and cannot find answers; expected one. Build it "
                "from a checkpoint with a tokenizer."
            )
        return self.tokenizer

    def find_answers(
        self,
        questions: str | Sequence[str],
        contexts: str | Sequence[str],
        top_k: int = 1,
        *,
        doc_stride: int | None = None,
        max_answer_len: int | None = None,
        max_seq_len: int | None = None,
        impossible: bool = False,
        align_to_words: bool = True,
        adapter: str | None = None,
    ) -> list[list[ExtractedAnswer]]:
        """Return the answers to each question, the best first, as transformers' pipeline.

        Args:
            questions: One question or several.
            contexts: Context of each question, or one for all. A long one is read in windows that overlap.
            top_k: Maximum number of answers to each question.
            doc_stride: Number of context tokens that two windows share; None for 128, or less for small windows.
            max_answer_len: Maximum number of tokens of an answer; None for 15.
            max_seq_len: Number of tokens of a window, the question included; None for 384, at most `max_length`.
            impossible: Whether "no answer", an empty text, may be an answer.
            align_to_words: Whether answers begin and end with whole words.
            adapter: Name of one of `adapters`; None for the base model.

        Raises:
            GenerationError: A text is empty, a question leaves no room for its context, an option is out of range, or
                the numbers of questions and contexts differ.
        """
        rules = self.rules_of(top_k, max_answer_len, impossible, align_to_words)
        pairs = _paired(questions, contexts)
        windows = [self.windows_of(*pair, max_seq_len, doc_stride) for pair in pairs]
        flat = [window for each in windows for window in each]
        outputs = iter(self._answer(flat, adapter))
        return [
            self.answers_of(context, each, list(islice(outputs, len(each))), rules)
            for (_, context), each in zip(pairs, windows, strict=True)
        ]

    def rules_of(
        self,
        top_k: int | None = None,
        max_answer_len: int | None = None,
        impossible: bool | None = None,
        align_to_words: bool | None = None,
    ) -> AnswerRules:
        """Return the rules by which answers are chosen, those of transformers' pipeline by default.

        Raises:
            GenerationError: A number is out of range.
        """
        top_k = 1 if top_k is None else top_k
        longest = _LONGEST if max_answer_len is None else max_answer_len
        _require("top_k", top_k, 1, _MOST)
        _require("max_answer_len", longest, 1, None)
        return AnswerRules(
            top_k=top_k,
            max_answer_len=longest,
            impossible=bool(impossible),
            align_to_words=align_to_words is not False,
        )

    def windows_of(
        self,
        question: str,
        context: str,
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        most: int | None = None,
    ) -> list[EncodedPair]:
        """Return the windows over a context in which its question is answered. Thread-safe.

        Args:
            question: The question.
            context: The context.
            max_seq_len: See `find_answers`.
            doc_stride: See `find_answers`.
            most: Maximum number of windows; None for any number.

        Raises:
            GenerationError: See `find_answers`; or there are too many windows.
        """
        for name, text in (("question", question), ("context", context)):
            if not isinstance(text, str) or not text.strip():
                raise GenerationError(f"The {name} is {text!r}; expected a text. Write one.")
        length = min(self.max_length, _WINDOW) if max_seq_len is None else max_seq_len
        _require("max_seq_len", length, 1, self.max_length)
        if doc_stride is not None:
            _require("doc_stride", doc_stride, 0, None)
        pair = self.words.encode_pair(question, context)
        tokens = sum(part == CONTEXT for part in pair.parts)
        if not tokens:
            raise GenerationError(
                f"The context {context[:40]!r} has no tokens; expected a text that the model's tokenizer reads. Change "
                "it."
            )
        room = length - (len(pair.ids) - tokens)
        if room < 1:
            raise GenerationError(
                f"The question has {len(pair.ids) - tokens:,} tokens with those that the tokenizer adds, and a window "
                f"{length:,}; expected fewer than a window has. Shorten the question, raise `max_seq_len`, or build "
                "the package with a longer --seq-lens."
            )
        overlap = doc_stride
        if overlap is None:
            usual = min(length // 2, _OVERLAP)
            overlap = usual if usual < room else room // 2
        _require("doc_stride", overlap, 0, room - 1)
        count = -(-max(0, tokens - room) // (room - overlap)) + 1
        if most is not None and count > most:
            raise GenerationError(
                f"The context has {tokens:,} tokens in {count:,} windows; expected at most {most:,} windows. Shorten "
                "it, or lower `doc_stride`."
            )
        windows = windows_of(pair, room, overlap)
        self._reader.read(
            [window.ids for window in windows]
        )  # refuses tokens of another vocabulary
        return windows

    def answers_of(
        self,
        context: str,
        windows: Sequence[EncodedPair],
        outputs: Sequence[Array],
        rules: AnswerRules,
    ) -> list[ExtractedAnswer]:
        """Return the answers in a context by the outputs of the program for its windows."""
        return answers_of(context, zip(windows, outputs, strict=True), rules, self._first)


def _paired(questions: str | Sequence[str], contexts: str | Sequence[str]) -> list[tuple[str, str]]:
    """Return each question with its context, or all questions with one context.

    Raises:
        GenerationError: There are no questions, or not as many contexts.
    """
    given = [questions] if isinstance(questions, str) else [*questions]
    read = [contexts] if isinstance(contexts, str) else [*contexts]
    read = read * len(given) if len(read) == 1 else read
    if not given or len(given) != len(read):
        raise GenerationError(
            f"There are {len(given)} questions and {len(read)} contexts; expected a context for each question, or one "
            "for all. Add the others."
        )
    return [*zip(given, read, strict=True)]


def _require(name: str, value: Any, least: int, most: int | None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        shown = f"{value:,}" if whole else repr(value)
        upper = "" if most is None else f" to {most:,}"
        expected = f"{least:,}{upper}" if upper else f"at least {least:,}"
        raise GenerationError(f"`{name}` is {shown}; expected {expected}. Change it.")

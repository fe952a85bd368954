# SPDX-License-Identifier: Apache-2.0
"""What is learnt from rows -> token ids, and the label of each: itself where it is learnt, -100 where it is given."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import jinja2
from datasets import Features, List, Value
from datasets.arrow_writer import ArrowWriter
from transformers import PreTrainedTokenizerBase

from qeff_zoo.errors import TrainingError
from qeff_zoo.finetuning.config import CLASSIFICATION, Config
from qeff_zoo.finetuning.formats import Example
from qeff_zoo.finetuning.rows import Rows

from . import formats

IGNORED = -100
_ANSWERING = "assistant"


@dataclass(kw_only=True)
class Counts:
    """What became of rows.

    Args:
        rows: Number of rows.
        examples: Number of examples; a chat may have several.
        tokens: Tokens of all examples.
        learnt: Tokens that have a label.
        cut: Examples that were longer than allowed.
        dropped: Examples without any token of the answer left.
        digest: "sha256:" and 64 hex digits of the tokens and labels.
    """

    rows: int = 0
    examples: int = 0
    tokens: int = 0
    learnt: int = 0
    cut: int = 0
    dropped: int = 0
    digest: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return all of it."""
        return asdict(self)


@dataclass(frozen=True)
class Reader:
    """Makes token ids of examples.

    Args:
        config: Config of the run.
        tokenizer: Tokenizer of the model.
        labels: Classes of a classifier, in order.
    """

    config: Config
    tokenizer: PreTrainedTokenizerBase
    labels: Sequence[str] = ()

    def write(self, rows: Rows, path: Path) -> Counts:
        """Write the examples of rows into a file, as `datasets.Dataset.from_file` reads it.

        Raises:
            TrainingError: A row cannot be read, or nothing is learnt from any.
        """
        counts, state = Counts(), hashlib.sha256()
        ids = List(Value("int32"))
        label = Value("int32") if self.config.task_mode == CLASSIFICATION else ids
        path.parent.mkdir(parents=True, exist_ok=True)
        with ArrowWriter(
            path=str(path), features=Features({"input_ids": ids, "labels": label})
        ) as writer:
            for example in self._examples(rows, counts):
                state.update(repr((example["input_ids"], example["labels"])).encode())
                writer.write(example)
            writer.finalize()
        if not counts.examples:
            raise TrainingError(
                f"Nothing is learnt from the {counts.rows} rows of {rows.name!r}: no answer begins within "
                f"{self.config.max_length} tokens. Expected room for prompts and answers. Raise --max-length."
            )
        counts.digest = f"sha256:{state.hexdigest()}"
        return counts

    def _examples(self, rows: Rows, counts: Counts) -> Iterator[dict[str, Any]]:
        format_ = formats.find(self.config, rows.columns, rows.name)
        for number, row in rows:
            counts.rows += 1
            try:
                tokens = self._tokens(format_.read(row))
            except (TypeError, ValueError, KeyError, AttributeError, jinja2.TemplateError) as error:
                raise TrainingError(
                    f"Cannot learn from row {number + 1} of {rows.name!r}: {error}. Expected "
                    f"{', '.join(map(repr, format_.columns))} as in the other rows. Correct or remove it."
                ) from error
            for ids, labels in tokens:
                counts.cut += len(ids) > self.config.max_length
                ids, labels = self._cut(ids, labels)
                learnt = 1 if isinstance(labels, int) else _learnt(labels)
                if not learnt:
                    counts.dropped += 1
                    continue
                counts.examples += 1
                counts.tokens += len(ids)
                counts.learnt += learnt
                yield {"input_ids": ids, "labels": labels}

    def _cut(self, ids: list[int], labels: Any) -> tuple[list[int], Any]:
        """Return what fits of an example; what a classifier reads ends as a whole text does."""
        most = self.config.max_length
        if len(ids) <= most:
            return ids, labels
        if isinstance(labels, int):
            end = [ids[-1]] if ids[-1] in self.tokenizer.all_special_ids else []
            return ids[: most - len(end)] + end, labels
        return ids[:most], labels[:most]

    def _tokens(self, example: Example) -> list[tuple[list[int], Any]]:
        """Return token ids and labels, once for a text, and for a chat perhaps once for each answer."""
        if example.tokens:
            labels = example.tokens["labels"]
            return [
                (
                    list(example.tokens["input_ids"]),
                    labels if isinstance(labels, int) else list(labels),
                )
            ]
        if example.label is not None:
            ids = self.tokenizer(example.answer)["input_ids"]
            return [(list(ids), self.labels.index(str(example.label)))]
        if example.messages:
            return [self._marked(text, spans) for text, spans in self._chat(example)]
        return [self._answered(example)]

    def _answered(self, example: Example) -> tuple[list[int], list[int]]:
        """Return the tokens of a prompt, as the model will be given them, and of its answer."""
        end = [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]
        given = self._unended(self.tokenizer(example.prompt)["input_ids"]) if example.prompt else []
        text, at = example.prompt + example.answer, len(example.prompt)
        masked = [(at + start, at + stop) for start, stop in example.masked]
        ids, labels = self._marked(text, [(at, len(text))], masked, special=True)
        if (
            ids[: len(given)] != given
        ):  # the answer's first letters would change the prompt's last token
            ids, labels = self._marked(example.answer, [(0, len(example.answer))], example.masked)
            kept = [IGNORED] * len(given) if self.config.completion_only_loss else given
            ids, labels = given + ids, kept + labels
        ids, labels = self._unended(ids), labels[: len(self._unended(ids))]
        return ids + end, labels + end

    def _unended(self, ids: list[int]) -> list[int]:
        """Return tokens without the EOS token that some tokenizers add."""
        return ids[:-1] if ids[-1:] == [self.tokenizer.eos_token_id] else list(ids)

    def _marked(
        self,
        text: str,
        spans: Sequence[tuple[int, int]],
        masked: Sequence[tuple[int, int]] = (),
        *,
        special: bool = False,
    ) -> tuple[list[int], list[int]]:
        """Return a text's tokens; those that end within a span are learnt, unless they end within a masked one.

        Args:
            text: All of it.
            spans: Character spans, end exclusive.
            masked: The same.
            special: Whether the tokenizer adds what a text begins and ends with.
        """
        read = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        ids = list(read["input_ids"])
        if not self.config.completion_only_loss:
            return ids, list(ids)
        # A token that the tokenizer added at the end is of no character; it counts as of the last.
        ends = list(accumulate((end for _, end in read["offset_mapping"]), max))
        labels = [IGNORED] * len(ids)
        for start, stop in spans:
            first, last = bisect_right(ends, start), bisect_right(ends, stop)
            labels[first:last] = ids[first:last]
        for start, stop in masked:
            first, last = bisect_right(ends, start), bisect_right(ends, stop)
            labels[first:last] = [IGNORED] * (last - first)
        return ids, labels

    def _chat(self, example: Example) -> list[tuple[str, list[tuple[int, int]]]]:
        """Write a chat by the model's template, and find its answers.

        Many templates render an earlier answer in another way than the last one, for instance without its reasoning.
        Then each answer, with the prompt that precedes it in generation, is an example of its own.
        """
        messages = [_without_nothing(message) for message in example.messages]
        turns = [
            (self._written(messages[:at], prompt=True), self._written(messages[: at + 1]))
            for at, message in enumerate(messages)
            if message["role"] == _ANSWERING and at >= example.given
        ]
        if not turns:
            raise ValueError(f"no message with role {_ANSWERING!r}")
        for before, after in turns:
            if not after.startswith(before):
                raise ValueError(
                    "the chat template writes a prompt in another way once it is answered"
                )
        whole = turns[-1][1]
        spans = [(len(before), len(after)) for before, after in turns]
        if all(whole.startswith(after) for _, after in turns):
            return [(whole, spans)]
        return [(after, [span]) for (_, after), span in zip(turns, spans, strict=True)]

    def _written(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> str:
        text = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=prompt
        )
        assert isinstance(text, str)
        return text


def _without_nothing(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the fields that only other messages of the table have."""
    return {name: value for name, value in message.items() if value is not None}


def _learnt(labels: Sequence[int]) -> int:
    """Count the tokens that a loss is of: the first one follows nothing."""
    return sum(label != IGNORED for label in labels[1:])


def classes(rows: Sequence[Rows], column: str) -> list[str]:
    """Return the labels that rows have, as texts: numbers by size, names by the alphabet.

    Raises:
        TrainingError: There are fewer than two, or a label is missing.
    """
    labels = {value for row in rows for value in row.table.select(row.chosen)[column]}
    if None in labels or len(labels) < 2:
        raise TrainingError(
            f"Column {column!r} of {rows[0].name!r} has the labels {sorted(map(str, labels))}. Expected two or more, "
            "and one in each row. Correct the data, or name the column with --label-column."
        )
    numbers = all(isinstance(value, int) for value in labels)
    return [str(value) for value in (sorted(labels) if numbers else sorted(labels, key=str))]

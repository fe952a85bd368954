# SPDX-License-Identifier: Apache-2.0
"""Rows of a data set -> what is learnt from each: a chat, an answer to a prompt, a text, or the label of a text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from qeff_zoo.errors import TrainingError
from qeff_zoo.finetuning.config import CLASSIFICATION, Config

Row: TypeAlias = Mapping[str, Any]
#: Column of chats in ShareGPT's form, and its roles by the names that chat templates have.
_SHAREGPT, _ROLES = "conversations", {"human": "user", "gpt": "assistant"}


@dataclass(frozen=True, kw_only=True)
class Example:
    """What is learnt from a row.

    Args:
        prompt: Given text.
        answer: Text to learn.
        messages: A chat, in place of both.
        given: Messages at its beginning that are not learnt.
        label: Label of `answer`, which is given in this case.
        masked: Spans of characters of the answer that are not learnt.
        tokens: Token ids and labels from a function of the user, in place of all.
    """

    prompt: str = ""
    answer: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    given: int = 0
    label: str | int | None = None
    masked: Sequence[tuple[int, int]] = ()
    tokens: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """How rows of some columns are read.

    Args:
        columns: Required columns of a row.
        read: One row.
    """

    columns: tuple[str, ...]
    read: Callable[[Row], Example]


def find(config: Config, columns: Sequence[str], name: str) -> Format:
    """Return the format of the rows: the configured one, else the one that fits their columns.

    Args:
        config: Config of the run.
        columns: Columns of the rows.
        name: Name of the data, for errors.

    Raises:
        TrainingError: A column is missing.
    """
    format_ = _wanted(config, columns)
    there = f"it has {', '.join(map(repr, columns))}"
    if format_ is None:
        raise TrainingError(
            f"Cannot find training texts in {name!r}: {there}. Expected {config.messages_column!r}, 'prompt' and "
            f"'completion', or {config.text_column!r}. Name them with --text-column or --messages-column, or say what "
            "to make of them with --prompt-template and --completion-template."
        )
    if missing := [column for column in format_.columns if column not in columns]:
        raise TrainingError(
            f"{name!r} has no column {', '.join(map(repr, missing))}: {there}. Expected all of "
            f"{', '.join(map(repr, format_.columns))}. Correct the file, or name its columns."
        )
    return format_


def _wanted(config: Config, columns: Sequence[str]) -> Format | None:
    if config.data_format:
        return _NAMED[config.data_format]
    if "input_ids" in columns:
        return Format(("input_ids", "labels"), lambda row: Example(tokens=row))
    if config.task_mode == CLASSIFICATION:
        return _labelled(config.text_column, config.label_column)
    if config.completion_template:
        return _templates(config.prompt_template or "", config.completion_template)
    chats = next((one for one in (config.messages_column, _SHAREGPT) if one in columns), "")
    if chats:
        return Format((chats,), lambda row: Example(messages=_messages(row[chats])))
    if "prompt" in columns or "completion" in columns:
        return Format(("prompt", "completion"), _pair)
    if config.text_column in columns or config.text_column != "text":
        name = config.text_column
        return Format((name,), lambda row: Example(answer=_text(row, name)))
    return None


def _messages(chat: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages of a chat with their roles; ShareGPT's form has other names for both."""
    messages = []
    for message in chat:
        if message.get("role") is None and message.get("from") is not None:
            role = _ROLES.get(message["from"], message["from"])
            message = {"role": role, "content": message.get("value")}
        if message.get("role") is None:
            raise ValueError(
                f"a message has {', '.join(map(repr, message)) or 'no fields'}, and neither 'role' and 'content' nor "
                "'from' and 'value'"
            )
        messages.append(message)
    return messages


def _text(row: Row, name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise TypeError(f"{name!r} is {value!r}, and no text")
    return value


def _pair(row: Row) -> Example:
    """Read a prompt and its completion: two texts, or two parts of a chat."""
    if isinstance(row["prompt"], list):
        given = row["prompt"]
        return Example(messages=_messages([*given, *row["completion"]]), given=len(given))
    return Example(prompt=_text(row, "prompt"), answer=_text(row, "completion"))


def _labelled(text: str, label: str) -> Format:
    return Format((text, label), lambda row: Example(answer=_text(row, text), label=row[label]))


def _templates(prompt: str, completion: str) -> Format:
    from string import Formatter

    parts = (part for template in (prompt, completion) for part in Formatter().parse(template))
    columns = tuple(dict.fromkeys(name.partition(".")[0] for _, name, _, _ in parts if name))

    def read(row: Row) -> Example:
        return Example(prompt=prompt.format_map(row), answer=completion.format_map(row))

    return Format(columns, read)


# --- data sets by name: the prompts are those that models trained on them elsewhere have seen ---

_ALPACA = (
    "Below is an instruction that describes a task{paired}. Write a response that appropriately completes the request."
    "\n\n### Instruction:\n{instruction}\n\n{given}### Response:"
)
_PAIRED = ", paired with an input that provides further context"
_GSM8K = (
    "### Instruction: Solve the math question using a basic calculator.\nCalculator can be invoked using the format: "
    '<<expression=answer>>.\n"expression" can be one of the 4 arithmetic operations, and "answer" will be filled in '
    "for you.\nExample: <<20+30=50>>\n\n### Question: {question}\n\n### Answer: "
)


def _alpaca(row: Row) -> Example:
    given = row.get("input") or ""
    prompt = _ALPACA.format(
        paired=_PAIRED if given else "",
        instruction=_text(row, "instruction"),
        given=f"### Input:\n{given}\n\n" if given else "",
    )
    return Example(prompt=prompt, answer=_text(row, "output"))


def _grammar(row: Row) -> Example:
    prompt = f"Correct this to standard English: {_text(row, 'input')}\n---\nCorrected: "
    return Example(prompt=prompt, answer=_text(row, "target"))


def _gsm8k(row: Row) -> Example:
    """Read a question; what a calculator fills in, `30` and the brackets of <<10+20=30>>, is not learnt."""
    answer = _text(row, "answer")
    masked, at = [], 0
    while (opened := answer.find("<<", at)) >= 0 and (closed := answer.find(">>", opened)) >= 0:
        equals = answer.find("=", opened, closed)
        if equals >= 0:
            masked.append((equals + 1, closed + 2))
        at = closed + 2
    prompt = _GSM8K.format(question=_text(row, "question"))
    return Example(prompt=prompt, answer=answer, masked=masked)


_NAMED: Mapping[str, Format] = {
    "alpaca": Format(("instruction", "output"), _alpaca),
    "grammar": Format(("input", "target"), _grammar),
    "gsm8k": Format(("question", "answer"), _gsm8k),
    "imdb": _labelled("text", "label"),
}

# SPDX-License-Identifier: Apache-2.0
"""Flags of `run` and `bench` that mean nothing to a package's task, refused by name before it is opened."""

import argparse
from collections.abc import Iterable

from qeff_zoo.errors import AdapterError, GenerationError
from qeff_zoo.tasks import NAMES, TEXT2TEXT, ZERO_SHOT, find

#: Flags that ask for times.
TIMES = ("timestamps", "word_timestamps")
#: Of answers that are written token by token.
OF_TOKENS = (
    *("chat", "generation_len", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "seed", "logprobs", "stop"),
    *("json_schema", "regex", "choice", "grammar"),
    *("prefix_cache_bytes", "prefix_cache_answers", "prefix_cache_dir"),
)
#: Of what stands in prompts or beside them.
OF_PROMPTS = (
    "image", "video", "label", "pair", "prompts_file", "source_language", "block", "speculate",
)  # fmt: skip


def refuse_idle(
    task: str, arguments: argparse.Namespace, flags: Iterable[str], what: str = "answers"
) -> None:
    """Refuse flags that are given and would change nothing of `what` a package gives."""
    for name in sorted(flags):
        if (given := getattr(arguments, name)) is not None and given is not False and given != []:
            raise GenerationError(
                f"--{name.replace('_', '-')} does not apply to {task}, whose {what} it cannot change; expected a "
                "command without it. Leave it out."
            )


def refuse_choices(task: str, arguments: argparse.Namespace) -> None:
    """Refuse what means nothing to a task."""
    if arguments.pair and not (task in NAMES and find(task).session().takes_pairs):
        raise GenerationError(
            f"--pair does not apply to {task}, which reads one text at a time. Leave it out."
        )
    if arguments.label and task != ZERO_SHOT:
        raise GenerationError(
            f"--label does not apply to {task}; expected a package for {ZERO_SHOT}. Leave it out."
        )
    if (told := languages_of(arguments)) and task != TEXT2TEXT:
        raise GenerationError(
            f"--{next(iter(told)).replace('_', '-')} does not apply to {task}; expected a package that writes down "
            f"speech, or one for {TEXT2TEXT}. Leave it out."
        )
    if of_speech := [
        name
        for name in (*TIMES, "translate", "target_language", "fallback")
        if getattr(arguments, name)
    ]:
        raise GenerationError(
            f"--{of_speech[0].replace('_', '-')} does not apply to {task}; expected a package that writes down speech. "
            "Leave it out; of one that answers prompts, ask for it with --prompt."
        )
    if task in NAMES and find(task).answers != "logits":
        refuse_idle(task, arguments, OF_TOKENS)


def languages_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return which languages a package that translates is told."""
    names = ("language", "source_language")
    return {name: given for name in names if (given := getattr(arguments, name)) is not None}


def refuse_adapter(task: str, arguments: argparse.Namespace) -> None:
    """Refuse --adapter where a package reads no text."""
    if arguments.adapter is not None and task in NAMES and find(task).reads != "text":
        raise AdapterError(
            f"--adapter does not apply to {task}: adapters are for packages that read text. Leave it out."
        )

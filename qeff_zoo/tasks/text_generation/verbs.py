# SPDX-License-Identifier: Apache-2.0
"""`run` of packages that generate text: prompts in, text or JSON out."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from qeff_zoo.contract.commands import SAMPLING
from qeff_zoo.disk.text_files import read_text
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime import ChatOptions, Grammar, Sampling
from qeff_zoo.terminal.printing import print_generated, print_json


class Generate:
    """Generates text for prompts. Subclasses add a task's other inputs.

    Args:
        task: Name of the package's task.
        prompts: Prompts of the command.
        arguments: Arguments of the command.

    Raises:
        GenerationError: The inputs do not apply to the task.
    """

    def __init__(self, task: str, prompts: list[str], arguments: argparse.Namespace) -> None:
        self.task, self.prompts, self.arguments = task, prompts, arguments
        self.check()

    def check(self) -> None:
        """Refuse inputs that do not apply to the task."""

    def more(self) -> dict[str, Any]:
        """Return further arguments of the session's `generate`."""
        return {}

    def __call__(self, session: Any) -> None:
        """Generate and print."""
        arguments = self.arguments
        stream = None
        if len(self.prompts) == 1 and not arguments.json:
            stream = lambda _, text: print_generated(text, end="")  # noqa: E731
        more = {**generation_of(session, arguments), **self.more()}
        outputs = session.generate(self.prompts, stream=stream, **more)
        if arguments.json:
            answer = [as_json(output) for output in outputs]
            print_json({"outputs": answer, "metrics": session.metrics.as_dict()})
            return
        if stream is not None:
            print()
        else:
            for output in outputs:
                print_generated(f"{output.prompt}\n-> {output.text}\n")
        print(session.metrics, file=sys.stderr)


def generation_of(session: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a session's `generate`, which ignores generation_config.json if the command does."""
    configure(session, arguments)
    return {
        "generation_len": arguments.generation_len,
        "sampling": sampling_of(session, arguments),
        "stop": arguments.stop,
        "chat": _chat(arguments),
        "adapter": arguments.adapter,
        "grammar": _grammar(arguments),
        **({"documents": arguments.document} if arguments.document else {}),
    }


def configure(session: Any, arguments: argparse.Namespace) -> None:
    """Ignore the checkpoint's generation settings if the command does."""
    if arguments.generation_config == "none":
        session.ignore_generation_config()


def _chat(arguments: argparse.Namespace) -> bool | ChatOptions:
    """Return the options of the chat template; whether it applies, if there are none."""
    given = template_options(arguments)
    if given and not arguments.chat:
        raise GenerationError(
            f"Options of a chat template are given ({', '.join(map(str, given.values()))}), and --chat is not; "
            "expected both or neither. Add --chat, or leave them out."
        )
    return ChatOptions(**given) if given else bool(arguments.chat)


def template_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given options of the chat template, as fields of `ChatOptions`."""
    given = {
        "template": arguments.chat_template,
        "variables": arguments.chat_template_kwargs,
        "reasoning_effort": arguments.reasoning_effort,
    }
    return {name: value for name, value in given.items() if value is not None}


def as_json(output: Any) -> dict[str, Any]:
    """Return a generation as a JSON object."""
    names = ("prompt", "text", "token_ids", "finish_reason")
    content = {name: getattr(output, name) for name in names}
    if output.logprobs is not None:
        content["logprobs"] = [asdict(logprob) for logprob in output.logprobs]
    return content


def require_one_prompt(prompts: Sequence[str], what: str) -> None:
    """Refuse several prompts, or none, for one prompt with multimodal inputs.

    Raises:
        GenerationError: The number of prompts is not one.
    """
    if len(prompts) != 1:
        raise GenerationError(
            f"There are {len(prompts)} prompts, and {what} to one; expected one. Give --prompt once, and run them "
            "one by one."
        )


def sampling_of(session: Any, arguments: argparse.Namespace) -> Sampling:
    """Return the sampling parameters of the command; the session has the others."""
    given = {name: getattr(arguments, name) for name in SAMPLING}
    given = {name: value for name, value in given.items() if value is not None}
    random = [name for name in ("top_k", "top_p", "min_p", "seed") if name in given]
    if random and not given.get("temperature", session.default_sampling.temperature):
        raise GenerationError(
            f"--{random[0].replace('_', '-')} is for tokens drawn at random, and without --temperature none are. "
            "Expected both or neither. Add --temperature 1, or leave it out."
        )
    return Sampling(**given)


def _grammar(arguments: argparse.Namespace) -> Grammar | None:
    """Return the grammar of structured output; None for free text."""
    if arguments.regex is not None:
        return Grammar.regex(arguments.regex)
    if arguments.choice:
        return Grammar.choice(arguments.choice)
    if arguments.grammar is not None:
        return Grammar.context_free(read_text(arguments.grammar))
    if arguments.json_schema is not None:
        return Grammar.json(read_text(arguments.json_schema))
    return None

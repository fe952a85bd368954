# SPDX-License-Identifier: Apache-2.0
"""Commands of a task's packages: applicable options of `run`, `chat`, `serve` and `bench`, and their implementations.

An option that a task lacks is hidden from the help of its packages, and refused, see `qeff_zoo.cli.applicable`.
"""

from argparse import Namespace
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

#: Options by purpose, named like the attributes of parsed arguments.
PROMPTS = ("prompt", "prompts_file")
#: Options of `run` with inputs, by kind; a task requires the kind that is its `reads`.
INPUTS = {"text": PROMPTS, "image": ("image",), "video": ("video",), "audio": ("audio",)}
SAMPLING = (
    *(
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "repetition_penalty",
        "presence_penalty",
    ),
    *("frequency_penalty", "seed", "logprobs"),
)
TEMPLATE = ("chat_template", "chat_template_kwargs", "reasoning_effort")
_COMMON = ("generation_len", *TEMPLATE, "stop", "generation_config", *SAMPLING)
GENERATION = ("chat", *_COMMON)
GRAMMAR = ("json_schema", "regex", "choice", "grammar")
SPECULATION = ("draft", "acceptance")
PREFIX_CACHE = ("prefix_cache_bytes", "prefix_cache_answers", "prefix_cache_dir")
TIMES = ("timestamps", "word_timestamps")
#: Options of a conversation in the terminal.
CONVERSATION = ("system", *_COMMON, "adapter")
DECODER_CONVERSATION = (*CONVERSATION, *SPECULATION, *PREFIX_CACHE)
#: Options of a server that generates: adapters and caches, and its part in disaggregated serving.
SERVED_GENERATION = (
    *SPECULATION, *PREFIX_CACHE, "share_prefix_cache", "generation_config", "lora_modules", "allow_adapters",
    "tool_parser", "reasoning_parser", "tool_strict_level", "disable_additional_properties", "chat_template",
    "default_chat_template_kwargs",
)  # fmt: skip
DISAGGREGATED = ("role", "prefill_from")
#: Of measured generation, and of measured transcription.
BENCH_GENERATION = ("prompt_len", "generation_len", "draft", "plot")
BENCH_SPEECH = ("audio",)

#: Kind of measurement: generation of tokens for prompts, or transcription of recordings.
Bench = Literal["generation", "speech"]


@dataclass(frozen=True)
class Run:
    """Base class of commands `run`, whose instances are called with an open session.

    Args:
        task: Name of the package's task.
        prompts: Prompts of the command; empty for tasks that read none.
        arguments: Arguments of the command.
    """

    task: str
    prompts: list[str]
    arguments: Namespace


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Commands of a task's packages.

    Args:
        run: Function that returns a class of `(task, prompts, arguments)`, which refuses wrong inputs, and whose
            instances are called with an open session.
        run_options: Options of `run` that apply, besides those of every task.
        outputs: Suffixes of the files that `run --output` writes, a file for each input, such as `.png`; empty if
            results are text.
        chat_options: Options of `chat` that apply, besides those of every task; empty if there is no `chat`.
        serve: Function that returns the `Service` of a server, see `qeff_zoo.serving.server.services`; None if there
            is none.
        serve_paths: Paths of its endpoints, besides those of every server, such as `/v1/embeddings`.
        serve_options: Options of `serve` that apply, besides those of every task.
        bench: Kind of measurement of `bench`; None if there is none.
        bench_options: Options of `bench` that apply, besides those of every task.
    """

    run: Callable[[], Callable[..., Any]]
    run_options: Collection[str]
    outputs: tuple[str, ...] = ()
    chat_options: Collection[str] = ()
    serve: Callable[[], Any] | None = None
    serve_paths: Collection[str] = ()
    serve_options: Collection[str] = ()
    bench: Bench | None = None
    bench_options: Collection[str] = ()

    def options(self, command: str) -> Collection[str]:
        """Return the options of `run`, `chat`, `serve` or `bench` that apply, besides those of every task."""
        options: Collection[str] = getattr(self, f"{command}_options")
        return (*options, "output") if command == "run" and self.outputs else options

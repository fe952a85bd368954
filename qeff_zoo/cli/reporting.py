# SPDX-License-Identifier: Apache-2.0
"""Reports of unexpected exceptions: a file for the developers, and one line for the user."""

import os
import platform
import re
import shlex
import tempfile
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from qeff_zoo.terminal.sanitize import shown
from qeff_zoo.versions import installed

_TOOLS = (
    *("huggingface_hub", "jsonschema", "numpy", "onnxruntime", "tokenizers", "jinja2", "fastapi"),
    *("torch", "transformers", "onnx", "onnx-ir", "onnxscript", "model-signing"),
)
_LONGEST = 200  # characters of the exception in the line
_SHORTEST = 6  # characters of a secret in the environment
_WORDS = "(?i:token|password|passwd|secret|api[-_]?key)"
#: Secrets that are never written, and their replacements.
_SECRETS = (
    (re.compile(r"(://)[^\s/'\"@]+@"), r"\1***@"),  # the user of a URL
    (re.compile(r"([?&][\w.~-]+=)[^\s&'\"]+"), r"\1***"),  # its query
    (re.compile(rf"({_WORDS}(?:=|['\"]?:\s*)['\"]?)[^\s'\",)}}]+"), r"\1***"),
    (re.compile(r"((?i:bearer|basic)\s+)[\w.~+/=-]{8,}"), r"\1***"),
    (re.compile(r"\bhf_\w{8,}"), "***"),
)


def report(error: Exception, argv: Sequence[str]) -> str:
    """Write a report of an exception, without secrets; return the line for the user.

    Args:
        error: The caught exception.
        argv: Arguments of the command.
    """
    (*_, last) = traceback.format_exception_only(error)
    happened = shown(" ".join(_without_secrets(last, argv).split())[:_LONGEST])
    text = _without_secrets(_described(error, argv), argv)
    try:
        handle, path = tempfile.mkstemp(
            prefix="qeff-zoo-", suffix=".txt"
        )  # readable by the user alone
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:  # noqa: PTH123
            file.write(shown(text))
    except OSError as failure:
        return f"Something went wrong that should not: {happened}. No report could be written: {failure}."
    return (
        f"Something went wrong that should not: {happened}. Expected an answer, or an error that says what to do. "
        f"The report is in {path!r}, without what looks like a password or a token. Read it, and send it to who "
        "maintains qeff-zoo."
    )


def _described(error: Exception, argv: Sequence[str]) -> str:
    installed_ = {name: installed(name) for name in _TOOLS}
    versions = [f"{name} {number}" for name, number in installed_.items() if number]
    return "\n".join(
        [
            f"qeff-zoo {version('qeff-zoo')}, Python {platform.python_version()}, {platform.platform()}",
            ", ".join(versions),
            f"$ qeff-zoo {shlex.join(_arguments(argv))}",
            "",
            *traceback.format_exception(error),
        ]
    )


def _arguments(argv: Sequence[str]) -> list[str]:
    """Return the arguments with `***` for values of options that are named like secrets."""
    before = ["", *argv]
    return [
        "***" if last.startswith("--") and re.search(f"{_WORDS}$", last) else one
        for last, one in zip(before, argv, strict=False)
    ]


def _without_secrets(text: str, argv: Sequence[str]) -> str:
    named = ((name, value) for name, value in os.environ.items() if len(value) >= _SHORTEST)
    values = [value for name, value in named if re.search(f"{_WORDS}$", name)]
    values += [given for given, kept in zip(argv, _arguments(argv), strict=True) if given != kept]
    for value in filter(None, values):
        text = text.replace(value, "***")
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text

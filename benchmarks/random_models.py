# SPDX-License-Identifier: Apache-2.0
"""Models of random weights by transformers' own classes: made once, built to int4, measured by `qeff-zoo bench`."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from random_llama import write_tokenizer

#: Builds a checkpoint.
BUILD: tuple[str, ...] = (sys.executable, "-m", "qeff_zoo", "build")


def save(folder: Path, make: Callable[[], Any]) -> Path:
    """Write a checkpoint, unless it is there.

    Args:
        folder: Where; complete whenever it exists.
        make: Gives the model; random numbers are the same each time.

    Returns:
        The folder.
    """
    if folder.is_dir():
        return folder
    import torch

    unfinished = folder.with_name(f"{folder.name}.unfinished")
    torch.manual_seed(0)
    make().to(torch.bfloat16).save_pretrained(unfinished)
    write_tokenizer(unfinished)
    unfinished.rename(folder)
    return folder


def build(
    folder: Path,
    environment: Mapping[str, str],
    command: Sequence[str] = BUILD,
    weights: str = "int4",
    ctx_len: int = 512,
) -> str:
    """Build a checkpoint; return the package's folder.

    Args:
        folder: The checkpoint.
        environment: Of the process.
        command: That builds, as `qeff-zoo build` does.
        weights: What they become.
        ctx_len: Of the package.
    """
    given = [*command, str(folder), "--weights", weights, "--ctx-len", str(ctx_len)]
    given.append("--no-validate")
    done = subprocess.run(
        [*given, "--json"], check=True, stdout=subprocess.PIPE, env=dict(environment)
    )
    return str(json.loads(done.stdout)["path"])


def figures(package: str, threads: int) -> dict[str, Any]:
    """Measure one package in a process of its own."""
    command = [sys.executable, "-m", "qeff_zoo", "bench", package, "--json"]
    command += ["--threads", str(threads), "--batch-size", "1"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    (case,) = json.loads(done.stdout)
    answer: dict[str, Any] = case
    return answer

# SPDX-License-Identifier: Apache-2.0
"""QEfficient's functions beside `QAICInferenceSession`: prompts for a batch, and the sizes of a program."""

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from qeff_zoo.disk import text_files
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.qefficient.generation.cloud_infer import program_at
from qeff_zoo.qefficient.models import outside
from qeff_zoo.runtime.sizes import DecoderSizes

_T = TypeVar("_T")


def read_prompts_txt_file(prompts_txt_file_path: str | os.PathLike[str]) -> list[str]:
    """Return the lines of a text file, without white space at their ends.

    Args:
        prompts_txt_file_path: Path of the file, in UTF-8.
    """
    text = text_files.read(Path(prompts_txt_file_path))
    return [line.strip() for line in text_files.lines_of(text)]


def get_input_prompts(
    prompt: str | Sequence[str] | None,
    prompts_txt_file_path: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Return prompts as a list.

    Args:
        prompt: A prompt, or several.
        prompts_txt_file_path: Path of a file with one prompt a line, in place of `prompt`.

    Raises:
        ValueError: There is neither.
    """
    if prompts_txt_file_path is not None:
        return read_prompts_txt_file(prompts_txt_file_path)
    if prompt is None:
        raise ValueError(
            "There is neither prompt nor prompts_txt_file_path; expected one. Give a text, a list of texts, or a file."
        )
    return [prompt] if isinstance(prompt, str) else [*prompt]


def fix_prompts(
    prompt: Sequence[_T], batch_size: int, full_batch_size: int | None = None
) -> list[_T]:
    """Return as many prompts as calls of a program have rows, for loops without a scheduler.

    Too few are repeated. Without continuous batching, those beyond whole batches are left out, with a warning.
    `generate` of the classes takes any number.

    Args:
        prompt: Prompts, at least one.
        batch_size: Rows of a call.
        full_batch_size: Batch slots of continuous batching; None without.
    """
    rows = full_batch_size or batch_size
    if len(prompt) < rows:
        return [prompt[place % len(prompt)] for place in range(rows)]
    if full_batch_size is None and (rest := len(prompt) % batch_size):
        warnings.warn(
            f"{rest} of {len(prompt)} prompts are left out: the batch size is {batch_size}. Use `generate` of the "
            "classes, which takes any number.",
            stacklevel=outside(),
        )
        return [*prompt[:-rest]]
    return [*prompt]


def fix_prompt_to_lora_id_mapping(
    prompt_to_lora_id_mapping: Sequence[int], batch_size: int, full_batch_size: int | None = None
) -> list[int]:
    """Return the adapters of the prompts that `fix_prompts` returns.

    Args:
        prompt_to_lora_id_mapping: Number of each prompt's adapter.
        batch_size: Rows of a call.
        full_batch_size: Batch slots of continuous batching; None without.
    """
    return fix_prompts(prompt_to_lora_id_mapping, batch_size, full_batch_size)


def get_compilation_dims(qpc_path: str | os.PathLike[str]) -> tuple[int, int, int | None]:
    """Return batch size, context length and batch slots (None without continuous batching) of a compiled model.

    Args:
        qpc_path: Path that `compile` returned, or of a QPC with `specializations.json` beside it.

    Raises:
        FileNotFoundError: There is neither.
    """
    path = Path(qpc_path)
    beside = path.parent / "specializations.json"
    if beside.is_file():
        first = json.loads(read_regular(beside))["specializations"][0]
        symbols = first.get("symbols", first)
        slots = symbols.get("full_batch_size")
        return int(symbols["batch_size"]), int(symbols["ctx_len"]), int(slots) if slots else None
    if not path.exists():
        raise FileNotFoundError(
            f"{str(path)!r} does not exist, nor {str(beside)!r}; expected the path that `compile` returned. Compile "
            "the model again."
        )
    _, program = program_at(path)
    sizes = DecoderSizes.read(program.specializations)
    return sizes.batch_size, sizes.ctx_len, sizes.full_batch_size

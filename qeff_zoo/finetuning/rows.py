# SPDX-License-Identifier: Apache-2.0
"""Files, and functions of the user's -> rows to train on, and rows to validate on."""

import importlib.util
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets

from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.errors import TrainingError
from qeff_zoo.finetuning.config import Config, is_code
from qeff_zoo.terminal.progress import out_of_memory

TRAIN, VALIDATION = "train", "validation"
_BUILDERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class Rows:
    """Rows of one part of the data.

    Args:
        name: Source of the rows.
        table: All rows there.
        chosen: The numbers of those that are meant, in their order.
    """

    name: str
    table: datasets.Dataset
    chosen: Sequence[int]

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.table.column_names)

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each row with its number in the file."""
        for number in self.chosen:
            yield number, self.table[number]


@dataclass(frozen=True)
class Sources:
    """The data of a run.

    Args:
        train: To train on.
        validation: To validate on; None for none.
        digests: SHA-256 of each file, by its name.
    """

    train: Rows
    validation: Rows | None
    digests: Mapping[str, str]


def check(config: Config) -> None:
    """Refuse data that are not there, before anything else is done.

    Raises:
        TrainingError: There is no such file, or it is of no known kind.
    """
    for data in filter(None, (config.data, config.validation_data, config.collator)):
        file = Path(data.rpartition(":")[0] if is_code(data) else data)
        if not file.is_file():
            raise TrainingError(
                f"There is no file {str(file)!r}. Expected data to train on: a JSON, JSONL, CSV or Parquet file, or "
                "FILE.py:FUNCTION. Check the path; a data set of the Hub has to be downloaded first."
            )
        if not is_code(data) and file.suffix.lower() not in _BUILDERS:
            raise TrainingError(
                f"Cannot read {str(file)!r}: expected the name to end in {', '.join(_BUILDERS)}, or FILE.py:FUNCTION. "
                "Rename or convert it."
            )


def load(config: Config, scratch: Path, tokenizer: object = None) -> Sources:
    """Load the data of a run.

    Args:
        config: Config of the run.
        scratch: A folder for what is read, which must stay while the rows are used.
        tokenizer: Tokenizer for a user's function with the signature of QEfficient's custom data sets.

    Raises:
        TrainingError: A file cannot be read, or has too few rows.
    """
    table = _table(config, config.data, TRAIN, scratch, tokenizer)
    numbers = list(range(len(table)))
    if config.validation_data:
        other = _table(config, config.validation_data, VALIDATION, scratch, tokenizer)
        held_out = Rows(config.validation_data, other, range(len(other)))
    else:
        random.Random(config.data_seed).shuffle(numbers)
        kept = round(config.split_ratio * len(numbers))
        held_out = Rows(config.data, table, sorted(numbers[kept:]))
        numbers = sorted(numbers[:kept])
    validation = None
    if config.eval_strategy != "no":
        validation = Rows(held_out.name, held_out.table, held_out.chosen[: config.max_eval_samples])
    for part, chosen in ((TRAIN, numbers), (VALIDATION, validation.chosen if validation else [0])):
        if not chosen:
            raise TrainingError(
                f"{config.data!r} has {len(table)} rows, and none is left for {part}. Expected one at least. Add rows, "
                "change --split-ratio, give --validation-data, or turn validation off with --eval-strategy no."
            )
    return Sources(
        Rows(config.data, table, numbers[: config.max_samples]),
        validation,
        {
            name: f"sha256:{sha256_file(Path(name.rpartition(':')[0] if is_code(name) else name))}"
            for name in filter(None, (config.data, config.validation_data, config.collator))
        },
    )


def function(name: str) -> Callable[..., Any]:
    """Import a function of the user's, which runs the file.

    Args:
        name: `FILE.py:FUNCTION`.

    Raises:
        TrainingError: The file has no such function.
    """
    file, _, attribute = name.rpartition(":")
    path = Path(file).absolute()
    spec = importlib.util.spec_from_file_location(f"_finetuning_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import would: dataclasses and pickle look there
    spec.loader.exec_module(module)
    value = getattr(module, attribute, None)
    if not callable(value):
        raise TrainingError(
            f"{file!r} has no function {attribute!r}. Expected one that takes a split, {TRAIN!r} or {VALIDATION!r}, "
            "and returns rows. Correct the name after the colon."
        )
    return value  # type: ignore[no-any-return]


def _table(
    config: Config, data: str, split: str, scratch: Path, tokenizer: object
) -> datasets.Dataset:
    if is_code(data):
        table = function(data)
        if not config.data_options:
            return table_of(data, table(split))
        options = dict(config.data_options)
        named = options.get("train_split" if split == TRAIN else "test_split", split)
        given = SimpleNamespace(**options), tokenizer, named
        return table_of(data, table(*given, context_length=config.max_length))
    builder = _BUILDERS[Path(data).suffix.lower()]
    facts = {"delimiter": "\t"} if data.lower().endswith(".tsv") else {}
    try:
        return datasets.load_dataset(
            builder, data_files=data, split="train", cache_dir=str(scratch), **facts
        )
    except StopIteration as error:  # of an empty file
        raise TrainingError(
            f"{data!r} has no rows. Expected a {builder} file with one at least. Add rows, or give another file."
        ) from error
    except (datasets.exceptions.DatasetGenerationError, ValueError, OSError) as error:
        cause = error.__cause__ or error
        if short := out_of_memory(cause, f"while {data!r} is read"):
            raise short from error
        raise TrainingError(
            f"Cannot read {data!r}: {' '.join(str(cause).split())}. Expected a {builder} file whose rows all have the "
            "same columns. Correct it."
        ) from error


def table_of(name: str, rows: Iterable[Mapping[str, Any]]) -> datasets.Dataset:
    """Make a table of what a function of the user's returned.

    Raises:
        TrainingError: The data are not a sequence of rows.
    """
    if isinstance(rows, datasets.Dataset):
        return rows
    try:
        return datasets.Dataset.from_list([dict(row) for row in rows])
    except (TypeError, ValueError) as error:
        raise TrainingError(
            f"{name!r} returned {type(rows).__name__} that makes no table: {error}. Expected rows, each a dict with "
            "the same columns. Correct the function."
        ) from error

# SPDX-License-Identifier: Apache-2.0
"""A YAML file and flags -> a `Config`. The sections of the file are QEfficient's, and so are some names of entries."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from qeff_zoo.disk.yaml_files import read_yaml
from qeff_zoo.errors import PlanError, did_you_mean
from qeff_zoo.finetuning.config import CLASSIFICATION, FORMATS, GENERATION, Config

#: Parts of a file: an entry's name says what it is, and the part only where to look for it.
_SECTIONS = (
    "model", "peft_config", "dataset", "training", "ddp_config", "optimizers", "scheduler", "callbacks",
    "early_stopping",
)  # fmt: skip
#: QEfficient's names for our fields.
_ALIASES = {
    "dataset_num_samples": "max_samples",
    "json_file_path": "data",
    "lr": "learning_rate",
    "max_seq_length": "max_length",
    "r": "lora_r",
    "scheduler_name": "lr_scheduler_type",
}
#: Entries that may only say what is done in any case.
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "dataset_type": ("sft_dataset",),
    "gradient_checkpointing_kwargs": ({"use_reentrant": False},),
    "json_logger": (None, True),
    "enhanced_progressbar": (None, True),
    "inference_mode": (False,),
    "model_type": ("hf",),
    "peft_type": ("LORA",),
    "pp_degree": (1,),
    "task_type": ("CAUSAL_LM", "SEQ_CLS"),
    "torch_compile": (False,),
    "type": ("sft",),
}
_TASKS = {
    "AutoModelForCausalLM": GENERATION,
    "AutoModelForSequenceClassification": CLASSIFICATION,
}
_TYPES: Mapping[str, Any] = get_type_hints(Config)
_NAMES = frozenset(_TYPES)


def read(path: Path | None, given: Mapping[str, Any]) -> Config:
    """Read a configuration.

    Args:
        path: YAML file; None for none.
        given: Fields by name, which win over those of the file; None for what was not given.

    Raises:
        PlanError: All that is wrong with it.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    for name, value in entries_of(path) if path else ():
        _take(name, value, values, problems)
    flags: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            _take(name, value, flags, problems)
    values |= flags
    if problems:
        raise PlanError(problems)
    config = Config(**values)
    if faults := config.problems():
        raise PlanError(faults)
    return config


def entries_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a YAML or JSON file, by our names.

    Raises:
        PlanError: The file is unreadable.
    """
    for name, value in _entries(_load(path)):
        yield _ALIASES.get(name, name), value


def as_yaml(config: Config) -> str:
    """Write a configuration so that `read` reads it."""
    import yaml

    sections: dict[str, dict[str, Any]] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        value = dict(value) if isinstance(value, Mapping) else value
        value = list(value) if isinstance(value, tuple) else value
        sections.setdefault(field.metadata["section"], {})[field.name] = value
    sections["model"]["peft_config"] = sections.pop("peft_config")
    return str(yaml.safe_dump(sections, sort_keys=False, allow_unicode=True))


def as_dict(config: Config) -> dict[str, Any]:
    """Return a configuration as JSON has it."""
    content: dict[str, Any] = json.loads(json.dumps(asdict(_plain(config))))
    return content


def _plain(config: Config) -> Any:
    return replace(
        config, peft_options=dict(config.peft_options), data_options=dict(config.data_options)
    )


def _load(path: Path) -> Mapping[str, Any]:
    try:
        content = read_yaml(path)
    except (OSError, ValueError) as error:
        raise PlanError(
            [f"Cannot read {str(path)!r}: {error}. Expected a YAML file. Correct it, or the path."]
        ) from error
    if not isinstance(content, dict):
        raise PlanError(
            [
                f"{str(path)!r} holds {type(content).__name__}; expected sections of a training run, such as `model:`. "
                "Write them as docs/finetuning.md shows."
            ]
        )
    return content


def _entries(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all entries of a file, whatever part they are in."""
    for name, value in content.items():
        if name in _SECTIONS:
            yield from _entries(value or {})
        elif name == "tensorboard" and value is None:  # an entry of `callbacks` with no options
            yield name, True
        else:
            yield str(name), value


def _take(name: str, value: Any, values: dict[str, Any], problems: list[str]) -> None:
    """Accept an entry, or report what is wrong with it."""
    name = _ALIASES.get(name, name)
    if name in _FIXED:
        if value not in _FIXED[name]:
            allowed = " or ".join(repr(one) for one in _FIXED[name])
            problems.append(
                f"{name} is {value!r}; expected {allowed}: nothing else is done here. Leave it out."
            )
        return
    name, value = _translated(name, value)
    if name not in _NAMES:
        if value is None:
            problems.append(_unknown(name))
            return
        options = _lora_options()
        if name not in options:
            problems.append(_unknown(name, options))
            return
        values["peft_options"] = {**values.get("peft_options", {}), name: value}
        return
    if name in values and name != "peft_options":
        problems.append(
            f"{name} was given twice, as {values[name]!r} and {value!r}; expected it once. Remove one of them."
        )
        return
    try:
        values[name] = _as(_TYPES[name], value)
    except (TypeError, ValueError):
        problems.append(
            f"{name} is {value!r}; expected {_words(_TYPES[name])}. Change it, or leave it out."
        )


def _translated(name: str, value: Any) -> tuple[str, Any]:
    """Translate an entry of QEfficient's whose value is another than ours too."""
    if name == "auto_class_name":
        return "task_mode", _TASKS.get(str(value), value)
    if name == "optimizer_name":
        return "optim", "adamw_torch" if str(value).lower() == "adamw" else value
    if name == "dataset_name":
        format_ = str(value).removesuffix("_dataset")
        return "data_format", format_ if format_ in FORMATS else value
    if name in ("fp16", "bf16"):
        kind = {"fp16": "float16", "bf16": "bfloat16"}[name]
        return "autocast", kind if value else "auto"
    return name, value


def _lora_options() -> frozenset[str]:
    """Return the options of peft's LoRA that are no fields of ours."""
    from peft import LoraConfig

    return frozenset(field.name for field in fields(LoraConfig)) - {"base_model_name_or_path"}


def _unknown(name: str, more: frozenset[str] = frozenset()) -> str:
    near = did_you_mean(name, [*_NAMES, *_ALIASES, *more])
    return f"There is no entry {name!r}; expected one of docs/finetuning.md.{near} Correct it, or leave it out."


def _as(kind: Any, value: Any) -> Any:
    """Read a value as a field's type.

    Raises:
        TypeError: The value is of another type.
        ValueError: A text is no number.
    """
    options = get_args(kind)
    if type(None) in options:
        if value is None:
            return None
        kind = next(option for option in options if option is not type(None))
    if kind is bool:
        words = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
        return value if isinstance(value, bool) else words[str(value).lower()]
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError
        number = float(value)  # YAML has 1e-3 as a text
        if kind is int and number != int(number):
            raise ValueError
        return kind(number)
    if kind is str:
        if not isinstance(value, str | Path):
            raise TypeError
        return str(value)
    if kind == tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(str(part).strip() for part in parts)
    parsed = json.loads(value) if isinstance(value, str) else value
    if not isinstance(parsed, Mapping):
        raise TypeError
    return dict(parsed)


def _words(kind: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    options = [argument for argument in get_args(kind) if argument is not type(None)]
    kind = options[0] if type(None) in get_args(kind) else kind
    return names.get(kind, "names with commas between" if kind == tuple[str, ...] else "an object")

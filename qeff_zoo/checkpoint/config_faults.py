# SPDX-License-Identifier: Apache-2.0
"""Faults of a config.json that transformers rejects, as one error with the field.

Input: a configuration, and the exception of transformers. Output: a `CheckpointError`. transformers validates types of
    fields when it parses them, and their values, such as the name of an activation, only when it creates a model.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.errors import CheckpointError, Translating, ZooError
from qeff_zoo.terminal.progress import out_of_memory

_SHOWN = 3  # fields, in a message
_LONGEST = 300  # characters of transformers' message
#: Fields with objects that the configuration of any model may have.
_OBJECTS = ("rope_scaling", "rope_parameters", "id2label", "label2id", "task_specific_params")


def refusals_of(config: Mapping[str, Any]) -> Translating:
    """Return a context in which exceptions of transformers become errors about a configuration.

    Args:
        config: Raw config.json, from which transformers makes an object or a model.
    """

    def translate(error: BaseException) -> ZooError | None:
        passing = isinstance(error, ZooError | ImportError | OSError) or out_of_memory(error, "")
        return None if passing else _refusal(config, error)

    return Translating(translate)


def fault_of(path: Path) -> CheckpointError | None:
    """Return the fault for which transformers does not parse a config.json; None if it does, or lacks its type.

    Args:
        path: The file.
    """
    if not path.is_file():
        return None
    from transformers import CONFIG_MAPPING

    config = read_json(path)
    try:
        with refusals_of(config):
            if (kind := str(config.get("model_type"))) in CONFIG_MAPPING:
                CONFIG_MAPPING[kind].from_dict({**config})
    except CheckpointError as error:
        return error
    return None


def fault_of_labels(config: Mapping[str, Any]) -> str | None:
    """Return why the labels of a classifier have no names in order, one sentence; None if they have.

    transformers counts the entries of `id2label`, and finds the name of a label by its number.

    Args:
        config: Raw config.json.
    """
    named, number = config.get("id2label"), config.get("num_labels")
    if not isinstance(named, Mapping) or not named:
        return None
    try:
        numbers = sorted(int(key) for key in named)
    except ValueError:
        numbers = []
    if numbers != [*range(len(named))]:
        keys = ", ".join(map(repr, named))
        return (
            f"`id2label` in config.json names the labels {keys:.120}; expected each number from 0 to {len(named) - 1} "
            "once. Correct it."
        )
    if number is not None and number != len(named):
        return (
            f"`id2label` in config.json names {len(named)} labels, and `num_labels` is {number!r}; expected the same "
            "number. Correct one of them."
        )
    return None


def _refusal(config: Mapping[str, Any], error: BaseException) -> CheckpointError:
    message = " ".join(str(error).split())[:_LONGEST].rstrip(".")
    fields = list(_suspects(config, error))
    named = ", ".join(f"{name} is {value!r:.60}" for name, value in fields[:_SHOWN])
    return CheckpointError(
        f"transformers does not accept this config of model_type {config.get('model_type')!r}: "
        f"{type(error).__name__}: {message}{f' ({named})' if named else ''}. Expected the config.json that belongs to "
        "the checkpoint; correct it."
    )


def _suspects(config: Mapping[str, Any], error: BaseException) -> Iterator[tuple[str, Any]]:
    """Yield the fields that an error is about: those with the value in its message, else those that no model has."""
    fields = [*_fields(config)]
    if named := [each for each in fields if type(each[1]) is str and repr(each[1]) in str(error)]:
        yield from named
        return
    if any(name.rpartition(".")[2] in str(error) for name, _ in fields if len(name) > 3):
        return  # the message has it
    for name, value in fields:
        in_rope = name.startswith(("rope_scaling.", "rope_parameters.")) and "type" not in name
        is_odd = value < 1 if type(value) is int else type(value) is str and in_rope
        if is_odd and not name.endswith("_id"):
            yield name, value
    if isinstance(error, AttributeError):
        objects = ((name, value) for name, value in config.items() if isinstance(value, dict))
        yield from ((name, value) for name, value in objects if name not in _OBJECTS)


def _fields(part: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in part.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{where}{name}.")
        else:
            yield f"{where}{name}", value

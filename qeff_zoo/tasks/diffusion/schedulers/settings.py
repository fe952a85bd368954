# SPDX-License-Identifier: Apache-2.0
"""Reading of a scheduler's configuration: every setting is computed, or refused by name."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from qeff_zoo.errors import UnsupportedModelError, did_you_mean

S = TypeVar("S", bound="Settings")


class Settings:
    """Base of settings: dataclasses with the fields of diffusers' class, whose types are the values computed here."""

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each contradiction between settings, or value out of range."""
        yield from ()


def read_settings(
    kind: type[S], config: Mapping[str, Any], foreign: Collection[str], name: str
) -> S:
    """Return the settings of a scheduler.

    Settings of other schedulers have no effect in diffusers, and published configurations have many: they are skipped.
    So are unknown ones that are switched off.

    Args:
        kind: Dataclass of the settings.
        config: Content of `scheduler_config.json`.
        foreign: Names of settings of all schedulers.
        name: Class of the scheduler, for errors.

    Raises:
        UnsupportedModelError: A setting is unknown, has another type, or a value that is not computed.
    """
    types, values, problems = types_of(kind), {}, []
    for setting, value in config.items():
        if setting.startswith("_"):
            continue
        if setting not in types:
            if setting not in foreign and value is not None and value is not False:
                near = did_you_mean(setting, types)
                problems.append(f"Setting {setting!r} is unknown (value: {value!r}).{near}")
        elif (accepted := _accept(types[setting], value)) is MISSING:
            problems.append(
                f"Setting {setting!r} is {value!r}; expected {_describe(types[setting])}."
            )
        else:
            values[setting] = accepted
    settings = kind(**values)
    problems += settings.problems()
    if problems:
        raise UnsupportedModelError(
            f"Cannot use the configuration of {name}: {' '.join(problems)}"
            " Change scheduler/scheduler_config.json, or choose another scheduler."
        )
    return settings


def types_of(kind: Any) -> dict[str, Any]:
    """Return the type of each setting."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _accept(kind: Any, value: Any) -> Any:
    """Return a value of JSON as a setting of a type, or MISSING."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value if type(value) in (str, bool, NoneType) and value in parts else MISSING
    if origin in (Union, UnionType):
        results = (_accept(part, value) for part in parts)
        return next((result for result in results if result is not MISSING), MISSING)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            return MISSING
        items = tuple(_accept(parts[0], item) for item in value)
        return MISSING if MISSING in items else items
    if kind is float:
        numeric = type(value) in (int, float) and not math.isnan(value)
        return float(value) if numeric else MISSING
    return value if type(value) is kind else MISSING


def _describe(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin in (Union, UnionType):
        return " or ".join(map(_describe, parts))
    if origin is tuple:
        return f"a list, each item {_describe(parts[0])}"
    names = {bool: "true or false", int: "an integer", float: "a number", NoneType: "null"}
    return names[kind]

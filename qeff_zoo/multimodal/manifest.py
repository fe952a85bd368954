# SPDX-License-Identifier: Apache-2.0
"""Image and audio encoders in a manifest: conversion to an entry with family and values, and back."""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from functools import cache
from typing import Any, TypeVar

from qeff_zoo import multimodal
from qeff_zoo.errors import PackageError
from qeff_zoo.multimodal.images import Images
from qeff_zoo.recipe_media import AudioEncoder, Media

from . import families

_FAMILY = "family"

_Encoder = TypeVar("_Encoder", bound=Media)


def entry_of(encoder: Media) -> dict[str, Any]:
    """Return the entry of an image or audio encoder in a manifest, with all defaults that are not empty.

    Args:
        encoder: Encoder of a recipe.
    """
    usual = {field.name: field.default for field in fields(encoder)}
    assert MISSING not in usual.values(), "a field of an encoder has a default"
    return {
        _FAMILY: _name_of(type(encoder)),
        **{
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(encoder).items()
            if value or value != usual[name]
        },
    }


def images_of(entry: Mapping[str, Any]) -> Images:
    """Return the image encoder of a manifest's entry.

    Args:
        entry: Untrusted entry of a manifest, in the form of `entry_of`.

    Raises:
        PackageError: If the family does not exist, or has no such values.
    """
    return _encoder_of(entry, Images, "image")


def audio_of(entry: Mapping[str, Any]) -> AudioEncoder:
    """Return the audio encoder of a manifest's entry; see `images_of`."""
    return _encoder_of(entry, AudioEncoder, "audio")


def _encoder_of(entry: Mapping[str, Any], base: type[_Encoder], modality: str) -> _Encoder:
    name = entry.get(_FAMILY, "")
    family = family_of(name) if name in family_names() else None
    if family is None or not issubclass(family, base):
        known = ", ".join(one for one in family_names() if issubclass(family_of(one), base))
        raise PackageError(
            f"The package's {modality} encoder is of family {name!r}; expected one of {known}. Build the package "
            "again, or run it with the qeff-zoo that built it."
        )
    values = {key: value for key, value in entry.items() if key != _FAMILY}
    kinds = {field.name: type(field.default) for field in fields(family)}
    fits = {
        key: isinstance(value, list if kinds[key] is tuple else kinds[key])
        for key, value in values.items()
        if key in kinds
    }
    if strange := sorted(value for value in values if not fits.get(value)):
        raise PackageError(
            f"The package's {modality} encoder of family {name!r} has the values {', '.join(strange)}, which this "
            "qeff-zoo does not know, or which are of another type. Build the package again, or run it with the "
            "qeff-zoo that built it."
        )
    return family.of(values)


def _name_of(family: type[Media]) -> str:
    return family.__module__.rpartition(".")[2]


@cache
def family_names() -> tuple[str, ...]:
    """Return the family names that a manifest may contain: the modules of bases and of families."""
    paths = [*multimodal.__path__, *families.__path__]
    modules = {module.name for module in pkgutil.iter_modules(paths) if not module.ispkg}
    return tuple(sorted(modules - {"manifest", "own_forms"}))


@cache
def family_of(name: str) -> type[Media]:
    """Return the class of a family.

    Args:
        name: One of `family_names`.
    """
    bases = {one.name for one in pkgutil.iter_modules(multimodal.__path__)}
    folder = multimodal if name in bases else families
    module = importlib.import_module(f"{folder.__name__}.{name}")
    own = [
        var
        for var in vars(module).values()
        if isinstance(var, type) and issubclass(var, Media) and var.__module__ == module.__name__
    ]
    (family,) = own
    return family

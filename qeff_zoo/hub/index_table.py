# SPDX-License-Identifier: Apache-2.0
"""The packages of an index, in tables as in its file: an entry is made, and checked, when it is first needed.

In: JSON values that anyone may have written. Out: a `Table`, a sequence of entries.
"""

import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeAlias, overload

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub.entries import Entry, is_text
from qeff_zoo.package.manifest import VALIDATED

_VARIANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,119}")
_ROW = re.compile(
    rf"[0-9a-f]{{16}} [0-9a-f]{{64}} \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ ({'|'.join(VALIDATED)})",
    re.ASCII,
)
_Source: TypeAlias = tuple[str, str, str | None, str | None]
_Kind: TypeAlias = tuple[str, Mapping[str, Any], Mapping[str, str], Mapping[str, str]]


@contextmanager
def malformed() -> Iterator[None]:
    """Return the error for a malformed index."""
    try:
        yield
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        zlib.error,
    ) as error:
        raise RemoteError(
            f"The index cannot be read: {error}. Expected what `qeff-zoo publish` writes. Publish to the remote "
            "again, or take another remote."
        ) from error


def require(holds: Any, what: str, value: Any) -> None:
    """Refuse a value that is not what it must be.

    Raises:
        ValueError: With the value.
    """
    if not holds:
        raise ValueError(f"its {what} is {value!r}")


class Table(Sequence[Entry]):
    """Packages, of which each row names its source and its kind by number.

    Args:
        sources: Model, model type, revision and license.
        kinds: Variant, axes, needs and tested versions.
        rows: See `qeff_zoo.hub.index`.

    Raises:
        ValueError: One of them is not a list. Their items are checked when they are used.
    """

    def __init__(self, sources: Any, kinds: Any, rows: Any) -> None:
        for given in (sources, kinds, rows):
            require(isinstance(given, list), "table", given)
        self._sources, self._kinds, self._rows = sources, kinds, rows
        self._checked_sources: dict[int, _Source] = {}
        self._checked_kinds: dict[int, _Kind] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, number: int) -> Entry: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[Entry, ...]: ...
    def __getitem__(self, number: int | slice) -> Entry | tuple[Entry, ...]:
        if isinstance(number, slice):
            return tuple(map(self._entry, self._rows[number]))
        return self._entry(self._rows[number])

    def __iter__(self) -> Iterator[Entry]:
        return map(self._entry, self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as of what its entries hold

    def of_model(self, model_id: str) -> tuple[Entry, ...]:
        """List the packages of one model.

        Raises:
            RemoteError: One of them is malformed.
        """
        with malformed():
            numbers = {
                number for number, source in enumerate(self._sources) if source[0] == model_id
            }
            return tuple(self._entry(row) for row in self._rows if row[0] in numbers)

    @property
    def models(self) -> tuple[str, ...]:
        """The model ids that there are sources of, sorted."""
        with malformed():
            return tuple(sorted({_source(source)[0] for source in self._sources}))

    def _entry(self, row: Any) -> Entry:
        source, kind, key16, manifest, size, finished, validated, signed = row
        text = f"{key16} {manifest} {finished} {validated}"  # one match is quicker than four
        numbers = type(source) is type(kind) is type(size) is int and min(source, kind, size) >= 0
        require(numbers and type(signed) is bool and _ROW.fullmatch(text), "package", row)
        if source not in self._checked_sources:
            self._checked_sources[source] = _source(self._sources[source])
        if kind not in self._checked_kinds:
            self._checked_kinds[kind] = _kind(self._kinds[kind])
        model, model_type, revision, license = self._checked_sources[source]
        folder, axes, needs, tested = self._checked_kinds[kind]
        return Entry(
            path=f"{folder}/{key16}", manifest=manifest, model=model, model_type=model_type, revision=revision,
            license=license, size=size, finished=finished, validated=validated, signed=signed,
            axes=axes, needs=needs, tested=tested,
        )  # fmt: skip


def _source(source: Any) -> _Source:
    model, model_type, revision, license = source
    named = is_text(model) and is_text(model_type)
    optional = all(text is None or is_text(text) for text in (revision, license))
    require(named and optional, "source", source)
    return model, model_type, revision, license


def _kind(kind: Any) -> _Kind:
    require(kind.keys() == {"variant", "axes", "needs", "tested"}, "kind", kind)
    require(_VARIANT.fullmatch(kind["variant"]), "variant", kind["variant"])
    for name, value in kind["axes"].items():
        members = value if isinstance(value, list) else [value]
        require(is_text(name) and all(map(_is_plain, members)), f"axis {name!r}", value)
    for name, value in (*kind["needs"].items(), *kind["tested"].items()):
        require(is_text(name) and (value == "" or is_text(value)), f"version of {name!r}", value)
    axes, needs, tested = (MappingProxyType(kind[name]) for name in ("axes", "needs", "tested"))
    return f"packages/{kind['variant']}", axes, needs, tested


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool | int) or is_text(value)

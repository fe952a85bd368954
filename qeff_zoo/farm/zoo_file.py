# SPDX-License-Identifier: Apache-2.0
"""Zoo file: models, variants and rules in TOML -> one cell for each package of the zoo.

remote = "hf://acme/{name}"              # destination; {org} and {name} are those of the model
private = true                           # new repositories are private

[limits]                                 # of one machine, see `Limits`
memory = "20 GB"

[[models]]
model = ["org/name", "checkpoints/*"]    # Hub ids, folders, GGUF files, patterns of files and folders

[[variants]]
name = "cpu"
weights = ["int8", "int4"]               # options of `qeff-zoo build`; of a list, each value is a variant
ctx_len = 4096

[[exclude]]                              # also [[include]]
model = "org/*"
weights = "int4"
"""

import fnmatch
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin

from qeff_zoo.checkpoint.files import MODEL_INDEX, Place
from qeff_zoo.disk import text_files
from qeff_zoo.errors import FarmError, did_you_mean
from qeff_zoo.hub.remotes import is_repository
from qeff_zoo.package.identity import canonical
from qeff_zoo.package.option import JsonText, Option
from qeff_zoo.plan.request import OPTIONS, Request

_TOP = ("version", "remote", "private", "limits", "models", "variants", "include", "exclude")
_PLACE = ("revision", "config_from", "gguf_file")
_UNITS = {"": 0, "kB": 1, "MB": 2, "GB": 3, "TB": 4}
_VERSION = 1
_MOST = 100_000  # packages of a zoo


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of each machine; None for all that it has.

    Args:
        memory: Bytes of memory for all builds together.
        disk: Bytes of disk for all builds together.
        cores: Number of builds at once, each of which computes on one core.
    """

    memory: int | None = None
    disk: int | None = None
    cores: int | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """One model of a zoo.

    Args:
        model: Hub id, or absolute path of a folder or GGUF file.
        place: Further arguments of `open_checkpoint`.
        memory: Bytes of memory that each build requires; None for the estimate.
        disk: Bytes of disk that each build requires; None for the estimate.
    """

    model: str
    place: Place = field(default_factory=Place)
    memory: int | None = None
    disk: int | None = None

    @property
    def name(self) -> str:
        """Hub id, or the name of the folder or file."""
        return Path(self.model).name if Path(self.model).is_absolute() else self.model


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One package of a zoo: a model in one variant.

    Args:
        source: The model.
        variant: Name of the variant in the zoo file.
        request: Options of the build.
    """

    source: Source
    variant: str
    request: Request

    @property
    def options(self) -> dict[str, Any]:
        """Options that the zoo file sets."""
        chosen = {name: getattr(self.request, name) for name in OPTIONS}
        return {name: value for name, value in chosen.items() if value is not None}

    def __str__(self) -> str:
        chosen = " ".join(f"{name}={_shown(value)}" for name, value in self.options.items())
        return " ".join(filter(None, (self.source.name, self.variant, chosen)))


@dataclass(frozen=True, kw_only=True)
class Zoo:
    """A zoo file.

    Args:
        path: Path of the file.
        remote: Remote of the packages, with `{org}` and `{name}` for those of a model; None to publish nowhere.
        private: Whether new repositories are private.
        limits: Limits of each machine.
        wanted: Every package, in the order of the file.
    """

    path: Path
    remote: str | None
    private: bool
    limits: Limits
    wanted: tuple[Wanted, ...]


def read(path: Path) -> Zoo:
    """Read a zoo file; nothing is opened or reached.

    Args:
        path: Path of the file; relative paths in it start at its folder.

    Raises:
        FarmError: The file is not as expected; the error lists every problem.
    """
    import tomllib

    try:
        content = tomllib.loads(text_files.read(path))
    except (OSError, RecursionError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FarmError(
            path, [f"It cannot be read: {reason}. Expected a file in TOML. Correct it."]
        ) from error
    return _Reader(path, content).read()


class _Reader:
    """Reader of one file, which collects problems.

    Args:
        path: Path of the file.
        content: Parsed content.
    """

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        self._path, self._content = path, content
        self._folder = path.absolute().parent
        self._problems: list[str] = []

    def read(self) -> Zoo:
        """Return the zoo, or raise all problems."""
        content = self._content
        if content.get("version", _VERSION) != _VERSION:
            self._refuse("version", content["version"], f"{_VERSION}", "Install a newer qeff-zoo.")
            self._raise()
        self._require_known("the file", content, _TOP)
        limits = self._limits(content.get("limits", {}))
        remote, private = content.get("remote"), content.get("private", False)
        if remote is not None and not isinstance(remote, str):
            self._refuse("remote", remote, "a text such as 'hf://org/repo'")
        elif remote and remote.startswith("."):
            remote = f"file://{os.path.normpath(self._folder / remote)}"
        if not isinstance(private, bool):
            self._refuse("private", private, "true or false")
        sources = [source for entry in self._tables("models") for source in self._sources(entry)]
        self._require_once(sources)
        variants = self._variants()
        rules = {name: [*self._rules(name)] for name in ("include", "exclude")}
        if not sources:
            self._refuse("models", [], "one [[models]] at least")
        if len(sources) * len(variants) > _MOST:
            self._refuse("models", f"{len(sources):,} in {len(variants):,} variants", "fewer")
        self._raise()
        wanted = tuple(
            Wanted(source=source, variant=name, request=Request(**choices))
            for source in sources
            for name, choices in variants
            if _is_kept(source, name, choices, **rules)
        )
        if not wanted:
            self._problems.append(
                "Its rules leave no package. Expected one at least. Correct [[include]] or [[exclude]]."
            )
            self._raise()
        return Zoo(path=self._path, remote=remote, private=private, limits=limits, wanted=wanted)

    def _raise(self) -> None:
        if self._problems:
            raise FarmError(self._path, self._problems)

    def _refuse(self, where: str, value: Any, expected: str, do: str = "Correct it.") -> None:
        self._problems.append(f"{where} is {value!r}; expected {expected}. {do}")

    def _require_known(self, where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
        for name in table.keys() - {*known}:
            self._problems.append(
                f"{where} has {name!r}; expected {', '.join(known)}.{did_you_mean(name, known)} Correct it, or leave "
                "it out."
            )

    def _tables(self, name: str) -> list[Mapping[str, Any]]:
        tables = self._content.get(name, [])
        if isinstance(tables, list) and all(isinstance(table, dict) for table in tables):
            return tables
        self._refuse(name, tables, f"tables [[{name}]]")
        return []

    def _limits(self, table: Any) -> Limits:
        if not isinstance(table, dict):
            self._refuse("limits", table, "a table [limits]")
            return Limits()
        self._require_known("[limits]", table, [one.name for one in fields(Limits)])
        cores = table.get("cores")
        if cores is not None and (type(cores) is not int or cores < 1):
            self._refuse("cores of [limits]", cores, "a number from 1 on")
        sizes = {name: self._size("[limits]", table, name) for name in ("memory", "disk")}
        return Limits(cores=cores, **sizes)

    def _size(self, where: str, table: Mapping[str, Any], name: str) -> int | None:
        value = table.get(name)
        if value is None or (type(value) is int and value > 0):
            return value
        match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?([kMGT]?B)", str(value))
        if match is None:
            self._refuse(f"{name} of {where}", value, "a size such as '24 GB'")
            return None
        return int(float(match[1]) * 1000 ** _UNITS[match[2] if match[2] != "B" else ""])

    # --- models ------------------------------------------------------------------------------

    def _sources(self, entry: Mapping[str, Any]) -> Iterator[Source]:
        where = "[[models]]"
        self._require_known(where, entry, ("model", *_PLACE, "memory", "disk"))
        location: Any = {name: entry[name] for name in _PLACE if name in entry}
        for name, value in location.items():
            if not isinstance(value, str):
                self._refuse(f"{name} of {where}", value, "a text")
        if isinstance(original := location.get("config_from"), str):
            location["config_from"] = self._located(original)
        sizes = {name: self._size(where, entry, name) for name in ("memory", "disk")}
        names = entry.get("model")
        for name in names if isinstance(names, list) else [names]:
            if not isinstance(name, str) or not name:
                self._refuse(f"model of {where}", name, "a Hub id, a path or a pattern")
                continue
            for model in self._found(name):
                yield Source(model=model, place=location, **sizes)

    def _located(self, name: str) -> str:
        """Return the absolute path of a file or folder; another name as it is."""
        try:
            path = self._folder / Path(name).expanduser()
            return os.path.normpath(path) if path.exists() else name
        except (OSError, RuntimeError):  # a name that is too long, or a user that does not exist
            return name

    def _found(self, name: str) -> list[str]:
        located = self._located(name)
        if located != name or Path(name).is_absolute():
            return [located]
        if re.search(r"[*?\[]", name):
            try:
                paths = sorted(self._folder.glob(name))
            except (OSError, ValueError):  # no pattern, or no name of a file
                paths = []
            checkpoints = [path for path in paths if _is_checkpoint(path)]
            if not checkpoints:
                self._refuse(
                    "model of [[models]]",
                    name,
                    "a pattern of folders with config.json, or of .gguf",
                )
            return [str(path) for path in checkpoints]
        if not is_repository(name) or "@" in name:
            self._refuse(
                "model of [[models]]", name, f"a Hub id, or a path that exists below {self._folder}"
            )
            return []
        return [name]

    def _require_once(self, sources: Sequence[Source]) -> None:
        keys = [
            (source.model, source.place.get("revision"), source.place.get("gguf_file"))
            for source in sources
        ]
        for (model, *_), count in Counter(keys).items():
            if count > 1:
                self._problems.append(
                    f"Model {model!r} is there {count} times; expected each once. Leave the others out."
                )

    # --- variants ----------------------------------------------------------------------------

    def _variants(self) -> list[tuple[str, dict[str, Any]]]:
        tables = self._tables("variants") or [{}]
        names = [entry.get("name", "") for entry in tables]
        for name, count in Counter(map(str, names)).items():
            if count > 1:
                self._refuse("name of [[variants]]", name, "another name for each variant")
        variants: list[tuple[str, dict[str, Any]]] = []
        for name, entry in zip(names, tables, strict=True):
            if not isinstance(name, str):
                self._refuse("name of [[variants]]", name, "a text")
            where = f"variant {name!r}" if name else "[[variants]]"
            self._require_known(where, entry, ("name", *OPTIONS))
            axes = {
                key: self._values(where, OPTIONS[key], value)
                for key, value in entry.items()
                if key in OPTIONS
            }
            if len(variants) + math.prod(map(len, axes.values())) > _MOST:
                self._refuse(where, f"of {_MOST:,} packages and more", "fewer values")
                break
            variants += [
                (str(name), dict(zip(axes, values, strict=True)))
                for values in itertools.product(*axes.values())
            ]
        return variants

    def _values(self, where: str, option: Option, value: Any) -> list[Any]:
        """Return the values of an option, one for each variant."""
        values = value if isinstance(value, list) else [value]
        parsed = [self._value(where, option, item) for item in values]
        if not values or any(one in parsed[:at] for at, one in enumerate(parsed)):
            self._refuse(f"{option.name} of {where}", value, "each value once, and one at least")
        return parsed

    def _value(self, where: str, option: Option, value: Any) -> Any:
        kind, several = option.kind, get_origin(option.kind) is tuple
        if kind is JsonText:
            try:
                if isinstance(value, dict):
                    return JsonText(canonical(value).decode())
                expected = "a table"
            except (TypeError, ValueError) as error:
                expected = f"a table of JSON values: {str(error).partition(';')[0]}"
            self._refuse(f"{option.name} of {where}", value, expected)
            return value
        one = get_args(kind)[0] if several else kind
        parts = value if several and isinstance(value, list) else [value]
        if not all(type(part) in ((int, float) if one is float else (one,)) for part in parts):
            many = f", or lists of such: [[{one.__name__}, …], …]" if several else ""
            self._refuse(f"{option.name} of {where}", value, f"values of type {one.__name__}{many}")
        elif option.allowed and not several and value not in option.allowed:
            expected = f"one of {', '.join(map(str, option.allowed))}"
            self._refuse(f"{option.name} of {where}", value, expected)
        elif option.name in ("adapter", "draft_heads"):
            parts = [self._located(part) for part in parts]
        return tuple(parts) if several else parts[0]

    def _rules(self, name: str) -> Iterator[Mapping[str, Any]]:
        for entry in self._tables(name):
            where = f"[[{name}]]"
            self._require_known(where, entry, ("model", "variant", *OPTIONS))
            for key in ("model", "variant"):
                if key in entry and not isinstance(entry[key], str):
                    self._refuse(f"{key} of {where}", entry[key], "a name or a pattern")
            if not entry:
                self._refuse(where, {}, "a model, a variant or an option")
            yield {
                key: self._values(where, OPTIONS[key], value) if key in OPTIONS else str(value)
                for key, value in entry.items()
                if key in OPTIONS or key in ("model", "variant")
            }


def _is_checkpoint(path: Path) -> bool:
    if path.is_file():
        return path.suffix == ".gguf"
    return any((path / name).is_file() for name in ("config.json", MODEL_INDEX))


def _is_kept(
    source: Source,
    variant: str,
    choices: Mapping[str, Any],
    *,
    include: Sequence[Mapping[str, Any]],
    exclude: Sequence[Mapping[str, Any]],
) -> bool:
    def fits(rule: Mapping[str, Any]) -> bool:
        named = {"model": source.name, "variant": variant}
        return all(
            fnmatch.fnmatchcase(named[key], value) if key in named else choices.get(key) in value
            for key, value in rule.items()
        )

    return (not include or any(map(fits, include))) and not any(map(fits, exclude))


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)

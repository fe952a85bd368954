# SPDX-License-Identifier: Apache-2.0
"""What a user set once for every command: where packages are shared, what is trusted, and whether to stay offline.

In: the settings file, `QEFF_ZOO_CONFIG` or `qeff-zoo/config.json` in the user's configuration folder, and the
environment, which wins. Out: a `Settings`, checked. The file is one JSON object, and holds nothing else than this:

    {"stores": ["hf://acme/zoo", {"url": "https://mirror.example/zoo", "read_only": true},
                {"url": "file:///srv/zoo", "served_at": ["https://zoo.example"]}],
     "trust": {"mode": "require", …}}

`QEFF_ZOO_STORES` is a list of URLs, separated by spaces or commas, `ro+` before those that are only read.
`QEFF_ZOO_TRUST` is one of the modes, which replaces the file's, or a JSON object, which replaces all of `trust`.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qeff_zoo.errors import SettingsError

STORES_ENV = "QEFF_ZOO_STORES"
TRUST_ENV = "QEFF_ZOO_TRUST"
OFFLINE_ENV = "QEFF_ZOO_OFFLINE"
_CONFIG_ENV = "QEFF_ZOO_CONFIG"
_READ_ONLY, _OPTIONAL = "ro+", "opt+"
_LIMIT = 1 << 20
_YES = ("1", "true", "yes", "on")  # as huggingface_hub reads its own


@dataclass(frozen=True)
class StoreSetting:
    """A location where packages are shared.

    Args:
        url: `hf://org/repo`, `https://host/path` or `file:///path`; may hold `{org}` and `{name}`.
        read_only: Never published to from here.
        optional: Passed over where it has no index; another one is expected to have one.
        served_at: URLs under which others read it; signed indexes that are published there name them.
    """

    url: str
    read_only: bool = False
    optional: bool = False
    served_at: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """All of a user's settings.

    Args:
        stores: Remotes in the order of search.
        trust: Trust section for the trust policy; empty for the default.
    """

    stores: tuple[StoreSetting, ...] = ()
    trust: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def settings() -> Settings:
    """Read the settings as they are now.

    Raises:
        SettingsError: The file or a variable has an invalid value.
    """
    path, content = settings_file(), read_settings_file()
    stores = tuple(_store(entry, str(path)) for entry in content.get("stores", ()))
    trust: Mapping[str, Any] = content.get("trust", {})
    if (text := os.environ.get(STORES_ENV)) is not None:
        stores = tuple(_named(url) for url in re.split(r"[\s,]+", text) if url)
    if text := os.environ.get(TRUST_ENV, "").strip():
        trust = _trust(text, trust)
    return Settings(stores, MappingProxyType(dict(trust)))


def settings_file() -> Path:
    """Return the path of the settings file, which may be missing.

    Raises:
        SettingsError: The path is in the home folder of an unknown user.
    """
    if chosen := os.environ.get(_CONFIG_ENV):
        return expanded(chosen, _CONFIG_ENV)
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(folder) if folder.startswith("/") else Path("~/.config").expanduser()
    return base / "qeff-zoo" / "config.json"


def expanded(path: str, variable: str) -> Path:
    """Return a path that a user set, with `~` and `~user` as the folder that they stand for.

    Args:
        path: Path in the setting.
        variable: Name of the setting, for the message.

    Raises:
        SettingsError: There is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise _refused(variable, f"{path!r} has no home folder", "a path") from error


def offline() -> bool:
    """Whether the network must not be used: `QEFF_ZOO_OFFLINE` or `HF_HUB_OFFLINE` is 1."""
    return bool(offline_settings())


def offline_settings() -> list[str]:
    """Return the names of the variables that forbid the network."""
    names = (OFFLINE_ENV, "HF_HUB_OFFLINE")
    return [name for name in names if os.environ.get(name, "").strip().lower() in _YES]


def go_offline() -> None:
    """Leave the network alone from now on, in this process and those that it starts."""
    os.environ[OFFLINE_ENV] = "1"


def read_settings_file() -> Mapping[str, Any]:
    """Return the content of the settings file; empty without one.

    Raises:
        SettingsError: The file has unknown or invalid entries.
    """
    path = settings_file()
    try:
        with path.open("rb") as file:
            raw = file.read(_LIMIT + 1)
        content = json.loads(raw) if len(raw) <= _LIMIT else None
    except FileNotFoundError:
        if os.environ.get(_CONFIG_ENV):
            raise _refused(path, "it is not there", f"a file, as {_CONFIG_ENV} names it") from None
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(path, str(error), "a JSON object") from error
    if not isinstance(content, dict):
        raise _refused(path, "it holds something else", "a JSON object")
    if unknown := sorted(content.keys() - {"stores", "trust"}):
        raise _refused(path, f"it sets {', '.join(map(repr, unknown))}", "'stores' and 'trust'")
    for name, kind in (("stores", list), ("trust", dict)):
        if name in content and not isinstance(content[name], kind):
            raise _refused(path, f"{name!r} is {content[name]!r}", f"a {kind.__name__}")
    return content


def _store(entry: Any, path: str) -> StoreSetting:
    if isinstance(entry, str) and entry:
        return _named(entry)
    if isinstance(entry, dict) and entry.keys() <= {
        "url",
        "read_only",
        "optional",
        "served_at",
    }:
        url = entry.get("url")
        marks = entry.get("read_only", False), entry.get("optional", False)
        served = entry.get("served_at", [])
        texts = served if isinstance(served, list) else [None]
        is_right = all(isinstance(text, str) and text for text in (url, *texts))
        if isinstance(url, str) and is_right and all(isinstance(mark, bool) for mark in marks):
            named = _named(url)
            marks = named.read_only or marks[0], named.optional or marks[1]
            return StoreSetting(named.url, *marks, tuple(served))
    expected = 'a URL or {"url": URL, "read_only": true, "optional": true, "served_at": [URL]}'
    raise _refused(path, f"a store is {entry!r}", expected)


def _named(url: str) -> StoreSetting:
    """Read a URL that may begin with `ro+`, `opt+` or both."""
    marks = set()
    while mark := next((one for one in (_READ_ONLY, _OPTIONAL) if url.startswith(one)), ""):
        marks.add(mark)
        url = url.removeprefix(mark)
    return StoreSetting(url, _READ_ONLY in marks, _OPTIONAL in marks)


def _trust(text: str, from_file: Mapping[str, Any]) -> Mapping[str, Any]:
    if not text.startswith("{"):
        return {**from_file, "mode": text}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(TRUST_ENV, str(error), "a mode or a JSON object") from error
    assert isinstance(content, dict)  # JSON that begins with a brace
    return content


def _refused(where: object, actual: str, expected: str) -> SettingsError:
    return SettingsError(
        f"Cannot read the settings of {str(where)!r}: {actual}; expected {expected}. Correct it."
    )

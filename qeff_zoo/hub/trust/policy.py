# SPDX-License-Identifier: Apache-2.0
"""Trust policy: trusted signers in the user's settings, globally or per remote or organization.

    {"mode": "require", "keys": ["/etc/zoo/acme.pub"],
     "identities": [{"identity": "releases@acme.example", "issuer": "https://accounts.google.com"}],
     "remotes": {"hf://acme/*": {"keys": ["/etc/zoo/acme-hub.pub"]}}}

In: the settings. Out: the `Policy` for a remote; or the same settings with one more signer, or one less. For a
remote that has pins of its own, no others count.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.disk.staging import write_durably
from qeff_zoo.errors import SettingsError
from qeff_zoo.hub.trust.signatures import Identity, fingerprint
from qeff_zoo.hub.urls import HUB, unpinned
from qeff_zoo.settings import expanded, read_settings_file, settings, settings_file

REQUIRE, WARN, OFF = _MODES = ("require", "warn", "off")
_PINS = {"keys", "identities"}
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class Policy:
    """Whose packages are used.

    Args:
        mode: "require", "warn" or "off".
        keys: Files of the public keys that are trusted.
        identities: Identities that are trusted to sign without a key.
    """

    mode: str = WARN
    keys: tuple[Path, ...] = ()
    identities: tuple[Identity, ...] = ()

    @property
    def has_pins(self) -> bool:
        """Whether the policy pins at least one signer."""
        return bool(self.keys or self.identities)


def policy(url: str | None = None) -> Policy:
    """Read the trust policy of the settings.

    Args:
        url: URL of the package's remote; None without one.

    Raises:
        SettingsError: The trust settings are invalid.
    """
    trust = settings().trust
    mode = trust.get("mode", WARN)
    if unknown := sorted(trust.keys() - {"mode", "remotes", *_PINS}):
        expected = "'mode', 'keys', 'identities' and 'remotes'"
        raise _refused(f"it sets {', '.join(map(repr, unknown))}", expected)
    if mode not in _MODES:
        raise _refused(f"the mode is {mode!r}", f"one of {', '.join(_MODES)}")
    if mode == OFF:
        return Policy(mode)
    scopes = _scopes(trust)
    everybody = [trust, *(pins for _, pins in scopes)]
    if mode == REQUIRE and not any(pins.get(name) for pins in everybody for name in _PINS):
        raise _refused("the mode is 'require' and no signer is pinned", "a key or an identity")
    own = [pins for scope, pins in scopes if url is not None and _covers(scope, unpinned(url))]
    chosen = own or [{name: trust[name] for name in _PINS & trust.keys()}]
    return Policy(
        mode,
        tuple(key for pins in chosen for key in _keys(pins.get("keys", []))),
        tuple(pinned for pins in chosen for pinned in _identities(pins.get("identities", []))),
    )


def _scopes(trust: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    scopes = trust.get("remotes", {})
    if not isinstance(scopes, dict):
        raise _refused(f"'remotes' is {scopes!r}", "an object: URL of a remote -> pins")
    for scope, pins in scopes.items():
        if not isinstance(pins, dict) or not pins.keys() <= _PINS:
            raise _refused(f"for {scope!r} it has {pins!r}", "'keys' and 'identities'")
    return list(scopes.items())


def _covers(scope: str, url: str) -> bool:
    """Whether a pattern covers a remote: the remote itself, or with `/*` at the end everything below it."""
    if scope.endswith("/*"):
        return url.startswith(f"{unpinned(scope[:-2])}/")
    return unpinned(scope) == url


def _keys(keys: Any) -> Iterator[Path]:
    if not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
        raise _refused(f"'keys' is {keys!r}", "a list of files")
    for path in map(_path, keys):
        if not path.is_file():
            raise _refused(f"there is no key at {str(path)!r}", "the PEM file of a public key")
        yield path


def _identities(identities: Any) -> Iterator[Identity]:
    if not isinstance(identities, list):
        raise _refused(f"'identities' is {identities!r}", "a list")
    needed = {"identity", "issuer"}
    for entry in identities:
        if (
            not isinstance(entry, dict)
            or not needed <= entry.keys() <= {*needed, "trust_config"}
            or not all(isinstance(value, str) and value for value in entry.values())
        ):
            raise _refused(f"an identity is {entry!r}", '{"identity": …, "issuer": …}')
        config = entry.get("trust_config")
        yield Identity(entry["identity"], entry["issuer"], _path(config) if config else None)


def _path(text: str) -> Path:
    path = expanded(text, "trust")
    if not path.is_absolute():
        raise _refused(f"{text!r} is in whatever folder this runs", "an absolute path, or ~/…")
    return path


def _refused(actual: str, expected: str) -> SettingsError:
    return SettingsError(
        f"Cannot use the trust policy: {actual}; expected {expected}. Correct `trust` of the settings, or "
        "QEFF_ZOO_TRUST."
    )


# --- changing it -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A trusted signer.

    Args:
        scope: The remote or organization that it is for; None for all that have no pins of their own.
        key: Fingerprint of a public key; "" for an identity.
        identity: An e-mail address, or the URI of a workflow; "" for a key.
        issuer: Issuer of the identity.
        file: Path of the key.
    """

    scope: str | None
    key: str = ""
    identity: str = ""
    issuer: str = ""
    file: str = ""


def scope_of(where: str | None) -> str | None:
    """Read whom a pin is for.

    Args:
        where: URL of a remote, Hub repository `org/repo`, or organization `org`; None for everybody.

    Raises:
        SettingsError: The scope is none of these.
    """
    if where is None:
        return None
    if "://" in where:
        return where if where.endswith("/*") else unpinned(where)
    if not _REPOSITORY.fullmatch(where):
        raise SettingsError(
            f"Cannot pin for {where!r}; expected the URL of a remote, a Hub repository org/repo, or an organization. "
            "Correct it."
        )
    return f"{HUB}{where}" if "/" in where else f"{HUB}{where}/*"


def pins() -> list[Pin]:
    """List who is pinned in the settings.

    Raises:
        SettingsError: The trust settings are invalid.
        TrustError: A key cannot be read.
    """
    trust = settings().trust
    listed = []
    for scope, given in [(None, trust), *_scopes(trust)]:
        for path in _keys(given.get("keys", [])):
            listed.append(Pin(scope=scope, key=fingerprint(path), file=str(path)))
        for who in _identities(given.get("identities", [])):
            listed.append(Pin(scope=scope, identity=who.identity, issuer=who.issuer))
    return listed


def pin_key(key: Path, scope: str | None) -> Pin:
    """Trust the owner of a key. The key is copied beside the settings file.

    Args:
        key: PEM file of an elliptic curve's public key.
        scope: Scope from `scope_of`.

    Raises:
        TrustError: The file is not such a key.
        SettingsError: The settings cannot be read or written.
    """
    name = fingerprint(key)
    copy = settings_file().parent / "keys" / f"{name[:16]}.pub"
    content = key.read_bytes()

    def add(pinned: dict[str, Any]) -> None:
        pinned["keys"] = [*dict.fromkeys([*pinned.get("keys", []), str(copy)])]

    _change(scope, add, {copy: content})
    return Pin(scope=scope, key=name, file=str(copy))


def pin_identity(identity: str, issuer: str, scope: str | None) -> Pin:
    """Trust an identity to sign without a key.

    Args:
        identity: An e-mail address, or the URI of a workflow.
        issuer: The OpenID Connect issuer that vouches for it.
        scope: Scope from `scope_of`.
    """
    entry = {"identity": identity, "issuer": issuer}

    def add(pinned: dict[str, Any]) -> None:
        others = [each for each in pinned.get("identities", []) if each != entry]
        pinned["identities"] = [*others, entry]

    _change(scope, add, {})
    return Pin(scope=scope, identity=identity, issuer=issuer)


def unpin(who: str, scope: str | None) -> list[Pin]:
    """Remove a trusted signer.

    Args:
        who: Fingerprint of a key or its beginning (8 digits or more), its file, or an identity.
        scope: Scope from `scope_of`; the change is limited to it.

    Returns:
        What was removed.

    Raises:
        SettingsError: No signer of that name is pinned there.
    """

    def is_meant(pin: Pin) -> bool:
        digits = len(who) >= 8 and pin.key.startswith(who)
        return pin.scope == scope and (digits or who in (pin.file, pin.identity))

    gone = [pin for pin in pins() if is_meant(pin)]
    if not gone:
        raise SettingsError(
            f"{who!r} is not pinned for {scope or 'everybody'}; expected a fingerprint, file or identity that "
            "`qeff-zoo trust ls` lists. Check it, and --for."
        )
    files, identities = {pin.file for pin in gone}, {pin.identity for pin in gone}

    def drop(pinned: dict[str, Any]) -> None:
        keys = pinned.get("keys", [])
        pinned["keys"] = [key for key in keys if str(Path(key).expanduser()) not in files]
        known = pinned.get("identities", [])
        pinned["identities"] = [each for each in known if each["identity"] not in identities]

    _change(scope, drop, {})
    return gone


def _change(
    scope: str | None, change: Callable[[dict[str, Any]], None], files: Mapping[Path, bytes]
) -> None:
    """Rewrite the settings file, all else in it as it was."""
    path = settings_file()
    content = dict(read_settings_file())
    trust = content.setdefault("trust", {})
    pinned = trust if scope is None else trust.setdefault("remotes", {}).setdefault(scope, {})
    change(pinned)
    for name in [name for name in _PINS & pinned.keys() if not pinned[name]]:
        del pinned[name]
    if scope is not None and not pinned:
        del trust["remotes"][scope]
    try:
        for file, data in {**files, path: json.dumps(content, indent=1).encode() + b"\n"}.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_durably(file, data)
    except OSError as error:
        raise SettingsError(
            f"Cannot write the settings {str(path)!r}: {error.strerror or error}; expected a folder that this user "
            "may write. Check its permissions, or set QEFF_ZOO_CONFIG."
        ) from error

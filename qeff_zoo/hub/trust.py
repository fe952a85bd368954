# SPDX-License-Identifier: Apache-2.0
"""Whose packages are used: a manifest and its signature are checked against the user's policy before either is trusted.

In: the bytes of a manifest and of its detached signature, and the policy of the settings:

    {"mode": "require", "keys": ["/etc/zoo/acme.pub"],
     "identities": [{"identity": "releases@acme.example", "issuer": "https://accounts.google.com"}]}

Out: nothing, a warning, or a refusal. What a signature says is read with the standard library alone. Whether it is
genuine, for which the extra `sign` is needed, is verified when it claims a key or an identity that is pinned.

    mode       unsigned, or not by one pinned    signed, and nobody pinned       tampered with, or not genuine
    require    refused                           the policy itself is refused    refused
    warn       warning                           warning                         refused
    off        used                              used                            used: nothing is read
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qeff_zoo.disk.staging import write_durably
from qeff_zoo.errors import SettingsError, TrustError
from qeff_zoo.hub.signatures import (
    Identity,
    claims_identity,
    fingerprint,
    sign_keyless,
    sign_with_key,
    verify_with_identity,
    verify_with_key,
)
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_LIMIT, MANIFEST_NAME, SIGNATURE_NAME, parse
from qeff_zoo.settings import settings
from qeff_zoo.store import Store

#: Bytes of the longest signature that is read. One by a key has about 1,500, one by an identity about 10,000.
SIGNATURE_LIMIT = 1 << 20

_MODES = ("require", "warn", "off")
_SERIALIZATION = {"method": "files", "hash_type": "sha256", "allow_symlinks": False}


@dataclass(frozen=True)
class Policy:
    """Whose packages are used.

    Args:
        mode: "require", "warn" or "off".
        keys: Files of the public keys that are trusted.
        identities: Identities that are trusted to sign without a key.
    """

    mode: str = "warn"
    keys: tuple[Path, ...] = ()
    identities: tuple[Identity, ...] = ()


def policy() -> Policy:
    """Read the trust policy of the settings.

    Raises:
        SettingsError: The settings say something else about trust than they may.
    """
    return _policy(settings().trust)


def _policy(trust: Mapping[str, Any]) -> Policy:
    mode = trust.get("mode", "warn")
    keys, identities = trust.get("keys", []), trust.get("identities", [])
    if unknown := sorted(trust.keys() - {"mode", "keys", "identities"}):
        raise _refused(
            f"it sets {', '.join(map(repr, unknown))}", "'mode', 'keys' and 'identities'"
        )
    if mode not in _MODES:
        raise _refused(f"the mode is {mode!r}", f"one of {', '.join(_MODES)}")
    if mode == "off":
        return Policy(mode)
    if not (isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
        raise _refused(f"'keys' is {keys!r}", "a list of files")
    if not isinstance(identities, list):
        raise _refused(f"'identities' is {identities!r}", "a list")
    if mode == "require" and not keys and not identities:
        raise _refused("the mode is 'require' and nobody is pinned", "a key or an identity")
    paths = tuple(_path(key) for key in keys)
    if missing := [str(path) for path in paths if not path.is_file()]:
        raise _refused(f"there is no key at {missing[0]!r}", "the PEM file of a public key")
    return Policy(mode, paths, tuple(_identity(entry) for entry in identities))


def _identity(entry: Any) -> Identity:
    needed = {"identity", "issuer"}
    if (
        not isinstance(entry, dict)
        or not needed <= entry.keys() <= {*needed, "trust_config"}
        or not all(isinstance(value, str) and value for value in entry.values())
    ):
        raise _refused(f"an identity is {entry!r}", '{"identity": …, "issuer": …}')
    config = entry.get("trust_config")
    return Identity(entry["identity"], entry["issuer"], _path(config) if config else None)


def _path(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise _refused(f"{text!r} is in whatever folder this runs", "an absolute path, or ~/…")
    return path


def _refused(found: str, expected: str) -> SettingsError:
    return SettingsError(
        f"Cannot use the trust policy: {found}; expected {expected}. Correct `trust` of the settings, or "
        "QEFF_ZOO_TRUST."
    )


def check(manifest: bytes, signature: bytes | None, policy: Policy) -> list[str]:
    """Check a manifest and its signature against a policy, before the manifest is parsed.

    Args:
        manifest: The bytes of a manifest.json.
        signature: The bytes of its signature; None if it has none.
        policy: Of `policy()`.

    Returns:
        Warnings, a sentence each.

    Raises:
        TrustError: The policy refuses it; or the signature is not genuine, which no policy but "off" allows.
    """
    if policy.mode == "off":
        return []
    if len(manifest) > MANIFEST_LIMIT:
        raise TrustError(
            f"The manifest has more than {MANIFEST_LIMIT} bytes; expected a manifest. Tell who publishes it."
        )
    if signature is None:
        return _unknown(policy, "is not signed")
    key = claimed_key(manifest, signature)
    if not policy.keys and not policy.identities:
        return _unknown(policy, "is signed, but no key or identity is pinned to know by whom")
    if key is None:
        return _check_identities(manifest, signature, policy)
    for pinned in policy.keys:
        if fingerprint(pinned) == key:
            verify_with_key(manifest, signature, pinned)
            return []
    return _unknown(policy, f"is signed by a key that is not pinned, {key!r}")


def require_usable(package: Package, store: Store) -> list[str]:
    """Check before it is used that a package was built here, or that the policy lets it pass.

    Args:
        package: Of the store, or of any folder.
        store: Of this machine.

    Returns:
        Warnings, a sentence each; of one that nobody signed only where somebody is pinned.

    Raises:
        TrustError: The policy refuses it; or its signature is not genuine.
    """
    if package.path == store.folder(package.build_key) and store.is_built_here(package.build_key):
        return []
    chosen = policy()
    warnings = check(*read_signed(package.path), chosen)
    return warnings if chosen.keys or chosen.identities else []


def is_vouched_for(package: Package) -> bool:
    """Tell whether a package is signed by one whom the policy pins."""
    chosen = policy()
    if not chosen.keys and not chosen.identities:
        return False
    try:
        check(*read_signed(package.path), replace(chosen, mode="require"))
    except TrustError:
        return False
    return True


def read_signed(folder: Path) -> tuple[bytes, bytes | None]:
    """Read a package's manifest and its signature, if it has one.

    Args:
        folder: Of the package.
    """
    note = folder / SIGNATURE_NAME
    return (folder / MANIFEST_NAME).read_bytes(), note.read_bytes() if note.is_file() else None


def _check_identities(manifest: bytes, signature: bytes, policy: Policy) -> list[str]:
    for pinned in policy.identities:
        if claims_identity(signature, pinned):
            verify_with_identity(manifest, signature, pinned)
            return []
    return _unknown(policy, "is signed by an identity that is not pinned")


def _unknown(policy: Policy, why: str) -> list[str]:
    if policy.mode == "require":
        raise TrustError(
            f"The package {why}; the trust policy requires a signature by a pinned key or identity. Ask its publisher "
            "to sign it, or pin the publisher's key or identity in `trust` of the settings."
        )
    return [f"The package {why}: nothing proves who made it."]


def refusal_of_unsigned() -> str:
    """Say why the policy refuses what is not signed; nothing if it does not."""
    try:
        _unknown(policy(), "is not signed")
    except TrustError as error:
        return str(error)
    return ""


def claimed_key(manifest: bytes, signature: bytes) -> str | None:
    """Check that a signature is over a manifest, and read which key it claims to be made with. It is not verified.

    Args:
        manifest: The bytes of a manifest.json.
        signature: The bytes of a Sigstore bundle.

    Returns:
        The key's fingerprint; None if it claims an identity.

    Raises:
        TrustError: It is not a signature, or one of something else.
    """
    key, predicate = _read(signature)
    digest = hashlib.sha256(manifest).hexdigest()
    resource = {"name": MANIFEST_NAME, "algorithm": "sha256", "digest": digest}
    # All of it: a predicate may also say which files to leave out.
    if predicate != {"serialization": _SERIALIZATION, "resources": [resource]}:
        raise TrustError(
            f"The signature is over something else than this manifest, whose SHA-256 is {digest}: one of them was "
            "changed or swapped. Expected a pair. Pull it from where it was published, or sign it again."
        )
    return key


def _read(signature: bytes) -> tuple[str | None, Any]:
    """Return the fingerprint of the key that a signature names, if it names one, and what it states."""
    if len(signature) > SIGNATURE_LIMIT:
        raise _malformed(f"it has more than {SIGNATURE_LIMIT} bytes")
    try:
        # Closed, as the library may know a member by a second name as well.
        _, material, envelope = _members(
            parse(signature), "mediaType", "verificationMaterial", "dsseEnvelope"
        )
        payload, _, (_,) = _members(envelope, "payload", "payloadType", "signatures")
        predicate = parse(base64.b64decode(payload, validate=True))["predicate"]
        by_key = "publicKey" in material
        signer = material["publicKey" if by_key else "certificate"]
        key = str(signer["hint"]) if by_key else None
    except (ValueError, KeyError, TypeError) as error:
        raise _malformed(str(error)) from error
    return key, predicate


def _members(value: Any, *names: str) -> tuple[Any, ...]:
    if not isinstance(value, dict) or value.keys() != set(names):
        raise ValueError(f"expected an object with {', '.join(names)}")
    return tuple(value[name] for name in names)


def _malformed(why: str) -> TrustError:
    return TrustError(
        f"Cannot read the signature: {why}. Expected a Sigstore bundle over {MANIFEST_NAME}. Sign the package "
        "again with `qeff-zoo sign`."
    )


def sign(package: Package, *, key: Path | None) -> Path:
    """Sign a package's manifest, which has the digest of every other file.

    Args:
        package: Any package.
        key: PEM file of an elliptic curve's private key; without one, Sigstore vouches for who runs this.

    Returns:
        The signature's file, in the package.

    Raises:
        TrustError: The key cannot be used, or Sigstore not be reached.
    """
    manifest = (package.path / MANIFEST_NAME).read_bytes()
    if key is None:
        signature = sign_keyless(manifest, package.build_key)
    else:
        signature = sign_with_key(manifest, package.build_key, key)
    path = package.path / SIGNATURE_NAME
    write_durably(path, signature)
    return path

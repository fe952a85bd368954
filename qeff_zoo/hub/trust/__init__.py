# SPDX-License-Identifier: Apache-2.0
"""Trust in packages: a manifest and its signature are checked against the user's policy before either is used.

In: the bytes of a manifest or an index, those of its signature, and the policy of the settings. Out: nothing, a
warning, or a refusal. A signature is parsed with the standard library alone. Extra `sign` verifies that it is genuine,
if it claims a pinned key or identity.

    mode       unsigned, or no pinned signer     signed, no pinned signer        tampered with, or not genuine
    require    refused                           the policy itself is refused    refused
    warn       warning if a signer is pinned     used                            refused
    off        used                              used                            used: nothing is read
"""

import base64
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from qeff_zoo.disk.regular import read_regular
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.errors import TrustError
from qeff_zoo.hub.index import Index, Sign
from qeff_zoo.hub.index_files import SIGNED_NAME, parts
from qeff_zoo.hub.trust.policy import OFF, REQUIRE, Policy
from qeff_zoo.hub.trust.policy import policy as policy_of
from qeff_zoo.hub.trust.signatures import (
    claims_identity,
    fingerprint,
    sign_keyless,
    sign_with_key,
    verify_with_identity,
    verify_with_key,
)
from qeff_zoo.hub.urls import is_named
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_LIMIT, MANIFEST_NAME, SIGNATURE_NAME, parse
from qeff_zoo.store.origins import Origin, Provenance

#: Bytes of the longest signature that is read. One by a key has about 1,500, one by an identity about 10,000.
SIGNATURE_LIMIT = 1 << 20

_SERIALIZATION = {"method": "files", "hash_type": "sha256", "allow_symlinks": False}


def check(
    content: bytes, signature: bytes | None, policy: Policy, name: str = MANIFEST_NAME
) -> list[str]:
    """Check a manifest, or an index, and its signature against a policy, before it is parsed.

    Args:
        content: The bytes that are signed.
        signature: The bytes of the signature; None if there is none.
        policy: Policy for the package's remote.
        name: Name of the signed file.

    Returns:
        Warnings, a sentence each.

    Raises:
        TrustError: The policy refuses it; or the signature is not genuine, which no policy but "off" allows.
    """
    if policy.mode == OFF:
        return []
    if len(content) > MANIFEST_LIMIT:
        raise TrustError(
            f"{name} has more than {MANIFEST_LIMIT} bytes; expected fewer. Report it to its publisher."
        )
    if signature is None:
        return _unknown(policy, "is not signed")
    key = claimed_key(content, signature, name)
    if not policy.has_pins:
        return _unknown(policy, "is signed, but no signer is pinned")
    if key is None:
        return _check_identities(content, signature, policy, name)
    for pinned in policy.keys:
        if fingerprint(pinned) == key:
            verify_with_key(content, signature, pinned, name)
            return []
    return _unknown(policy, f"is signed by a key that is not pinned, {key!r}")


def check_index(url: str, content: bytes, index: Index, required: Policy | None = None) -> Index:
    """Check an index against the policy for its remote: where a key is pinned, its owner signed it, for this remote.

    Args:
        url: The remote's.
        content: The bytes of the index's root.
        index: Content of the index.
        required: The policy; None for that of the settings.

    Returns:
        The index, with what the policy lets pass as its warnings.

    Raises:
        TrustError: The policy refuses it; its signature is not genuine; or it is another remote's.
    """
    chosen = required or policy_of(url)
    if chosen.mode == OFF or (index.signature is None and not chosen.keys):
        return replace(index, warnings=())
    text, signature = parts(content)
    try:
        warnings = check(text, signature, chosen, SIGNED_NAME)
        if signature and chosen.has_pins and not warnings:
            warnings = _misplaced(url, index, chosen)
    except TrustError as error:
        raise TrustError(f"The index of {url!r} is refused. {error}") from error
    return replace(index, warnings=tuple(f"The index of {url}: {text}" for text in warnings))


def _misplaced(url: str, index: Index, policy: Policy) -> list[str]:
    """Check that an index is of the remote that it was read from: its signature is over the names of its remotes."""
    if is_named(url, index.remotes):
        return []
    if index.remotes:
        raise TrustError(
            f"It is signed for {', '.join(index.remotes)}: another remote's was put in place of its own, and may hide "
            "what became known. Expected one for this URL. Report it to the owner of the remote; `served_at` names "
            "its other URLs."
        )
    return _unknown(policy, "is signed, but does not name its remote, as an older version wrote it")


def vouches(url: str, content: bytes, index: Index) -> int:
    """Rank what is proved of an index: 2 if one who is pinned signed it for its remote, 1 if it is signed, else 0."""
    try:
        check_index(url, content, index, replace(policy_of(url), mode=REQUIRE))
    except TrustError:
        return 1 if index.signature else 0
    return 2 if index.signature else 0


def policy_for(origin: Provenance | None) -> Policy:
    """Return the policy for packages of an origin; None for an unknown origin."""
    return policy_of(origin.url if isinstance(origin, Origin) else None)


def read_signed(folder: Path) -> tuple[bytes, bytes | None]:
    """Read a package's manifest and its signature, if it has one.

    Args:
        folder: Folder of the package.
    """
    note = folder / SIGNATURE_NAME
    return read_regular(folder / MANIFEST_NAME), read_regular(note) if note.is_file() else None


def _check_identities(content: bytes, signature: bytes, policy: Policy, name: str) -> list[str]:
    for pinned in policy.identities:
        if claims_identity(signature, pinned):
            verify_with_identity(content, signature, pinned, name)
            return []
    return _unknown(policy, "is signed by an identity that is not pinned")


def _unknown(policy: Policy, why: str) -> list[str]:
    if policy.mode == REQUIRE:
        raise TrustError(
            f"It {why}; the trust policy requires a signature by a pinned key or identity. Ask its publisher to sign "
            "it, or pin the publisher's key or identity with `qeff-zoo trust add`."
        )
    return [f"It {why}: nothing proves who made it."] if policy.has_pins else []


def refusal_of_unsigned(url: str) -> str:
    """Explain why the policy refuses a remote's unsigned packages; empty if it accepts them.

    Args:
        url: The remote's.
    """
    try:
        _unknown(policy_of(url), "is not signed")
    except TrustError as error:
        return str(error)
    return ""


def claimed_key(content: bytes, signature: bytes, name: str = MANIFEST_NAME) -> str | None:
    """Check that a signature is over a file, and read which key it claims to be made with. It is not verified.

    Args:
        content: The bytes of the file: a manifest.json, or an index.
        signature: The bytes of a Sigstore bundle.
        name: Name of the file.

    Returns:
        The key's fingerprint; None if it claims an identity.

    Raises:
        TrustError: The file is not a signature, or signs other content.
    """
    key, predicate = _read(signature)
    digest = hashlib.sha256(content).hexdigest()
    resource = {"name": name, "algorithm": "sha256", "digest": digest}
    # All of it: a predicate may also say which files to leave out.
    if predicate != {"serialization": _SERIALIZATION, "resources": [resource]}:
        raise TrustError(
            f"The signature is over something else than this {name}, whose SHA-256 is {digest}: one of them was "
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
    manifest = read_regular(package.path / MANIFEST_NAME)
    if key is None:
        signature = sign_keyless(manifest, package.build_key)
    else:
        signature = sign_with_key(manifest, package.build_key, key)
    path = package.path / SIGNATURE_NAME
    write_durably(path, signature)
    return path


def index_signer(key: Path) -> Sign:
    """Return what signs an index.

    Args:
        key: PEM file of an elliptic curve's private key.
    """
    return lambda text: sign_with_key(text, "index", key, SIGNED_NAME)

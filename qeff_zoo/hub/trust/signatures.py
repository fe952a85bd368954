# SPDX-License-Identifier: Apache-2.0
"""Detached signatures over a manifest or an index, made and verified by sigstore's `model-signing` (extra `sign`).

In: the bytes of a manifest, and a key or an identity. Out: a Sigstore bundle, as bytes. What is signed is a folder that
holds manifest.json and nothing else; the manifest has the digest of every other file. So its stock command line accepts
a package as well: `model_signing verify key PACKAGE --signature … --public_key … --ignore_unsigned_files`.
"""

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo import settings
from qeff_zoo.errors import TrustError
from qeff_zoo.package.manifest import MANIFEST_NAME

PASSWORD_ENV = "QEFF_ZOO_KEY_PASSWORD"

_KEY_LIMIT = 1 << 16


@dataclass(frozen=True)
class Identity:
    """Who signs without a key.

    Args:
        identity: An e-mail address, or the URI of a workflow.
        issuer: The OpenID Connect issuer that vouches for it.
        trust_config: Trust configuration of a private Sigstore; makes verification work offline.
    """

    identity: str
    issuer: str
    trust_config: Path | None = None


def sign_with_key(content: bytes, name: str, key: Path, file: str = MANIFEST_NAME) -> bytes:
    """Sign a manifest, or an index, with a private key; needs no network.

    Args:
        content: The bytes of a manifest.json, or of an index.
        name: Name of the content in the signature; any text.
        key: PEM file of a NIST curve: P-256, P-384 or P-521. The password of an encrypted one is in the environment.
        file: Name of the file that is signed.

    Raises:
        TrustError: The key cannot be used.
    """
    require_library()
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from model_signing import signing

    password = os.environ.get(PASSWORD_ENV, "").encode() or None
    try:
        loaded = load_pem_private_key(_read_key(key, "private"), password)
        if not isinstance(loaded, EllipticCurvePrivateKey):
            raise _bad_key(key, f"it is a {type(loaded).__name__}", "private")
        # Annotated as text by the library, which hands it to a function of bytes.
        config = signing.Config().use_elliptic_key_signer(private_key=key, password=password)  # type: ignore[arg-type]
    except TypeError as error:
        raise _bad_key(key, f"{error}; {PASSWORD_ENV} has it", "private") from error
    except ValueError as error:
        raise _bad_key(key, str(error), "private") from error
    return _sign(config, content, name, file)


def sign_keyless(manifest: bytes, name: str) -> bytes:
    """Sign a manifest with an identity: the running workflow's, or else a person's, after a login.

    Args:
        manifest: The bytes of a manifest.json.
        name: Name of the content in the signature; any text.

    Raises:
        TrustError: Sigstore cannot be reached, or does not know who this is.
    """
    require_library()
    from model_signing import signing
    from sigstore import errors, oidc

    if settings.offline():
        raise TrustError(
            "Cannot sign without a key: that needs the network, and this process is offline. Expected a connection. "
            "Sign with --key FILE, or leave offline mode."
        )
    try:
        with contextlib.redirect_stdout(sys.stderr):  # it may ask for a code
            config = signing.Config().use_sigstore_signer(use_ambient_credentials=True)
            return _sign(config, manifest, name, MANIFEST_NAME)
    except (errors.Error, oidc.IssuerError, oidc.ExpiredIdentity, OSError) as error:
        raise TrustError(
            f"Cannot sign without a key: {error}. Expected Sigstore to be reachable and to know who this is. Sign "
            "with --key FILE where there is no network."
        ) from error


def _sign(config: Any, content: bytes, name: str, file: str) -> bytes:
    from model_signing import hashing

    hashed = hashing.Config().set_ignored_paths(paths=(), ignore_git_paths=False)
    with _folder(content, name, file) as folder:
        path = folder.with_name("signature")
        config.set_hashing_config(hashed).sign(folder, path)
        return path.read_bytes()


def fingerprint(key: Path) -> str:
    """Return what signatures call a public key: the SHA-256 of its PEM form, in hexadecimal.

    Args:
        key: PEM file of an elliptic curve's public key.

    Raises:
        TrustError: There is no such key.
    """
    require_library()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    try:
        loaded = serialization.load_pem_public_key(_read_key(key, "public"))
    except ValueError as error:
        raise _bad_key(key, str(error), "public") from error
    if not isinstance(loaded, EllipticCurvePublicKey):
        raise _bad_key(key, f"it is a {type(loaded).__name__}", "public")
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(loaded.public_bytes(serialization.Encoding.PEM, form)).hexdigest()


def verify_with_key(content: bytes, signature: bytes, key: Path, file: str) -> None:
    """Verify that the owner of a key signed a file of that name.

    Raises:
        TrustError: The signer is another one, or the key is unusable.
    """
    from model_signing import verifying

    try:
        config = verifying.Config().use_elliptic_key_verifier(public_key=key)
    except ValueError as error:  # a curve that Sigstore does not know
        raise _bad_key(key, str(error), "public") from error
    _verify(config, content, signature, file, f"the key {str(key)!r}")


def claims_identity(signature: bytes, identity: Identity) -> bool:
    """Whether a signature's certificate names an identity; `verify_with_identity` verifies it.

    Raises:
        TrustError: The signature has no such certificate.
    """
    require_library()
    from cryptography.x509 import ExtensionNotFound
    from sigstore import errors, models
    from sigstore.verify import policy

    try:
        certificate = models.Bundle.from_json(signature).signing_certificate
    except (errors.Error, ValueError) as error:
        raise TrustError(
            f"Cannot read the signature's certificate: {error}. Expected one of Sigstore's. Sign the package again."
        ) from error
    try:
        policy.Identity(identity=identity.identity, issuer=identity.issuer).verify(certificate)
    except (errors.Error, ExtensionNotFound, ValueError):
        return False
    return True


def verify_with_identity(content: bytes, signature: bytes, identity: Identity, file: str) -> None:
    """Verify that an identity signed a file of that name.

    Raises:
        TrustError: The signer is another one; or Sigstore's keys are unavailable offline.
    """
    from model_signing import verifying
    from sigstore import errors

    if settings.offline() and identity.trust_config is None:
        raise TrustError(
            f"Cannot verify a signature by {identity.identity!r}: Sigstore's keys come over the network, and this "
            "process is offline. Expected a connection or keys at hand. Pin a public key, or set `trust_config`."
        )
    try:
        config = verifying.Config().use_sigstore_verifier(
            identity=identity.identity,
            oidc_issuer=identity.issuer,
            trust_config=identity.trust_config,
        )
    except (errors.Error, OSError, ValueError) as error:
        raise TrustError(
            f"Cannot verify a signature by {identity.identity!r}: {error}. Expected Sigstore's keys, over the network "
            "or in `trust_config`. Try again when there is a network, or pin a public key."
        ) from error
    _verify(config, content, signature, file, f"the identity {identity.identity!r}")


def _verify(config: Any, content: bytes, signature: bytes, file: str, by: str) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.x509 import ExtensionNotFound
    from sigstore.errors import Error

    with _folder(content, "package", file) as folder:
        path = folder.with_name("signature")
        path.write_bytes(signature)
        try:
            config.verify(folder, path)
        except (Error, InvalidSignature, ExtensionNotFound, ValueError, LookupError) as error:
            raise TrustError(
                f"The signature claims to be by {by} and is not: {str(error) or type(error).__name__}. Expected one "
                "that verifies. Do not use the package; report it to its publisher."
            ) from error


@contextlib.contextmanager
def _folder(content: bytes, name: str, file: str) -> Iterator[Path]:
    """Yield a folder with a single file, inside a private one."""
    with tempfile.TemporaryDirectory(prefix="qeff-zoo-") as private:
        folder = Path(private) / "signed" / name
        folder.mkdir(parents=True)
        (folder / file).write_bytes(content)
        yield folder


def _read_key(path: Path, kind: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_KEY_LIMIT + 1)
    except OSError as error:
        raise _bad_key(path, error.strerror or str(error), kind) from error
    if len(content) > _KEY_LIMIT:
        raise _bad_key(path, f"it has more than {_KEY_LIMIT} bytes", kind)
    return content


def _bad_key(path: Path, why: str, kind: str) -> TrustError:
    return TrustError(
        f"Cannot use the key {str(path)!r}: {why.rstrip('.?')}. Expected a PEM file with the {kind} key of an elliptic "
        "curve. Make a pair with `openssl ecparam -name prime256v1 -genkey -noout -out key.pem` and `openssl ec -in "
        "key.pem -pubout -out key.pub`."
    )


def require_library() -> None:
    """Check that model-signing is installed.

    Raises:
        TrustError: The library is missing, or lacks a requirement.
    """
    try:
        import model_signing  # noqa: F401
    except ModuleNotFoundError as error:
        raise TrustError(
            f"Signatures need {error.name!r}, which is not installed. Expected the extra 'sign'. Run `pip install "
            "'qeff-zoo[sign]'`."
        ) from error

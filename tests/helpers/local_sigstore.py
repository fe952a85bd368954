# SPDX-License-Identifier: Apache-2.0
"""A Sigstore of one's own: an authority that certifies identities, and the two logs that witness it.

What it makes verifies with sigstore's genuine client, given its `trust_config`, and needs no network. Nothing here is a
server: bundles are made in place.
"""

import base64
import hashlib
import json
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_TIMESTAMPS = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_TYPE = "application/vnd.in-toto+json"
_PREDICATE = "https://model_signing/signature/v1.0"


def _b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _key_usage(**used: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: used.get(name, False) for name in names})


class _Log:
    """A log's key, and what it is called by."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        public = self.key.public_key()
        self.raw = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.id = hashlib.sha256(self.raw).digest()

    def sign(self, content: bytes) -> bytes:
        return self.key.sign(content, ec.ECDSA(hashes.SHA256()))

    def trusted(self, start: str) -> dict[str, Any]:
        details = {"keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": {"start": start}}
        return {
            "baseUrl": "https://log.invalid",
            "hashAlgorithm": "SHA2_256",
            "publicKey": {"rawBytes": _b64(self.raw), **details},
            "logId": {"keyId": _b64(self.id)},
        }


class LocalSigstore:
    """An authority and its logs."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.certificates, self.entries = _Log(), _Log()
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "local")])
        subject = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
        self.authority = (
            self._certificate(self.name, self.key.public_key(), timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(key_cert_sign=True), critical=True)
            .add_extension(subject, critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def trust_config(self, path: Path) -> Path:
        """Write what a client needs to verify."""
        start = (self.now - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        chain = {"certificates": [{"rawBytes": _b64(self.authority.public_bytes(Encoding.DER))}]}
        authority = {
            "subject": {"organization": "local", "commonName": "local"},
            "uri": "https://authority.invalid",
            "certChain": chain,
            "validFor": {"start": start},
        }
        root = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [self.entries.trusted(start)],
            "certificateAuthorities": [authority],
            "ctlogs": [self.certificates.trusted(start)],
            "timestampAuthorities": [],
        }
        services = {"rekorTlogConfig": {"selector": "ANY"}, "tsaConfig": {"selector": "ANY"}}
        signing = {"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json", **services}
        config = {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": root,
            "signingConfig": signing,
        }
        path.write_text(json.dumps(config))
        return path

    def sign(self, manifest: bytes, identity: str, issuer: str) -> bytes:
        """Sign a manifest as someone.

        Args:
            manifest: The bytes of a manifest.json.
            identity: An e-mail address.
            issuer: Who vouches for it.
        """
        return self.sign_statement(_statement(manifest), identity, issuer)

    def sign_statement(self, payload: bytes, identity: str, issuer: str) -> bytes:
        """Sign any statement as someone."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certify(key.public_key(), identity, issuer)
        pae = b"DSSEv1 %d %s %d " % (len(_TYPE), _TYPE.encode(), len(payload)) + payload
        signature = key.sign(pae, ec.ECDSA(hashes.SHA256()))
        material = {
            "certificate": {"rawBytes": _b64(certificate.public_bytes(Encoding.DER))},
            "tlogEntries": [self._entry(payload, signature, certificate)],
        }
        envelope = {
            "payload": _b64(payload),
            "payloadType": _TYPE,
            "signatures": [{"sig": _b64(signature), "keyid": ""}],
        }
        media = "application/vnd.dev.sigstore.bundle.v0.3+json"
        bundle = {"mediaType": media, "verificationMaterial": material, "dsseEnvelope": envelope}
        return json.dumps(bundle).encode()

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, lives: timedelta
    ) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(
            issuer_name=self.name,
            subject_name=subject,
            public_key=key,
            serial_number=x509.random_serial_number(),
            not_valid_before=self.now - timedelta(minutes=5),
            not_valid_after=self.now + lives,
        )

    def _certify(
        self, key: ec.EllipticCurvePublicKey, identity: str, issuer: str
    ) -> x509.Certificate:
        code_signing = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
        ours = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        names = x509.SubjectAlternativeName([x509.RFC822Name(identity)])
        builder = (
            self._certificate(x509.Name([]), key, timedelta(minutes=10))
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(code_signing, critical=False)
            .add_extension(ours, critical=False)
            .add_extension(names, critical=True)
            .add_extension(x509.UnrecognizedExtension(_ISSUER, issuer.encode()), critical=False)
        )
        unlogged = builder.sign(self.key, hashes.SHA256()).tbs_certificate_bytes
        timestamps = x509.UnrecognizedExtension(_TIMESTAMPS, self._timestamps(unlogged))
        return builder.add_extension(timestamps, critical=False).sign(self.key, hashes.SHA256())

    def _timestamps(self, unlogged: bytes) -> bytes:
        """Let the log of certificates promise one, as RFC 6962 has it."""
        public = self.key.public_key()
        issuer = hashlib.sha256(
            public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        ).digest()
        when = int(self.now.timestamp() * 1000)
        body = issuer + len(unlogged).to_bytes(3, "big") + unlogged
        signature = self.certificates.sign(struct.pack("!BBQH", 0, 0, when, 1) + body + b"\0\0")
        head = b"\0" + self.certificates.id + struct.pack("!Q", when) + b"\0\0" + b"\x04\x03"
        timestamp = head + struct.pack("!H", len(signature)) + signature
        listed = struct.pack("!HH", len(timestamp) + 2, len(timestamp)) + timestamp
        return b"\x04" + bytes([len(listed)]) + listed  # an octet string of fewer than 128 bytes

    def _entry(
        self, payload: bytes, signature: bytes, certificate: x509.Certificate
    ) -> dict[str, Any]:
        """Let the log of signatures have this one, as its only entry."""
        signed = {
            "signature": _b64(signature),
            "verifier": _b64(certificate.public_bytes(Encoding.PEM)),
        }
        spec = {
            "envelopeHash": {"algorithm": "sha256", "value": "0" * 64},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
            "signatures": [signed],
        }
        body = _canonical({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
        root = hashlib.sha256(b"\0" + body).digest()
        note = f"log.invalid\n1\n{_b64(root)}\n"
        witness = _b64(self.entries.id[:4] + self.entries.sign(note.encode()))
        checkpoint = f"{note}\n\u2014 log.invalid {witness}\n"
        when = int(self.now.timestamp())
        promised = {
            "body": _b64(body),
            "integratedTime": when,
            "logID": self.entries.id.hex(),
            "logIndex": 0,
        }
        return {
            "logIndex": "0",
            "logId": {"keyId": _b64(self.entries.id)},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(when),
            "inclusionPromise": {
                "signedEntryTimestamp": _b64(self.entries.sign(_canonical(promised)))
            },
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _b64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": checkpoint},
            },
            "canonicalizedBody": _b64(body),
        }


def _statement(manifest: bytes) -> bytes:
    digest = hashlib.sha256(manifest)
    resource = {"name": "manifest.json", "algorithm": "sha256", "digest": digest.hexdigest()}
    root = {"sha256": hashlib.sha256(digest.digest()).hexdigest()}
    how = {"method": "files", "hash_type": "sha256", "allow_symlinks": False}
    return json.dumps(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "package", "digest": root}],
            "predicateType": _PREDICATE,
            "predicate": {"serialization": how, "resources": [resource]},
        }
    ).encode()

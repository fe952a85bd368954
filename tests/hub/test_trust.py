# SPDX-License-Identifier: Apache-2.0
"""Signatures over manifests, and what the trust policy makes of them."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from local_sigstore import LocalSigstore
from package_builder import draft, fill
from signing_keys import KeyPair, make_pair, private_pem, public_pem

from qeff_zoo import cli
from qeff_zoo.errors import SettingsError, TrustError
from qeff_zoo.hub import trust
from qeff_zoo.hub.trust import SIGNATURE_NAME, Policy
from qeff_zoo.hub.trust.signatures import Identity, fingerprint
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_LIMIT, MANIFEST_NAME, dump

OURS = Identity("releases@acme.example", "https://accounts.google.com")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_pair(tmp_path_factory.mktemp("keys"), "ours")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_pair(tmp_path_factory.mktemp("keys"), "stranger")


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return fill(tmp_path / "package")


@pytest.fixture
def manifest(package: Package) -> bytes:
    return (package.path / MANIFEST_NAME).read_bytes()


@pytest.fixture
def signature(package: Package, pair: KeyPair) -> bytes:
    return trust.sign(package, key=pair.private).read_bytes()


def pinned(pair: KeyPair, mode: str = "require") -> Policy:
    return Policy(mode, (pair.public,))


def edited(signature: bytes, edit: Callable[[Any], None]) -> bytes:
    bundle = json.loads(signature)
    edit(bundle)
    return json.dumps(bundle).encode()


# --- signed by a key -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda c: c.name
)
def test_signed_packages_pass(
    curve: ec.EllipticCurve, package: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = make_pair(tmp_path, "key", curve)
    path = trust.sign(package, key=pair.private)
    assert path == package.path / SIGNATURE_NAME
    content = (package.path / MANIFEST_NAME).read_bytes()
    for mode in ("require", "warn"):
        assert trust.check(content, path.read_bytes(), pinned(pair, mode)) == []
    assert capsys.readouterr() == ("", "")


def test_one_of_several_keys_is_enough(
    manifest: bytes, signature: bytes, pair: KeyPair, stranger: KeyPair
) -> None:
    policy = Policy("require", (stranger.public, pair.public))
    assert trust.check(manifest, signature, policy) == []


def test_a_signature_is_no_foreign_file_of_a_package(package: Package, signature: bytes) -> None:
    assert len(signature) > 1000
    assert Package.open(package.path).verify() == []


def test_the_library_itself_accepts_signed_packages(
    package: Package, signature: bytes, pair: KeyPair
) -> None:
    argv = ["verify", "key", str(package.path), "--public_key", str(pair.public)]
    argv += ["--signature", str(package.path / SIGNATURE_NAME), "--ignore_unsigned_files"]
    command = [sys.executable, "-m", "model_signing", *argv]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    (package.path / MANIFEST_NAME).write_bytes(dump(draft()))
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


# --- tampered with -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", [Policy("warn"), Policy("require", (), (OURS,))], ids=["warn", "require"]
)
def test_every_byte_of_a_manifest_is_signed(
    manifest: bytes, signature: bytes, policy: Policy
) -> None:
    for place in range(len(manifest)):
        tampered = bytearray(manifest)
        tampered[place] ^= 1
        with pytest.raises(TrustError, match="over something else than this manifest"):
            trust.check(bytes(tampered), signature, policy)


@pytest.mark.parametrize(
    "change", [lambda m: m + b"\n", lambda m: m[:-1], lambda m: b"\xef\xbb\xbf" + m]
)
def test_a_manifest_may_not_grow_or_shrink(
    change: Callable[[bytes], bytes], manifest: bytes, signature: bytes, pair: KeyPair
) -> None:
    with pytest.raises(TrustError, match="over something else than this manifest"):
        trust.check(change(manifest), signature, pinned(pair))


def test_no_byte_of_a_signature_can_be_changed_unnoticed(
    manifest: bytes, signature: bytes, pair: KeyPair
) -> None:
    refused = 0
    for place in range(0, len(signature), 5):
        tampered = bytearray(signature)
        tampered[place] ^= 1
        try:
            warnings = trust.check(manifest, bytes(tampered), pinned(pair, "warn"))
        except TrustError:
            refused += 1
        else:  # the key it names is another now, or nothing that counts was changed
            assert warnings or _means(bytes(tampered)) == _means(signature)
    assert refused > 150


def _means(signature: bytes) -> Any:
    """Give what a signature says, without what nobody reads: the key's id and which bits pad base64."""
    bundle = json.loads(signature)
    envelope = bundle["dsseEnvelope"]
    texts = envelope["payload"], envelope["signatures"][0]["sig"]
    return bundle["mediaType"], [base64.b64decode(text) for text in texts]


def test_signature_of_another_manifest(
    manifest: bytes, tmp_path: Path, pair: KeyPair, stranger: KeyPair
) -> None:
    other = trust.sign(fill(tmp_path / "other", name="org/other"), key=pair.private).read_bytes()
    for policy in (pinned(pair), pinned(pair, "warn"), pinned(stranger, "warn"), Policy("warn")):
        with pytest.raises(TrustError, match="over something else than this manifest"):
            trust.check(manifest, other, policy)


@pytest.mark.parametrize("mode", ["require", "warn"])
def test_a_stranger_may_not_pass_for_one_that_is_pinned(
    mode: str, package: Package, manifest: bytes, pair: KeyPair, stranger: KeyPair
) -> None:
    ours = json.loads(trust.sign(package, key=pair.private).read_bytes())
    reference = trust.sign(package, key=stranger.private).read_bytes()
    forged = edited(
        reference, lambda b: b.update(verificationMaterial=ours["verificationMaterial"])
    )
    with pytest.raises(
        TrustError, match=r"claims to be by the key '.*ours.pub' and is not: InvalidSignature\."
    ):
        trust.check(manifest, forged, pinned(pair, mode))


def test_a_genuine_signature_over_nothing(manifest: bytes, tmp_path: Path, pair: KeyPair) -> None:
    """The library verifies this one: it leaves out the files that the signature says it left out."""
    from model_signing import hashing, signing, verifying

    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / MANIFEST_NAME).write_bytes(manifest)
    leaving_out = hashing.Config().set_ignored_paths(paths=[folder / MANIFEST_NAME])
    config = signing.Config().set_hashing_config(leaving_out)
    config.use_elliptic_key_signer(private_key=pair.private).sign(folder, tmp_path / "signature")
    (folder / MANIFEST_NAME).write_bytes(b"anything")
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=pair.public)
    verifier.verify(folder, tmp_path / "signature")
    with pytest.raises(TrustError, match="over something else than this manifest"):
        trust.check(b"anything", (tmp_path / "signature").read_bytes(), pinned(pair))


NOT_SIGNATURES = {
    "empty": b"",
    "no-json": b"-----BEGIN SIGNATURE-----",
    "no-object": b"[]",
    "no-members": b"{}",
    "deep": b'{"mediaType":' + b"[" * 100_000,
    "twice": b'{"mediaType": "a", "mediaType": "b"}',
    "not-utf-8": b"\xff\xfe",
}


@pytest.mark.parametrize("content", NOT_SIGNATURES.values(), ids=NOT_SIGNATURES)
@pytest.mark.parametrize("mode", ["require", "warn"])
def test_invalid_signatures_are_refused(
    content: bytes, mode: str, manifest: bytes, pair: KeyPair
) -> None:
    with pytest.raises(TrustError, match="Cannot read the signature: "):
        trust.check(manifest, content, pinned(pair, mode))


def _put(*path: Any, value: Any) -> Callable[[Any], None]:
    def edit(bundle: Any) -> None:
        for key in path[:-1]:
            bundle = bundle[key]
        bundle[path[-1]] = value

    return edit


EDITS = [
    _put("messageSignature", value={}),
    _put("dsse_envelope", value={}),  # a second name of dsseEnvelope for the library
    _put("dsseEnvelope", value=None),
    _put("dsseEnvelope", "payload", value="e30="),
    _put("dsseEnvelope", "payload", value="{}"),
    _put("dsseEnvelope", "payload", value=7),
    _put("dsseEnvelope", "payloadType", value="text/plain"),
    _put("dsseEnvelope", "signatures", value=[]),
    _put("dsseEnvelope", "signatures", value=[{"sig": ""}, {"sig": ""}]),
    _put("dsseEnvelope", "signatures", value=[7]),
    _put("dsseEnvelope", "signatures", 0, "sig", value="AAAA"),
    _put("mediaType", value="application/vnd.dev.sigstore.bundle.v0.1+json"),
    _put("verificationMaterial", value=[]),
    _put("verificationMaterial", "publicKey", value={}),
]


@pytest.mark.parametrize("edit", EDITS)
def test_signatures_of_another_shape(
    edit: Callable[[Any], None], manifest: bytes, signature: bytes, pair: KeyPair
) -> None:
    assert trust.check(manifest, edited(signature, lambda bundle: None), pinned(pair, "warn")) == []
    with pytest.raises(TrustError):
        trust.check(manifest, edited(signature, edit), pinned(pair, "warn"))


def test_nothing_is_read_without_end(manifest: bytes, signature: bytes, pair: KeyPair) -> None:
    with pytest.raises(TrustError, match="it has more than 1048576 bytes"):
        trust.check(manifest, signature + b" " * (1 << 20), pinned(pair))
    with pytest.raises(TrustError, match=r"manifest\.json has more than 67108864 bytes"):
        trust.check(manifest + b" " * MANIFEST_LIMIT, signature, pinned(pair))


# --- policies ------------------------------------------------------------------------------------


def test_unsigned_packages(manifest: bytes, pair: KeyPair) -> None:
    with pytest.raises(TrustError, match=r"is not signed; the trust policy requires a signature"):
        trust.check(manifest, None, pinned(pair))
    (warning,) = trust.check(manifest, None, pinned(pair, "warn"))
    assert warning == "It is not signed: nothing proves who made it."
    assert trust.check(manifest, None, Policy("off")) == []


def test_packages_signed_by_a_stranger(
    package: Package, manifest: bytes, pair: KeyPair, stranger: KeyPair
) -> None:
    reference = trust.sign(package, key=stranger.private).read_bytes()
    with pytest.raises(
        TrustError, match=r"is signed by a key that is not pinned, '[0-9a-f]{64}'; "
    ):
        trust.check(manifest, reference, pinned(pair))
    (warning,) = trust.check(manifest, reference, pinned(pair, "warn"))
    assert "is signed by a key that is not pinned" in warning


def test_without_pins(manifest: bytes, signature: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)  # as if it were not installed
    assert trust.check(manifest, signature, Policy()) == []
    with pytest.raises(TrustError, match="is signed, but no signer is pinned"):
        trust.check(manifest, signature, Policy("require"))


def test_off_reads_nothing(manifest: bytes) -> None:
    assert trust.check(b"\xff", b"\xff", Policy("off")) == []


@pytest.mark.parametrize("policy", ["keys", "identities"])
def test_without_the_extra(
    policy: str, manifest: bytes, signature: bytes, pair: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    trusted = {"keys": (pair.public,)} if policy == "keys" else {"identities": (OURS,)}
    if policy == "identities":
        certificate = {"certificate": {"rawBytes": ""}, "tlogEntries": []}
        signature = edited(signature, lambda b: b.update(verificationMaterial=certificate))
    with pytest.raises(
        TrustError, match=r"'model_signing', which is not installed.*qeff-zoo\[sign\]"
    ):
        trust.check(manifest, signature, Policy("warn", **trusted))


def test_policy_of_the_settings(pair: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trust.policy_of() == Policy("warn")
    monkeypatch.setenv("QEFF_ZOO_TRUST", "off")
    assert trust.policy_of() == Policy("off")
    entry = {"identity": OURS.identity, "issuer": OURS.issuer}
    settings = {"mode": "require", "keys": [str(pair.public)], "identities": [entry]}
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(settings))
    assert trust.policy_of() == Policy("require", (pair.public,), (OURS,))
    monkeypatch.setenv("QEFF_ZOO_TRUST", '{"mode": "off", "keys": ["/nowhere.pub"]}')
    assert trust.policy_of() == Policy("off")
    entry["trust_config"] = "~/sigstore.json"
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(settings))
    assert trust.policy_of().identities[0].trust_config == Path("~/sigstore.json").expanduser()


REFUSED = {
    "mode": ({"mode": "maybe"}, r"the mode is 'maybe'; expected one of require, warn, off"),
    "unknown": ({"key": []}, r"it sets 'key'; expected 'mode', 'keys', 'identities' and 'remotes'"),
    "keys": ({"keys": "a.pub"}, r"'keys' is 'a\.pub'; expected a list of files"),
    "identities": ({"identities": {}}, r"'identities' is \{\}; expected a list"),
    "identity": (
        {"identities": [{"identity": "a"}]},
        r"an identity is \{'identity': 'a'\}; expected",
    ),
    "issuer": ({"identities": [{"identity": "a", "issuer": ""}]}, "an identity is .*; expected"),
    "nobody": (
        {"mode": "require"},
        r"the mode is 'require' and no signer is pinned; expected a key",
    ),
    "missing": (
        {"keys": ["/nowhere.pub"]},
        r"there is no key at '/nowhere\.pub'; expected the PEM",
    ),
    "relative": (
        {"keys": ["a.pub"]},
        r"'a\.pub' is in whatever folder this runs; expected an absolute",
    ),
    "relative-config": (
        {"identities": [{"identity": "a", "issuer": "b", "trust_config": "c.json"}]},
        r"'c\.json' is in whatever folder this runs; expected an absolute",
    ),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_policies_that_cannot_be(
    settings: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEFF_ZOO_TRUST", json.dumps(settings))
    with pytest.raises(SettingsError, match=f"Cannot use the trust policy: {message}"):
        trust.policy_of()


def test_pinned_keys_that_are_none(
    manifest: bytes, signature: bytes, pair: KeyPair, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.pub"
    for content, why in (
        (pair.private.read_bytes(), "public key of an elliptic curve"),
        (public_pem(rsa.generate_private_key(65537, 2048)), "it is a RSAPublicKey"),
        (b"ssh-ed25519 AAAA", "Cannot use the key"),
        (b" " * 70_000, "it has more than 65536 bytes"),
    ):
        bad.write_bytes(content)
        with pytest.raises(TrustError, match=why):
            trust.check(manifest, signature, Policy("warn", (bad,)))


def test_pinned_keys_of_a_curve_that_signs_nothing(
    manifest: bytes, signature: bytes, tmp_path: Path
) -> None:
    unknown = make_pair(tmp_path, "unknown", ec.SECP256K1())
    hint = {"publicKey": {"hint": fingerprint(unknown.public)}, "tlogEntries": []}
    forged = edited(signature, lambda bundle: bundle.update(verificationMaterial=hint))
    with pytest.raises(TrustError, match="Unsupported key for curve 'secp256k1'"):
        trust.check(manifest, forged, pinned(unknown, "warn"))


# --- signing -------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        code = cli.main([str(word) for word in argv])
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, *capsys.readouterr()


def test_the_command(package: Package, pair: KeyPair, capsys: pytest.CaptureFixture[str]) -> None:
    path = package.path / SIGNATURE_NAME
    assert run(capsys, "sign", package.path, "--key", pair.private) == (0, f"{path}\n", "")
    first = path.read_bytes()
    code, out, _ = run(capsys, "sign", package.path, "--key", pair.private, "--json")
    assert (code, json.loads(out)) == (0, {"signature": str(path)})
    assert path.read_bytes() != first
    assert [file.name for file in package.path.iterdir() if "sigstore" in file.name] == [path.name]


@pytest.mark.parametrize("how", [(), ("--key", "a", "--keyless")])
def test_one_way_to_sign(
    how: tuple[str, ...], package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "sign", package.path, *how)
    assert (code, out) == (2, "")
    assert "--keyless" in err


def test_keys_that_cannot_sign(
    package: Package, tmp_path: Path, stranger: KeyPair, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.pem"
    for content, why in (
        (None, "No such file or directory"),
        (stranger.public.read_bytes(), "private key"),
        (private_pem(rsa.generate_private_key(65537, 2048)), "it is a RSAPrivateKey"),
        (
            private_pem(ec.generate_private_key(ec.SECP256K1())),
            "Unsupported key for curve 'secp256k1'",
        ),
        (
            make_pair(tmp_path, "locked", password=b"1234").private.read_bytes(),
            "QEFF_ZOO_KEY_PASSWORD",
        ),
    ):
        if content is not None:
            bad.write_bytes(content)
        code, out, err = run(capsys, "sign", package.path, "--key", bad)
        assert (code, out) == (1, "")
        assert f"Cannot use the key {str(bad)!r}: " in err
        assert why in err
    assert not (package.path / SIGNATURE_NAME).exists()


def test_locked_keys(
    package: Package, manifest: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = make_pair(tmp_path, "locked", password=b"s\xc3\xa9same")
    monkeypatch.setenv("QEFF_ZOO_KEY_PASSWORD", "wrong")
    with pytest.raises(TrustError, match="Cannot use the key"):
        trust.sign(package, key=locked.private)
    monkeypatch.setenv("QEFF_ZOO_KEY_PASSWORD", "sésame")
    signature = trust.sign(package, key=locked.private).read_bytes()
    assert trust.check(manifest, signature, pinned(locked)) == []


def test_signing_needs_the_extra(
    package: Package,
    pair: KeyPair,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    for how in (["--key", pair.private], ["--keyless"]):
        code, _, err = run(capsys, "sign", package.path, *how)
        assert code == 1
        assert "pip install 'qeff-zoo[sign]'" in err


# --- signed by an identity -----------------------------------------------------------------------


@pytest.fixture(scope="session")
def sigstore() -> LocalSigstore:
    return LocalSigstore()


@pytest.fixture
def ours(sigstore: LocalSigstore, tmp_path: Path) -> Identity:
    """Give who is pinned, of that Sigstore."""
    config = sigstore.trust_config(tmp_path / "sigstore.json")
    return Identity(OURS.identity, OURS.issuer, config)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Cut the network off, and forget what Sigstore's client keeps in the home folder."""
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
def test_signed_by_an_identity(
    manifest: bytes, sigstore: LocalSigstore, ours: Identity, pair: KeyPair
) -> None:
    signature = sigstore.sign(manifest, ours.identity, ours.issuer)
    policy = Policy("require", (pair.public,), (Identity("other@acme.example", ours.issuer), ours))
    assert trust.check(manifest, signature, policy) == []
    with pytest.raises(TrustError, match="over something else than this manifest"):
        trust.check(manifest + b" ", signature, policy)


@pytest.mark.parametrize(
    ("identity", "issuer"),
    [("else@acme.example", OURS.issuer), (OURS.identity, "https://issuer.invalid")],
)
def test_signed_by_another_identity(
    identity: str, issuer: str, manifest: bytes, sigstore: LocalSigstore, ours: Identity
) -> None:
    signature = sigstore.sign(manifest, identity, issuer)
    with pytest.raises(TrustError, match="is signed by an identity that is not pinned"):
        trust.check(manifest, signature, Policy("require", (), (ours,)))
    (warning,) = trust.check(manifest, signature, Policy("warn", (), (ours,)))
    assert "is signed by an identity that is not pinned" in warning


def test_an_identity_that_its_sigstore_does_not_know(manifest: bytes, ours: Identity) -> None:
    forged = LocalSigstore().sign(manifest, ours.identity, ours.issuer)
    for mode in ("require", "warn"):
        with pytest.raises(
            TrustError, match=r"claims to be by the identity 'releases@.*' and is not"
        ):
            trust.check(manifest, forged, Policy(mode, (), (ours,)))


KEYLESS_EDITS = [
    _put("dsseEnvelope", "signatures", 0, "sig", value="AAAA"),
    _put("verificationMaterial", "tlogEntries", value=[]),
    _put("verificationMaterial", "tlogEntries", 0, "integratedTime", value="1"),
    _put("verificationMaterial", "tlogEntries", 0, "inclusionPromise", value=None),
    _put("verificationMaterial", "tlogEntries", 0, "canonicalizedBody", value="e30="),
    _put("verificationMaterial", "certificate", "rawBytes", value="AAAA"),
    _put("verificationMaterial", "certificate", value={}),
]


@pytest.mark.parametrize("edit", KEYLESS_EDITS)
def test_signature_of_another_identity_is_refused(
    edit: Callable[[Any], None], manifest: bytes, sigstore: LocalSigstore, ours: Identity
) -> None:
    forged = edited(sigstore.sign(manifest, ours.identity, ours.issuer), edit)
    with pytest.raises(TrustError):
        trust.check(manifest, forged, Policy("warn", (), (ours,)))


@pytest.mark.usefixtures("no_network")
def test_keys_of_the_public_sigstore_come_over_the_network(
    manifest: bytes, sigstore: LocalSigstore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signature = sigstore.sign(manifest, OURS.identity, OURS.issuer)
    with pytest.raises(TrustError, match=r"Cannot verify a signature by 'releases@.*TUF"):
        trust.check(manifest, signature, Policy("warn", (), (OURS,)))
    broken = Identity(OURS.identity, OURS.issuer, tmp_path / "nowhere.json")
    with pytest.raises(TrustError, match=r"nowhere\.json"):
        trust.check(manifest, signature, Policy("warn", (), (broken,)))
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    with pytest.raises(TrustError, match="this process is offline"):
        trust.check(manifest, signature, Policy("warn", (), (OURS,)))


def test_signing_without_a_key(
    package: Package,
    manifest: bytes,
    sigstore: LocalSigstore,
    ours: Identity,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All but who certifies is the library's own: in its place stands the Sigstore of the tests."""
    from google.protobuf import json_format
    from model_signing._signing import sign_sigstore

    class Signer:
        def __init__(self, *, use_ambient_credentials: bool, **rest: Any) -> None:
            assert use_ambient_credentials  # a workflow is not asked to log in
            assert not any(rest.values())

        def sign(self, payload: Any) -> sign_sigstore.Signature:
            sys.stdout.write("Enter verification code: ")  # as sigstore asks people
            statement = json_format.MessageToJson(payload.statement.pb).encode()
            bundle = sigstore.sign_statement(statement, ours.identity, ours.issuer)
            return sign_sigstore.Signature(sign_sigstore.sigstore_models.Bundle.from_json(bundle))

    monkeypatch.setattr(sign_sigstore, "Signer", Signer)
    path = package.path / SIGNATURE_NAME
    code, out, err = run(capsys, "sign", package.path, "--keyless")
    assert (code, out) == (0, f"{path}\n")
    assert "verification code" in err
    assert trust.check(manifest, path.read_bytes(), Policy("require", (), (ours,))) == []


@pytest.mark.usefixtures("no_network")
def test_signing_without_a_key_needs_the_network(
    package: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "sign", package.path, "--keyless")
    assert (code, out) == (1, "")
    assert "Cannot sign without a key: Failed to refresh TUF metadata" in err
    monkeypatch.setenv("QEFF_ZOO_OFFLINE", "1")
    code, out, err = run(capsys, "sign", package.path, "--keyless")
    assert (code, out) == (1, "")
    assert "this process is offline" in err
    assert not (package.path / SIGNATURE_NAME).exists()

# SPDX-License-Identifier: Apache-2.0
"""Pulling: a package of a remote becomes a package of the store, with every byte checked.

In: a request, or the URL of a package. Out: the package of the store, and the transfer that it required.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from qeff_zoo.checkpoint.files import Place
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.errors import RemoteError
from qeff_zoo.hub import resolve, trust
from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.naming import short_name
from qeff_zoo.hub.pull.fetch import (
    Assembler,
    download_description,
    download_signature,
    origin_of,
    require_as_indexed,
)
from qeff_zoo.hub.remotes.protocol import Snapshot
from qeff_zoo.hub.trust import index_cache
from qeff_zoo.hub.trust.policy import OFF
from qeff_zoo.hub.urls import unpinned
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import SIGNATURE_NAME, VALIDATED, Manifest
from qeff_zoo.settings import offline
from qeff_zoo.store import Store
from qeff_zoo.store.origins import Origin
from qeff_zoo.terminal.printing import human_size
from qeff_zoo.terminal.progress import Reporter, Silent


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """What a pull gave.

    Args:
        package: Package in the store, or in the folder of `--output`.
        hit: Whether the store had it.
        bytes_transferred: Transferred bytes of manifest, signature and files, retries included, without the index.
        source: URL of the remote, pinned, and path there; None if it was built here.
        warnings: Notices against the package, and issues that the trust policy lets pass.
        verdict: USE_WITH_WARNING if something is known against it, else USE; of `qeff_zoo.hub.resolve`.
    """

    package: Package
    hit: bool
    bytes_transferred: int
    source: str | None
    warnings: tuple[str, ...] = ()
    verdict: str = resolve.USE

    def warned(self, known: Sequence[str]) -> "Pulled":
        """Add what is known against the package."""
        verdict = resolve.USE_WITH_WARNING if known else self.verdict
        return replace(self, warnings=(*known, *self.warnings), verdict=verdict)


@dataclass(frozen=True)
class Puller:
    """Brings packages into a store.

    Args:
        store: Destination store.
        reporter: Shows progress.
        announce: Callback for a line that names what is pulled from where, before a package is.
    """

    store: Store
    reporter: Reporter = field(default_factory=Silent)
    announce: Callable[[str], None] = lambda _: None

    def pull(self, snapshot: Snapshot, origin: Origin, entry: Entry | None = None) -> Pulled:
        """Bring a package here, unless the store has it.

        Args:
            snapshot: Snapshot of the remote that has the package.
            origin: Origin of the package in that remote.
            entry: Index entry of the package. With it, a package built here from the same spec with the same level of
                proof is accepted; without it, the manifest must be identical.

        Raises:
            RemoteError: The package cannot be fetched, or differs from its index entry.
            TrustError: The trust policy refuses it.
            StoreError: There is no room for it.
        """
        if held := self.held(origin, snapshot):
            if entry is not None:
                content, _ = trust.read_signed(held.package.path)
                require_as_indexed(held.package.manifest, content, origin, entry)
            return held
        described = download_description(snapshot, origin)
        received = len(described.content) + len(described.signature or b"")
        package = None
        if entry is not None:
            require_as_indexed(described.manifest, described.content, origin, entry)
            package = self._built_here(described.manifest)
        hit = package is not None
        if package is None:
            # One that was pulled from elsewhere may not be trusted any more.
            adopt = entry is not None and self.store.is_built_here(described.build_key)
            assembler = Assembler(self.store, self.reporter)
            package, more = assembler.assemble(snapshot, described, origin, adopt=adopt)
            received += more
        return Pulled(
            package=package,
            hit=hit,
            bytes_transferred=received,
            source=f"{origin.url}/{origin.path}",
            warnings=(*described.warnings, *snapshot.index.warnings, *_warned_once(origin)),
        )

    def held(self, origin: Origin, snapshot: Snapshot | None = None) -> Pulled | None:
        """Find a package that the store has, by its manifest, and check that it is trusted now.

        Args:
            origin: Origin of the package.
            snapshot: Snapshot from which a later signature is read, and nothing else.
        """
        package = self.store.with_manifest(origin.manifest)
        if package is None:
            return None
        content, signature = trust.read_signed(package.path)
        fetched = None
        if signature is None and snapshot is not None:
            fetched = download_signature(snapshot, origin)
        warnings = trust.check(content, signature or fetched, trust.policy_for(origin))
        warnings += snapshot.index.warnings if snapshot else ()
        if fetched:
            write_durably(package.path / SIGNATURE_NAME, fetched)
        return Pulled(
            package=package,
            hit=True,
            bytes_transferred=len(fetched or b""),
            source=f"{origin.url}/{origin.path}",
            warnings=tuple(warnings),
        )

    def kept(self, build_key: str) -> Pulled:
        """Return a package that was pulled before, and that no remote was found to have now.

        Raises:
            RemoteError: The package differs from the pulled one.
            TrustError: The trust policy refuses it.
        """
        origin = self.store.origin(build_key)
        held = self.held(origin) if isinstance(origin, Origin) else None
        if held is None:
            state = "is not what was pulled" if origin else "is of unknown origin"
            raise RemoteError(
                f"The store's package {build_key} {state}; expected the manifest that a remote had. Run "
                f"`qeff-zoo repair {build_key[:16]}` where a remote has it, or remove it and build it."
            )
        return held

    def _built_here(self, manifest: Manifest) -> Package | None:
        there = self.store.lookup(manifest["build_key"])
        if there is None or not self.store.is_built_here(there.build_key):
            return None
        levels = [VALIDATED.index(level) for level in (there.validated, manifest["validated"])]
        return there if levels[0] >= levels[1] else None


def pull(
    reference: str,
    requirements: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    remote: str | None = None,
    puller: Puller | None = None,
    **place: Unpack[Place],
) -> Pulled:
    """Find the package to use for a model, and bring it here.

    Args:
        reference: Model id, Hub repository of packages (`org/repo[@revision]`), or URL of a remote.
        requirements: Requirements of the package; see `qeff_zoo.hub.resolve.resolve`.
        key: Name of the one package that will do.
        remote: URL or `org/repo` of the only remote that is read.
        puller: Store and options of the download; None for the store of `QEFF_HOME`.
        **place: Which checkpoint of that name is meant, see `qeff_zoo.checkpoint.opening.open_checkpoint`.

    Raises:
        ResolutionError: There is no such package.
        RemoteError: The package cannot be fetched, or differs from its index entry.
        TrustError: The trust policy refuses it.
        StoreError: There is no room for it.
    """
    puller = puller or Puller(Store())
    resolution = resolve.resolve(
        reference, requirements, key=key, remote=remote, store=puller.store, **place
    )
    return bring(resolution, puller)


def bring(resolution: resolve.Resolution, puller: Puller) -> Pulled:
    """Bring the package here that was chosen.

    Args:
        resolution: Resolution with the package, or with the reasons for none.
        puller: Store and options of the download.

    Raises:
        ZooError: See `pull`.
    """
    chosen = resolve.require(resolution)
    here, listed = chosen.here, listed_entry(resolution)
    if here is not None and puller.store.is_built_here(here.name):
        package = Package.open(here)
        pulled = Pulled(package=package, hit=True, bytes_transferred=0, source=None)
    elif here is not None and (listed is None or offline()):
        pulled = puller.kept(here.name)
    else:
        assert resolution.snapshot is not None  # what is not here is there
        assert listed is not None
        if here is None:
            size = human_size(listed.size)
            name = short_name(listed.path)
            puller.announce(
                f"Pulling {resolution.model} {name}, {size}, from {resolution.snapshot.url}"
            )
        pulled = puller.pull(resolution.snapshot, origin_of(resolution.snapshot, listed), listed)
    return pulled.warned(resolution.warnings)


def _warned_once(origin: Origin) -> Iterator[str]:
    """Warn at the first pull from a remote without a pinned signer."""
    policy = trust.policy_for(origin)
    if policy.mode != OFF and not policy.has_pins and index_cache.is_first_pull(origin.url):
        yield (
            f"No signer is pinned for {unpinned(origin.url)}, so nothing proves who made its packages. Pin their "
            "signer with `qeff-zoo trust add`. This is said once."
        )


def listed_entry(resolution: resolve.Resolution) -> Entry | None:
    """Return the index entry of the chosen package, local ones included; None if the index does not list it."""
    path = resolve.require(resolution).entry.path
    entries = resolution.snapshot.index.of_model(resolution.model) if resolution.snapshot else ()
    return next((entry for entry in entries if entry.path == path), None)

# SPDX-License-Identifier: Apache-2.0
"""Packages of one remote -> the same packages in another, with their signatures and what is known about them.

In: two remotes. Out: a `Copied` for each package. Each is pulled, and so checked as every pull is, and then published
in a commit of its own; what is there already is not sent again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from qeff_zoo.errors import PublishError, ResolutionError
from qeff_zoo.hub.entries import Entry, Notice
from qeff_zoo.hub.index import Sign
from qeff_zoo.hub.naming import is_named, notice_text
from qeff_zoo.hub.publish.plan import plan_publication
from qeff_zoo.hub.pull import Puller
from qeff_zoo.hub.pull.fetch import origin_of
from qeff_zoo.hub.remotes import destination, remote_at
from qeff_zoo.hub.remotes.protocol import Snapshot
from qeff_zoo.hub.resolve.claims import snapshot_of, some_models
from qeff_zoo.store import Store
from qeff_zoo.terminal.progress import Reporter, Silent

from . import publish


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What became of a package.

    Args:
        path: Path in both remotes.
        model: Model of the package.
        size: Size in bytes.
        url: URL of the commit; "" without one.
        warnings: Notices against it, and issues that the trust policy lets pass.
    """

    path: str
    model: str
    size: int
    url: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """How packages are copied.

    Args:
        private: Make a new repository a private one.
        sign: Signs the index of where they go.
        store: Store that holds the packages on their way, and afterwards.
        reporter: Shows progress.
    """

    private: bool = False
    sign: Sign | None = None
    store: Store = field(default_factory=Store)
    reporter: Reporter = field(default_factory=Silent)

    def copy(
        self,
        source: str,
        where: str,
        *,
        models: Sequence[str] = (),
        key: str | None = None,
        dry_run: bool = False,
    ) -> Iterator[Copied]:
        """Copy packages.

        Args:
            source: URL of the remote that has them, or a Hub repository.
            where: The same of where they go.
            models: Only packages of these; none for all.
            key: Only packages of this name.
            dry_run: Whether to list the files without copying.

        Raises:
            ResolutionError: There is no such package.
            RemoteError: There is no remote with packages; or one of them cannot be had, or is not what it claims.
            TrustError: The trust policy refuses one.
            PublishError: One cannot be published there.
        """
        destination(where)  # refuses what cannot be written, before anything is read
        snapshot = snapshot_of(remote_at(source))
        for entry, notice in _chosen(snapshot, models, key):
            known = (f"It is {notice_text(notice)}.",) if notice else ()
            url, more = "", snapshot.index.warnings
            if not dry_run:
                url, more = self._copy(snapshot, entry, notice, where)
            yield Copied(
                path=entry.path, model=entry.model, size=entry.size, url=url, warnings=known + more
            )

    def _copy(
        self, snapshot: Snapshot, entry: Entry, notice: Notice | None, where: str
    ) -> tuple[str, tuple[str, ...]]:
        """Copy a package; return the URL of the commit, and the warnings of the pull."""
        held = self.store.with_manifest(entry.manifest)
        for folder in (self.store.root / "packages").glob(f"qz1-{entry.key16}*"):
            if held is None and self.store.is_built_here(folder.name):
                raise PublishError(
                    f"Cannot copy {entry.path} by way of this store: it has another package of that key, which was "
                    "built here; expected none. Set QEFF_HOME to another folder."
                )
        pulled = Puller(self.store, self.reporter).pull(snapshot, origin_of(snapshot, entry))
        plan = plan_publication(
            pulled.package, where, private=self.private, of_others=True, reporter=self.reporter
        )
        url = publish(plan, reporter=self.reporter, sign=self.sign, notice=notice)
        return url, pulled.warnings


def _chosen(
    snapshot: Snapshot, models: Sequence[str], key: str | None
) -> list[tuple[Entry, Notice | None]]:
    """Pick packages with the notices about them, those that notices lead to first."""
    index = snapshot.index
    if unknown := [model for model in sorted({*models}) if not index.of_model(model)]:
        raise ResolutionError(
            f"{snapshot.url} has no package of {unknown[0]!r}; expected one of {some_models(index)}. Correct it."
        )
    chosen = [
        (entry, leaf.notices.get(entry.path))
        for leaf in index.leaves()
        for entry in leaf.entries
        if (not models or entry.model in models) and (key is None or is_named(key, entry.path))
    ]
    if not chosen:
        raise ResolutionError(
            f"{snapshot.url} has no such package; expected one to copy. Look with `qeff-zoo ls`."
        )
    return sorted(chosen, key=lambda pair: pair[1] is not None)

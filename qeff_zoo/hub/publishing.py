# SPDX-License-Identifier: Apache-2.0
"""Publishing: what would go where and who could see it, then one commit.

In: a package and a remote. Out: a `Publication`, from reading alone, with all that forbids it found at once; then the
URL of the commit. Files, manifest, signature, index and model card come together or not at all.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from qeff_zoo.errors import PublishError
from qeff_zoo.hub.clearance import objections
from qeff_zoo.hub.commits import commit
from qeff_zoo.hub.contents import Content
from qeff_zoo.hub.folder_remote import FolderRemote
from qeff_zoo.hub.holdings import (
    OTHER,
    PRIVATE,
    PUBLIC,
    Holdings,
    holdings_of,
)
from qeff_zoo.hub.hub_calls import hub_call
from qeff_zoo.hub.hub_remote import HubRemote
from qeff_zoo.hub.index import Entry, Index
from qeff_zoo.hub.licences import Licence, licence_of
from qeff_zoo.hub.publications import File, Publication
from qeff_zoo.hub.remotes import is_read_only, is_repository, is_url, open_remote
from qeff_zoo.hub.trust import is_vouched_for
from qeff_zoo.hub.written_card import card_upload
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME, parse
from qeff_zoo.progress import Reporter, Silent, Stopwatch
from qeff_zoo.store import Store
from qeff_zoo.store.origins import Origin


def plan_publication(
    package: Package,
    where: str,
    *,
    private: bool = False,
    create_pr: bool = False,
    reporter: Reporter | None = None,
) -> Publication:
    """Read the package and look at the remote; nothing is written.

    Args:
        package: As it is on disk now; all of it is read.
        where: A Hub repository `org/repo`, or a remote's URL: hf://org/repo[@branch], file:///path.
        private: Make a new repository a private one.
        create_pr: Open a pull request in place of committing.
        reporter: Shows progress.

    Raises:
        PublishError: It must not be published there; every reason is given.
        RemoteError: The remote cannot be read.
    """
    remote = destination(where)
    package, entry = _as_it_is(package)
    with Stopwatch(reporter or Silent()).stage("verify", package.size) as advance:
        found = objections(package, advance)
    found += _of_others(package)
    holdings = holdings_of(remote, entry.path)
    licence = licence_of(package.manifest, ask=isinstance(remote, HubRemote))
    files = tuple(_files(package, entry, holdings))
    found += _misplaced(remote, holdings, private=private, create_pr=create_pr)
    found += _exposed(remote, holdings, licence)
    found += _taken(entry, holdings, files)
    if found:
        raise _refusal(package.name, where, found)
    merged = _merged(entry, holdings.index)
    return Publication(
        remote=remote, package=package, entry=merged, files=files, licence=licence, create_pr=create_pr,
        visibility=holdings.visibility or (PUBLIC if licence.public and not private else PRIVATE),
        creates=holdings.visibility is None, listed=merged in holdings.index.entries,
    )  # fmt: skip


def _of_others(package: Package) -> Iterator[str]:
    """Say whose a package of the store is, if it was not built here and is not vouched for by one who is trusted."""
    store = Store()
    if package.path != store.folder(package.build_key) or store.is_built_here(package.build_key):
        return
    if not is_vouched_for(package):
        origin = store.origin(package.build_key)
        source = (
            f"was pulled from {origin.url}"
            if isinstance(origin, Origin)
            else "is from nobody knows where"
        )
        yield f"It {source}, and is signed by nobody who is pinned. Build it here, or pin who signed it."


def _as_it_is(package: Package) -> tuple[Package, Entry]:
    """Read a package's manifest again, and describe it by the very bytes that will be published."""
    Package.open(package.path)  # refuses what is no whole package
    content = (package.path / MANIFEST_NAME).read_bytes()
    there = Package(package.path, parse(content))
    signed = (package.path / SIGNATURE_NAME).is_file()
    return there, Entry.of(there.manifest, content, signed=signed)


def destination(where: str) -> HubRemote | FolderRemote:
    """Read where to publish to.

    Args:
        where: `org/repo`, or a remote's URL.

    Raises:
        PublishError: Nothing can be published there, or the settings forbid it.
        RemoteError: It is not the URL of a remote.
    """
    url = f"hf://{where}" if not is_url(where) and is_repository(where) else where
    remote = open_remote(url)
    if not isinstance(remote, HubRemote | FolderRemote):
        why = "a web server only gives"
    elif is_read_only(url):
        why = "the settings say that it is only read"
    elif isinstance(remote, HubRemote) and remote.is_pinned:
        why = "a commit does not change"
    else:
        return remote
    raise PublishError(
        f"Cannot publish to {url!r}: {why}. Expected hf://org/repo[@branch] or file:///path. Take one of those."
    )


def check_destination(where: str, *, private: bool = False) -> None:
    """Find before a long build what would forbid to publish its package, whatever that is.

    Args:
        where: As for `plan_publication`.
        private: As there.

    Raises:
        PublishError: It would be refused.
        RemoteError: The remote cannot be read.
    """
    remote = destination(where)
    holdings = holdings_of(remote, "")
    if found := list(_misplaced(remote, holdings, private=private, create_pr=False)):
        raise _refusal("the package", where, found)


def _refusal(name: str, where: str, found: Sequence[str]) -> PublishError:
    listed = "\n".join(f"  - {sentence}" for sentence in found)
    return PublishError(f"Cannot publish {name} to {where!r}; nothing was sent:\n{listed}")


def _files(package: Package, entry: Entry, holdings: Holdings) -> Iterator[File]:
    """List what makes up a package in a remote."""
    digests = {file["path"]: file["digest"] for file in package.manifest["files"]}
    digests[MANIFEST_NAME] = f"sha256:{entry.manifest}"
    if entry.signed:
        signature = (package.path / SIGNATURE_NAME).read_bytes()
        digests[SIGNATURE_NAME] = f"sha256:{hashlib.sha256(signature).hexdigest()}"
    for name, digest in digests.items():
        path, source = f"{entry.path}/{name}", package.path / name
        size = source.stat().st_size
        yield File(path, source, size, holdings.state(path, source, digest))


def _misplaced(
    remote: HubRemote | FolderRemote, holdings: Holdings, *, private: bool, create_pr: bool
) -> Iterator[str]:
    """Say what is wrong with the remote, whatever the package is."""
    if isinstance(remote, FolderRemote):
        for given, option in ((private, "--private"), (create_pr, "--create-pr")):
            if given:
                yield f"{option} is of Hub repositories, and this is a folder. Leave it out."
        return
    from huggingface_hub import get_token

    if get_token() is None:
        yield "Nobody is signed in to the Hub. Run `hf auth login` or set HF_TOKEN."
    if private and holdings.visibility == PUBLIC:
        yield (
            f"{remote.repo} is public, and who can see a repository is never changed here. Leave out --private, or "
            "take another repository."
        )
    if remote.revision and holdings.visibility is None:
        yield f"{remote.repo} is not there, and a new one has no branch {remote.revision!r}. Leave the branch out."
    if create_pr and holdings.visibility is None:
        yield f"{remote.repo} is not there, so nobody could merge a pull request. Leave out --create-pr."


def _exposed(
    remote: HubRemote | FolderRemote, holdings: Holdings, licence: Licence
) -> Iterator[str]:
    if isinstance(remote, HubRemote) and holdings.visibility == PUBLIC and not licence.public:
        yield f"{remote.repo} is public, but {licence.reason}. Publish to a private repository."


def _taken(entry: Entry, holdings: Holdings, files: Sequence[File]) -> Iterator[str]:
    if (other := _other(entry, holdings.index)) is not None:
        yield other
    elif taken := [file.path for file in files if file.state == OTHER]:
        yield (
            f"The remote has another {', '.join(taken)}, and nothing is overwritten. Remove what no index lists, or "
            "publish elsewhere."
        )


def _other(entry: Entry, index: Index) -> str | None:
    """Say that the index lists another package at the place of this one, if it does."""
    there = _at(entry.path, index)
    if there is None or there.manifest == entry.manifest:
        return None
    return (
        f"The remote has another package of the same key, {entry.path}, finished at {there.finished}; this one at "
        f"{entry.finished}. Nothing is overwritten. Pull that one, or publish elsewhere."
    )


def _at(path: str, index: Index) -> Entry | None:
    return next((entry for entry in index.entries if entry.path == path), None)


def _merged(entry: Entry, index: Index) -> Entry:
    """Keep what the index says of a signature that came with an earlier publication."""
    there = _at(entry.path, index)
    return replace(entry, signed=entry.signed or (there is not None and there.signed))


def publish(publication: Publication, *, reporter: Reporter | None = None) -> str:
    """Do what was planned, in one commit; after a failure or a kill, planning and doing it again goes on from there.

    Args:
        publication: From `plan_publication`.
        reporter: Without one, the client's own progress bars are not shown either.

    Returns:
        The URL of the commit, or of the pull request; that of the remote if it has all of it already.

    Raises:
        PublishError: The remote refused, or was not reached.
    """
    remote, entry = publication.remote, publication.entry
    if isinstance(remote, HubRemote):
        if publication.nothing_to_do:  # to a folder it is done, for one that died after its commit
            return remote.url
        _prepare(remote, publication)

    def update(index: Index) -> Index:
        if other := _other(entry, index):
            raise _refusal(publication.package.name, remote.url, [other])
        return index.with_entry(_merged(entry, index))

    upload: dict[str, Content] = {file.path: file.source for file in publication.missing}
    with _bars(shown=not isinstance(reporter or Silent(), Silent)):
        return commit(
            remote.url,
            upload={**upload, **card_upload(remote)},
            update=update,
            message=f"Add {publication.package.name}: {entry.variant} {entry.key16}",
            create_pr=publication.create_pr,
        )


@contextmanager
def _bars(*, shown: bool) -> Iterator[None]:
    """Silence huggingface_hub, which draws progress bars into files as well."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _prepare(remote: HubRemote, publication: Publication) -> None:
    """Make the repository if it is not there, and see that nobody sees more than was planned."""
    from huggingface_hub import HfApi

    api, private = HfApi(), publication.visibility == PRIVATE
    if publication.creates:
        hub_call(
            f"make {remote.repo!r}",
            lambda: api.create_repo(remote.repo, private=private, exist_ok=True),
        )
    info = hub_call(f"look at {remote.repo!r}", lambda: api.model_info(remote.repo))
    if private and not info.private:
        raise PublishError(
            f"{remote.repo!r} has become public since the plan, which was for a private repository. Nothing was sent. "
            "Publish again."
        )

# SPDX-License-Identifier: Apache-2.0
"""Plan of a publication, before anything is written: for people, for programs, and for the code that executes it.

In: a package and a remote. Out: a `Publication`, and all obstacles at once. Nothing is written.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.hub_access import hub_token
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.errors import PublishError
from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.index import Index
from qeff_zoo.hub.publish.gate import Licence, licence_of, licence_of_text, objections
from qeff_zoo.hub.remotes import destination
from qeff_zoo.hub.remotes.folder import FolderRemote
from qeff_zoo.hub.remotes.hub_api import HubRemote, hub_call
from qeff_zoo.hub.remotes.protocol import MISSING, OTHER, PRIVATE, PUBLIC, THERE, Holdings
from qeff_zoo.hub.trust.usage import is_as_good_as_ours
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME, parse
from qeff_zoo.store import Store
from qeff_zoo.store.origins import Origin, read_origin
from qeff_zoo.terminal.printing import human_size
from qeff_zoo.terminal.progress import Reporter, Silent, Stopwatch


@dataclass(frozen=True)
class File:
    """One file of a publication.

    Args:
        path: Path in the remote.
        source: Here.
        size: Size in bytes.
        state: State of the file in the remote: `THERE`, `ELSEWHERE` or `MISSING` of `qeff_zoo.hub.remotes.protocol`.
    """

    path: str
    source: Path
    size: int
    state: str


@dataclass(frozen=True, kw_only=True)
class Publication:
    """What publishing a package would do.

    Args:
        remote: Destination.
        package: Package to publish.
        entry: Index entry after the publication.
        files: All of it, the manifest and its signature too.
        visibility: Visibility after the publication: "public", "private" or "folder".
        creates: Whether the repository is created.
        licence: Whether everyone might see it.
        listed: Whether the index has the same entry already.
        signed: Whether the index is signed, for this remote.
        create_pr: Whether a pull request is opened in place of a commit.
    """

    remote: HubRemote | FolderRemote
    package: Package
    entry: Entry
    files: tuple[File, ...] = field(repr=False)
    visibility: str
    creates: bool
    licence: Licence
    listed: bool
    signed: bool
    create_pr: bool = False

    @property
    def missing(self) -> tuple[File, ...]:
        """The files that the remote does not have under their paths."""
        return tuple(file for file in self.files if file.state != THERE)

    @property
    def nothing_to_do(self) -> bool:
        """Whether the remote has all of it."""
        return self.listed and not self.missing

    @property
    def summary(self) -> str:
        """The plan in one line."""
        there = len(self.files) - len(self.missing)
        send = human_size(self._bytes_to_upload)
        return (
            f"{self.package.name} -> {self.remote.url} ({'new, ' if self.creates else ''}{self.visibility}): "
            f"{len(self.files)} files, {human_size(_size(self.files))}; {there} there already, {send} to upload"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for a program."""
        files = [{"path": file.path, "size": file.size, "state": file.state} for file in self.files]
        return {
            "remote": self.remote.url, "visibility": self.visibility, "creates": self.creates,
            "licence": asdict(self.licence), "package": str(self.package.path), "path": self.entry.path,
            "build_key": self.package.build_key, "listed": self.listed, "create_pr": self.create_pr,
            "bytes": _size(self.files), "bytes_to_upload": self._bytes_to_upload, "files": files,
        }  # fmt: skip

    def __str__(self) -> str:
        """Explain the plan to a person."""
        rows = [
            ("as", self.entry.path),
            ("visibility", self.visibility + ("; the repository is made" if self.creates else "")),
            (
                "licence",
                f"{'for everyone' if self.licence.public else 'private'}: {self.licence.reason}",
            ),
            ("then", "nothing: all of it is there" if self.nothing_to_do else self._step),
        ]
        files = [(file.state, f"{human_size(file.size):>8}  {file.path}") for file in self.files]
        width = max(len(name) for name, _ in (*rows, *files))
        lines = [f"  {name:<{width}}  {text}" for name, text in (*rows, *files)]
        return "\n".join([self.summary, "", *lines])

    @property
    def _bytes_to_upload(self) -> int:
        return sum(file.size for file in self.files if file.state == MISSING)

    @property
    def _step(self) -> str:
        return (
            "one pull request"
            if self.create_pr
            else "one commit, with the index and the model card"
        )


def _size(files: tuple[File, ...]) -> int:
    return sum(file.size for file in files)


def plan_publication(
    package: Package,
    where: str,
    *,
    private: bool = False,
    create_pr: bool = False,
    of_others: bool = False,
    reporter: Reporter | None = None,
) -> Publication:
    """Read the package and look at the remote; nothing is written.

    Args:
        package: Package on disk; every byte of it is read.
        where: A Hub repository `org/repo`, or a remote's URL: hf://org/repo[@branch], file:///path.
        private: Make a new repository a private one.
        create_pr: Open a pull request in place of committing.
        of_others: Whether to publish a pulled package of another publisher unchanged.
        reporter: Shows progress.

    Raises:
        PublishError: Publication is forbidden; the error lists every reason.
        RemoteError: The remote cannot be read.
    """
    remote = destination(where)
    package, entry = _as_it_is(package)
    with Stopwatch(reporter or Silent()).stage("verify", package.size) as advance:
        problems = objections(package, advance)
    problems += () if of_others else _of_others(package)
    holdings = remote.holdings(entry.path)
    licence = licence_of(package.manifest, check_gate=isinstance(remote, HubRemote))
    files = tuple(_files(package, entry, holdings))
    problems += _misplaced(remote, holdings, private=private, create_pr=create_pr)
    problems += _exposed(remote, holdings, licence)
    problems += _taken(entry, holdings, files)
    if problems:
        raise refusal(package.name, where, problems)
    listed = merged(entry, holdings.index)
    return Publication(
        remote=remote, package=package, entry=listed, files=files, licence=licence, create_pr=create_pr,
        visibility=holdings.visibility or (PUBLIC if licence.public and not private else PRIVATE),
        creates=holdings.visibility is None, listed=listed in holdings.index.of_model(entry.model),
        signed=holdings.index.signature is not None and bool(holdings.index.remotes),
    )  # fmt: skip


def _of_others(package: Package) -> Iterator[str]:
    """Return the origin of a package that was neither built here nor signed by a trusted signer."""
    if is_as_good_as_ours(package, Store()):
        return
    origin = read_origin(package.path)
    source = (
        f"was pulled from {origin.url}"
        if isinstance(origin, Origin)
        else "is of unknown origin: this store did not build it"
    )
    yield (
        f"It {source}, and no pinned signer has signed it. Build it here, pin its signer, or publish it as the "
        "package of others that it is, with --of-others."
    )


def _as_it_is(package: Package) -> tuple[Package, Entry]:
    """Read a package's manifest again, and describe it by the very bytes that will be published."""
    Package.open(package.path)  # refuses what is no whole package
    content = read_regular(package.path / MANIFEST_NAME)
    there = Package(package.path, parse(content))
    signed = (package.path / SIGNATURE_NAME).is_file()
    return there, Entry.of(there.manifest, content, signed=signed)


def check_destination(
    where: str, *, private: bool = False, licences: Mapping[str, str | None] | None = None
) -> None:
    """Find before long builds what would forbid to publish their packages.

    Args:
        where: See `plan_publication`.
        private: See `plan_publication`.
        licences: Stated licence by model, None for a model without one; or None if it is not known yet.

    Raises:
        PublishError: The destination is refused.
        RemoteError: The remote cannot be read.
    """
    remote = destination(where)
    holdings = remote.holdings("")
    misplaced = list(_misplaced(remote, holdings, private=private, create_pr=False))
    if isinstance(remote, HubRemote):
        misplaced = misplaced or list(_forbidden(remote))
    for model, stated in sorted((licences or {}).items()):
        reasons = _exposed(remote, holdings, licence_of_text(stated))
        misplaced += [f"{model}: {reason}" for reason in reasons]
    if misplaced:
        raise refusal("the package", where, misplaced)


def refusal(name: str, where: str, reasons: Sequence[str]) -> PublishError:
    """List the reasons that forbid to publish a package."""
    listed = "\n".join(f"  - {sentence}" for sentence in reasons)
    return PublishError(f"Cannot publish {name} to {where!r}; nothing was sent:\n{listed}")


def _files(package: Package, entry: Entry, holdings: Holdings) -> Iterator[File]:
    """List what makes up a package in a remote."""
    digests = {file["path"]: file["digest"] for file in package.manifest["files"]}
    digests[MANIFEST_NAME] = f"sha256:{entry.manifest}"
    if entry.signed:
        signature = read_regular(package.path / SIGNATURE_NAME)
        digests[SIGNATURE_NAME] = f"sha256:{hashlib.sha256(signature).hexdigest()}"
    for name, digest in digests.items():
        path, source = f"{entry.path}/{name}", package.path / name
        size = source.stat().st_size
        yield File(path, source, size, holdings.state(path, source, digest))


def _misplaced(
    remote: HubRemote | FolderRemote, holdings: Holdings, *, private: bool, create_pr: bool
) -> Iterator[str]:
    """Return what is wrong with the remote, whatever the package."""
    if isinstance(remote, FolderRemote):
        for given, option in ((private, "--private"), (create_pr, "--create-pr")):
            if given:
                yield f"{option} is of Hub repositories, and this is a folder. Leave it out."
        return
    from huggingface_hub import constants, get_token

    if hub_token() is False:
        yield (
            f"{constants.ENDPOINT} is reached by plain HTTP, so that anybody on the way could read the token, which is "
            "not sent there. Set HF_ENDPOINT to https://…."
        )
    elif get_token() is None:
        yield "There is no Hub login. Run `hf auth login` or set HF_TOKEN."
    if private and holdings.visibility == PUBLIC:
        yield (
            f"{remote.repo} is public, and who can see a repository is never changed here. Leave out --private, or "
            "take another repository."
        )
    if remote.revision and holdings.visibility is None:
        yield f"{remote.repo} is not there, and a new one has no branch {remote.revision!r}. Leave the branch out."
    if create_pr and holdings.visibility is None:
        yield f"{remote.repo} is not there, so a pull request could not be merged. Leave out --create-pr."


def _forbidden(remote: HubRemote) -> Iterator[str]:
    """Return why the user of the token may not write to a Hub repository, by the roles that the Hub lists."""
    from huggingface_hub import whoami

    account = hub_call("look up the user of the token", lambda: whoami(hub_token(), cache=True))
    owner, user = remote.repo.partition("/")[0], account["name"]
    roles = {
        user: "write",
        **{org["name"]: org.get("roleInOrg") for org in account.get("orgs", ())},
    }
    if owner not in roles:
        yield (
            f"{user!r} is no member of {owner!r}. Expected the token of {owner!r} or of a member. Sign in with it, or "
            "publish elsewhere."
        )
    elif "read" in (roles[owner], account.get("auth", {}).get("accessToken", {}).get("role")):
        yield (
            f"{user!r} may only read from {owner!r} with the present token. Expected a token with the role 'write'. "
            "Sign in with one, or publish elsewhere."
        )


def _exposed(
    remote: HubRemote | FolderRemote, holdings: Holdings, licence: Licence
) -> Iterator[str]:
    if isinstance(remote, HubRemote) and holdings.visibility == PUBLIC and not licence.public:
        yield f"{remote.repo} is public, but {licence.reason}. Publish to a private repository."


def _taken(entry: Entry, holdings: Holdings, files: Sequence[File]) -> Iterator[str]:
    if (other := other_at(entry, holdings.index)) is not None:
        yield other
    elif taken := [file.path for file in files if file.state == OTHER]:
        yield (
            f"The remote has another {', '.join(taken)}, and nothing is overwritten. Remove what no index lists, or "
            "publish elsewhere."
        )


def other_at(entry: Entry, index: Index) -> str | None:
    """Describe another package with this package's path in the index, if there is one."""
    there = _at(entry, index)
    if there is None or there.manifest == entry.manifest:
        return None
    return (
        f"The remote has another package of the same key, {entry.path}, finished at {there.finished}; this one at "
        f"{entry.finished}. Nothing is overwritten. Pull that one, or publish elsewhere."
    )


def _at(entry: Entry, index: Index) -> Entry | None:
    return next((each for each in index.of_model(entry.model) if each.path == entry.path), None)


def merged(entry: Entry, index: Index) -> Entry:
    """Keep the index's signature fields of an earlier publication."""
    there = _at(entry, index)
    return replace(entry, signed=entry.signed or (there is not None and there.signed))

# SPDX-License-Identifier: Apache-2.0
"""Remote in a repository of the Hub: `hf://org/repo[@revision]`.

It is read over plain HTTP at one commit, and written by huggingface_hub: large files first, then one commit on top of
the head whose index was read. huggingface_hub does not repeat commits; here they are repeated: a commit with a parent
is created once or not at all, and if no response arrived, the index at the head shows which.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from qeff_zoo.checkpoint.hub_access import hub_token
from qeff_zoo.checkpoint.hub_errors import LATER, http_error
from qeff_zoo.errors import PublishError, RemoteError
from qeff_zoo.hub import trust
from qeff_zoo.hub.index import INDEX_NAME, Index, Sign
from qeff_zoo.hub.index_files import INDEX_LIMIT, decode, stale_files
from qeff_zoo.hub.remotes.http import (
    WebSnapshot,
    pause_after,
    pauses,
    read_index,
    retried,
    retry_after,
)
from qeff_zoo.hub.remotes.protocol import PRIVATE, PUBLIC, Content, Holdings, changed
from qeff_zoo.hub.trust import index_cache
from qeff_zoo.hub.trust.index_cache import FetchedIndex, reading
from qeff_zoo.settings import offline as is_offline

from . import http

_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOVED = (409, 412)
_ATTEMPTS = 12
_Result = TypeVar("_Result")


# --- reading -----------------------------------------------------------------------------------


def resolve_url(repo: str, revision: str) -> str:
    """Return the URL of the files of a revision on the Hub.

    Args:
        repo: `org/repo`.
        revision: Branch, tag or commit.
    """
    from huggingface_hub import constants

    return f"{constants.ENDPOINT.rstrip('/')}/{repo}/resolve/{quote(revision, safe='')}"


def credentials(url: str) -> Mapping[str, str]:
    """Return the headers that a server may see: with the user's token if it is the Hub itself."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    hub, there = urlsplit(constants.ENDPOINT), urlsplit(url)
    own = (hub.scheme, hub.hostname, hub.port) == (there.scheme, there.hostname, there.port)
    headers = build_hf_headers(token=hub_token() if own else False, library_name="qeff-zoo")
    return {name.lower(): value for name, value in headers.items()}


class HubSnapshot(WebSnapshot):
    """One commit of a repository."""

    def _credentials(self, url: str) -> Mapping[str, str]:
        return credentials(url)


@dataclass(frozen=True)
class HubRemote:
    """A Hub repository with packages. See `qeff_zoo.hub.remotes.protocol.WritableRemote`.

    Args:
        url: URL as the user wrote it.
        repo: `org/repo`.
        revision: Branch, tag or commit; None for the main branch.
        read_only: Whether nothing is published here.
    """

    url: str
    repo: str
    revision: str | None = None
    read_only: bool = False

    @property
    def is_pinned(self) -> bool:
        """Whether it is one commit, which does not change."""
        return _COMMIT.fullmatch(self.revision or "") is not None

    def snapshot(self, *, offline: bool = False) -> HubSnapshot | None:
        offline = offline or is_offline()
        pinned = index_cache.recall(self.url) if self.is_pinned else None
        if pinned:
            index: FetchedIndex | None = pinned
        elif offline:
            index = index_cache.offline_index(self.url)
        else:
            index = index_cache.newest(self.url, self._fetch)
        return self.at(index.commit, index.index, offline=offline) if index else None

    def at(self, commit: str, index: Index, *, offline: bool = False) -> HubSnapshot:
        """Return a commit.

        Args:
            commit: 40 hex digits.
            index: Root of its index.
            offline: Whether only the files of the index are read that are cached.
        """
        url = f"hf://{self.repo}@{commit}"
        snapshot = HubSnapshot(url, index, resolve_url(self.repo, commit))
        return replace(snapshot, index=reading(self.url, snapshot, offline=offline))

    def is_there(self) -> bool:
        """Whether the Hub shows the repository to this user.

        Raises:
            RemoteError: The Hub does not respond.
        """
        return hub_call(f"look at {self.repo!r}", self._info) is not None

    def _info(self, **what: Any) -> Any:
        """Return the Hub's description of the repository; None if this user cannot read it."""
        from huggingface_hub import HfApi, errors

        try:
            return HfApi(library_name="qeff-zoo", token=hub_token()).model_info(self.repo, **what)
        except errors.RepositoryNotFoundError as error:
            if status_of(error) in (401, 404):
                return None
            raise

    def _fetch(self, before: FetchedIndex | None) -> FetchedIndex | None:
        return retried(lambda: self._request_index(before))

    def _request_index(self, before: FetchedIndex | None) -> FetchedIndex | None:
        url = f"{resolve_url(self.repo, self.revision or 'main')}/{INDEX_NAME}"
        with http.get(url, etag=before.etag if before else "", credentials=credentials) as answer:
            index = read_index(answer, before, self.url)
        if index and not _COMMIT.fullmatch(index.commit):
            raise RemoteError(
                f"{url!r} was answered without a commit (X-Repo-Commit is {index.commit!r}); expected the Hub's 40 hex "
                "digits. Check HF_ENDPOINT; a plain web server is named by https://…"
            )
        return index

    def present(self, path: str, *, limit: int) -> bytes | None:
        return retried(lambda: self._present(path, limit))

    def _present(self, path: str, limit: int) -> bytes | None:
        url = f"{resolve_url(self.repo, self.revision or 'main')}/{path}"
        with http.get(url, credentials=credentials) as answer:
            if answer.status == http.NOT_FOUND:
                return None
            return http.read_all(answer.pieces, limit, f"{path} of {self.url!r}")

    def holdings(self, package: str) -> Holdings:
        """List the repository's files, then read its index."""
        from huggingface_hub import errors

        def list_files() -> Holdings | None:
            try:
                info = self._info(revision=self.revision, files_metadata=True)
            except errors.RevisionNotFoundError as error:
                raise PublishError(
                    f"{self.repo!r} has no branch {self.revision!r}. Expected one that is there. Make it, or name none."
                ) from error
            if info is None:
                return None
            files = {
                file.rfilename: f"sha256:{file.lfs.sha256}" if file.lfs else f"git:{file.blob_id}"
                for file in info.siblings or ()
            }
            return Holdings(visibility=PRIVATE if info.private else PUBLIC, files=files)

        listed = hub_call(f"look at {self.repo!r}", list_files)
        if listed is None:
            return Holdings(visibility=None)
        snapshot = self.snapshot()
        index = snapshot.index if snapshot else Index()
        return Holdings(visibility=listed.visibility, files=listed.files, index=index)

    # --- writing -------------------------------------------------------------------------------

    def commit(
        self,
        upload: Mapping[str, Content],
        update: Callable[[Index], Index],
        message: str,
        *,
        create_pr: bool = False,
        sign: Sign | None = None,
    ) -> str:
        if is_offline():
            raise PublishError(
                f"Cannot publish to {self.url!r} offline. Expected a connection. Publish when there is one."
            )
        hub = _Repository(self, create_pr=create_pr)
        files = {
            path: hub.addition(path, content)
            for path, content in upload.items()
            if isinstance(content, Path)
        }
        hub.repeated(lambda: hub.upload(list(files.values())))
        created, waits = False, pauses(_ATTEMPTS)
        while True:
            head = hub.head()
            before = hub.index_at(head)
            wanted = update(before)
            if created and wanted == before:
                return hub.commit_url(head)  # no answer came, but the commit did
            after, written = changed(self.url, before, wanted, sign)
            small = {**_in_memory(upload, after), **written}
            created = created or bool(written)
            if not files and not small:
                return hub.commit_url(head)
            operations = [*files.values(), *map(hub.addition, small.keys(), small.values())]
            operations += map(hub.deletion, stale_files(before, after))
            try:
                return hub.commit(operations, message, head)
            except RemoteError as error:
                if (pause := pause_after(error, waits)) is None:
                    raise hub.refused(error) from error
            time.sleep(pause)


def _in_memory(upload: Mapping[str, Content], index: Index) -> dict[str, bytes]:
    """Return the files that are bytes, or follow from the index."""
    return {
        path: content(index) if callable(content) else content
        for path, content in upload.items()
        if not isinstance(content, Path)
    }


class _Repository:
    """Requests to the Hub, with its errors in our words."""

    def __init__(self, remote: HubRemote, *, create_pr: bool) -> None:
        from huggingface_hub import HfApi

        self._api = HfApi(library_name="qeff-zoo", token=hub_token())
        self._remote, self._create_pr = remote, create_pr
        self._where: dict[str, Any] = {"repo_id": remote.repo, "revision": remote.revision}

    def addition(self, path: str, content: Path | bytes) -> Any:
        from huggingface_hub import CommitOperationAdd

        return CommitOperationAdd(path, str(content) if isinstance(content, Path) else content)

    def deletion(self, path: str) -> Any:
        from huggingface_hub import CommitOperationDelete

        return CommitOperationDelete(path)

    def upload(self, additions: list[Any]) -> None:
        self._api.preupload_lfs_files(**self._where, additions=additions, create_pr=self._create_pr)
        if ignored := [
            add.path_in_repo for add in additions if getattr(add, "_should_ignore", False)
        ]:
            raise PublishError(
                f"The .gitignore of {self._remote.url!r} leaves out {', '.join(ignored)}. Expected every file to be "
                "kept. Correct it, then publish again."
            )

    def head(self) -> str:
        return str(self.repeated(lambda: self._api.repo_info(**self._where)).sha)

    def index_at(self, commit: str) -> Index:
        """Read the index of a commit, which must not be older than the cached one."""

        def attempt() -> Index:
            url = f"{resolve_url(self._remote.repo, commit)}/{INDEX_NAME}"
            with http.get(url, credentials=credentials) as answer:
                if answer.status == http.NOT_FOUND:
                    return Index()
                content = http.read_all(
                    answer.pieces, INDEX_LIMIT, f"The index of {self._remote.url!r}"
                )
            index, url = FetchedIndex(content, decode(content)), self._remote.url
            trust.check_index(url, content, index.index)
            index_cache.refuse_older(url, index, index_cache.recall(url))
            return self._remote.at(commit, index.index).index

        return retried(attempt)

    def commit_url(self, commit: str) -> str:
        from huggingface_hub import constants

        return f"{constants.ENDPOINT.rstrip('/')}/{self._remote.repo}/commit/{commit}"

    def commit(self, operations: list[Any], message: str, parent: str) -> str:
        """Commit on top of a commit; a retryable error if that is the head no more, or if no answer came."""
        try:
            info = self._api.create_commit(
                **self._where, operations=operations, commit_message=message, parent_commit=parent,
                create_pr=self._create_pr,
            )  # fmt: skip
        except (http_error(), OSError, RuntimeError, ValueError) as error:
            again = status_of(error) in _MOVED or (
                is_passing(error) and not self._may_have_opened(error)
            )
            if again:
                raise _passing(error) from error
            raise self.refused(error) from error
        return str(info.pr_url or info.commit_url)

    def _may_have_opened(self, error: Exception) -> bool:
        """Whether a pull request may exist although its response was lost; a second one would be too many."""
        return self._create_pr and status_of(error) != 429

    def repeated(self, action: Callable[[], Any]) -> Any:
        """Do what can be done twice, until the Hub answers."""

        def attempt() -> Any:
            try:
                return action()
            except (http_error(), OSError, RuntimeError, ValueError) as error:
                if is_passing(error):
                    raise _passing(error) from error
                raise self.refused(error) from error

        try:
            return retried(attempt)
        except RemoteError as error:
            raise self.refused(error) from error

    def refused(self, error: Exception) -> PublishError:
        """Convert a refusal of the Hub to our error."""
        status, url = status_of(error), self._remote.url
        if status in (401, 403):
            advice = "Expected a token that may write there. Run `hf auth login` or set HF_TOKEN, or try --create-pr."
        elif status == 404:
            advice = "Expected a repository that is there. Check its name and branch, or create it."
        elif status in _MOVED:
            advice = "Others committed each time. Expected a quiet moment. Publish again."
        else:
            advice = "Expected the commit to succeed. What was uploaded is kept: publish again to go on from there."
        reason = ". ".join(line.rstrip(".") for line in str(error).splitlines()[:3] if line)
        return PublishError(f"Cannot commit to {url!r}: {reason}. {advice}")


# --- calls of the Hub's API --------------------------------------------------------------------


def hub_call(what: str, call: Callable[[], _Result]) -> _Result:
    """Call the Hub's API until it answers, a limited number of times.

    Args:
        what: Name of the call, for the message: "create 'acme/zoo'".
        call: Call of huggingface_hub; must be safe to repeat.

    Raises:
        RemoteError: The Hub refused it, or was not reached.
    """
    return retried(lambda: _once(what, call))


def _once(what: str, call: Callable[[], _Result]) -> _Result:
    if is_offline():
        raise RemoteError(
            f"Cannot {what}: QEFF_ZOO_OFFLINE or HF_HUB_OFFLINE is set. Expected a connection. Unset it."
        )
    from huggingface_hub import errors

    try:
        return call()
    except (http_error(), errors.HFValidationError, OSError) as error:
        raise _refused(what, error) from error


def status_of(error: BaseException | None) -> int | None:
    """Find the HTTP status behind an error; None if there was no answer."""
    answer = _answer(error)
    return None if answer is None else int(answer.status_code)


def _answer(error: BaseException | None) -> Any:
    """Return the response behind an error, which uploads wrap; None without one."""
    while error is not None:
        answer = getattr(error, "response", None)
        if getattr(answer, "status_code", None) is not None:
            return answer
        error = error.__cause__
    return None


def is_passing(error: Exception) -> bool:
    """Whether a later attempt may succeed."""
    status = status_of(error)
    if status is not None:
        return status in LATER
    return not isinstance(error, ValueError | FileNotFoundError | PermissionError)


def _passing(error: Exception) -> RemoteError:
    return RemoteError(str(error), retryable=True, retry_after=_retry_after(error))


def _retry_after(error: Exception) -> float:
    answer = _answer(error)
    return retry_after(answer.headers) if answer is not None else 0.0


def _refused(what: str, error: Exception) -> RemoteError:
    from huggingface_hub import constants, errors

    status = status_of(error)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    failed = f"Cannot {what} at {constants.ENDPOINT}: {lines[-1]}"
    if isinstance(error, errors.HFValidationError):
        return RemoteError(f"{failed} Expected a repository 'org/name'. Correct it.")
    if status in (401, 403, 404):
        advice = "Expected a token that may write there. Run `hf auth login` or set HF_TOKEN; check the name."
    elif is_passing(error):
        advice = "Expected an answer. Check the connection, then run the command again; what has arrived stays."
    else:
        advice = "Expected the Hub to accept it. Do what it says."
    with_status = "" if status is None else f" (status {status})"
    return RemoteError(
        f"{failed}{with_status}. {advice}",
        retryable=is_passing(error),
        retry_after=_retry_after(error),
    )

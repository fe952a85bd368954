# SPDX-License-Identifier: Apache-2.0
"""Committing to a Hub repository: large files first, then one commit on top of the head whose index was read.

huggingface_hub does not repeat commits. Here they are: a commit with a parent is made once or not at all, and
where no answer came, the index at the head tells which.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.hub_errors import http_error
from qeff_zoo.errors import PublishError, RemoteError
from qeff_zoo.hub import seen, transport
from qeff_zoo.hub.contents import Content
from qeff_zoo.hub.hub_calls import is_passing, status_of
from qeff_zoo.hub.hub_remote import HubRemote, credentials, resolve_url
from qeff_zoo.hub.index import INDEX_LIMIT, INDEX_NAME, Index, decode, encode
from qeff_zoo.hub.retries import pauses, retried
from qeff_zoo.settings import offline

_MOVED = (409, 412)
_ATTEMPTS = 12


def commit_to_hub(
    remote: HubRemote,
    upload: Mapping[str, Content],
    update: Callable[[Index], Index],
    message: str,
    *,
    create_pr: bool,
) -> str:
    """See `qeff_zoo.hub.commits.commit`."""
    if offline():
        raise PublishError(
            f"Cannot publish to {remote.url!r} offline. Expected a connection. Publish when there is one."
        )
    hub = _Repository(remote, create_pr=create_pr)
    files = {
        path: hub.addition(path, content)
        for path, content in upload.items()
        if isinstance(content, Path)
    }
    hub.repeated(lambda: hub.upload(list(files.values())))
    made: Index | None = None
    for pause in (*pauses(_ATTEMPTS), None):
        head = hub.head()
        before = hub.index_at(head)
        after = update(before)
        if made and after == before:
            return hub.commit_url(head)  # no answer came, but the commit did
        if after != before:
            after = made = replace(after, serial=before.serial + 1)
        small = _in_memory(upload, after) | ({INDEX_NAME: encode(after)} if made else {})
        if not files and not small:
            return hub.commit_url(head)
        operations = [*files.values(), *map(hub.addition, small.keys(), small.values())]
        if url := hub.commit(operations, message, head, last=pause is None):
            return url
        time.sleep(pause or 0)
    raise AssertionError("the last attempt returns or raises")


def _in_memory(upload: Mapping[str, Content], index: Index) -> dict[str, bytes]:
    """Return the files that are bytes, or follow from the index."""
    return {
        path: content(index) if callable(content) else content
        for path, content in upload.items()
        if not isinstance(content, Path)
    }


class _Repository:
    """What is asked of the Hub, with its errors in our words."""

    def __init__(self, remote: HubRemote, *, create_pr: bool) -> None:
        from huggingface_hub import HfApi

        self._api = HfApi(library_name="qeff-zoo")
        self._remote, self._create_pr = remote, create_pr
        self._where: dict[str, Any] = {"repo_id": remote.repo, "revision": remote.revision}

    def addition(self, path: str, content: Path | bytes) -> Any:
        from huggingface_hub import CommitOperationAdd

        return CommitOperationAdd(path, str(content) if isinstance(content, Path) else content)

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
        """Read the index of a commit, which must not be older than what was seen."""

        def attempt() -> Index:
            url = f"{resolve_url(self._remote.repo, commit)}/{INDEX_NAME}"
            with transport.get(url, credentials=credentials) as answer:
                if answer.status == transport.NOT_FOUND:
                    return Index()
                content = transport.read_all(
                    answer.pieces, INDEX_LIMIT, f"The index of {self._remote.url!r}"
                )
            index = decode(content)
            seen.refuse_older(self._remote.url, index, seen.recall(self._remote.url))
            return index

        return retried(attempt)

    def commit_url(self, commit: str) -> str:
        from huggingface_hub import constants

        return f"{constants.ENDPOINT.rstrip('/')}/{self._remote.repo}/commit/{commit}"

    def commit(self, operations: list[Any], message: str, parent: str, *, last: bool) -> str | None:
        """Commit on top of a commit; None if that is the head no more, or if no answer came."""
        try:
            info = self._api.create_commit(
                **self._where, operations=operations, commit_message=message, parent_commit=parent,
                create_pr=self._create_pr,
            )  # fmt: skip
        except (http_error(), OSError, RuntimeError, ValueError) as error:
            again = status_of(error) in _MOVED or (
                is_passing(error) and not self._may_have_opened(error)
            )
            if again and not last:
                return None
            raise self._refused(error) from error
        return str(info.pr_url or info.commit_url)

    def _may_have_opened(self, error: Exception) -> bool:
        """Say whether a pull request may be there although no answer came; a second one would be too many."""
        return self._create_pr and status_of(error) != 429

    def repeated(self, action: Callable[[], Any]) -> Any:
        """Do what can be done twice, until the Hub answers."""

        def attempt() -> Any:
            try:
                return action()
            except (http_error(), OSError, RuntimeError, ValueError) as error:
                if is_passing(error):
                    raise RemoteError(str(error), retryable=True) from error
                raise self._refused(error) from error

        try:
            return retried(attempt)
        except RemoteError as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> PublishError:
        status, url = status_of(error), self._remote.url
        if status in (401, 403):
            advice = "Expected a token that may write there. Run `hf auth login` or set HF_TOKEN, or try --create-pr."
        elif status == 404:
            advice = "Expected a repository that is there. Check its name and branch, or create it."
        elif status in _MOVED:
            advice = "Others committed each time. Expected a quiet moment. Publish again."
        else:
            advice = "Expected the commit to succeed. What was uploaded is kept: publish again to go on from there."
        said = ". ".join(line.rstrip(".") for line in str(error).splitlines()[:3] if line)
        return PublishError(f"Cannot commit to {url!r}: {said}. {advice}")

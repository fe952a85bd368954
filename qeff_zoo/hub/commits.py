# SPDX-License-Identifier: Apache-2.0
"""Changing a remote: its files and its index together, even if others do the same at that moment.

In: files, and what to change in the index. Out: where the commit can be seen. The index is read where the commit will
go, changed, and written only if nobody else was faster; else all of that is repeated, `update` included.
"""

from collections.abc import Callable, Mapping

from qeff_zoo.errors import PublishError
from qeff_zoo.hub.contents import Content
from qeff_zoo.hub.folder_remote import FolderRemote
from qeff_zoo.hub.hub_remote import HubRemote
from qeff_zoo.hub.index import Index
from qeff_zoo.hub.remotes import is_read_only, open_remote


def commit(
    remote_url: str,
    *,
    upload: Mapping[str, Content],
    update: Callable[[Index], Index],
    message: str,
    create_pr: bool = False,
) -> str:
    """Publish files and a changed index, in one step.

    Args:
        remote_url: `hf://org/repo[@branch]` or `file:///path`; a repository must be there, a folder is made.
        upload: By path in the remote.
        update: From the index to what it shall be; the same index for no change.
        message: Of the commit, one line.
        create_pr: Of a Hub repository, open a pull request in place of committing.

    Returns:
        The URL of the commit or of the pull request; that of the newest commit if there was nothing to change.

    Raises:
        PublishError: The remote is read-only, refuses, or cannot be reached.
        TrustError: Its index is older than one that was seen before.
    """
    remote = open_remote(remote_url)
    if remote.read_only or is_read_only(remote_url):
        raise PublishError(
            f"Cannot publish to {remote_url!r}: it is read-only. Expected hf://org/repo or file:///path that the "
            "settings do not forbid. Take another remote, or change QEFF_ZOO_STORES or the settings file."
        )
    if isinstance(remote, HubRemote):
        from qeff_zoo.hub.hub_commits import commit_to_hub

        return commit_to_hub(remote, upload, update, message, create_pr=create_pr)
    if isinstance(remote, FolderRemote) and not create_pr:
        from qeff_zoo.hub.folder_commits import commit_to_folder

        return commit_to_folder(remote, upload, update)
    raise PublishError(
        f"{remote_url!r} has no pull requests; expected a Hub repository. Leave out --create-pr."
    )

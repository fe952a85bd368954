# SPDX-License-Identifier: Apache-2.0
"""Files beside a checkpoint, such as an adapter or draft heads: in a folder, or in a repository of the Hub."""

from collections.abc import Callable
from pathlib import Path

from qeff_zoo.checkpoint.files import Files, LocalFiles
from qeff_zoo.checkpoint.hub_snapshot import open_snapshot
from qeff_zoo.disk.user_paths import is_path


def files_beside(
    source: str,
    repository: str,
    revision: str | None,
    wanted: Callable[[str], bool],
    *,
    anonymous: bool = False,
) -> Files | None:
    """Open files beside a checkpoint: a folder or, without one, a repository of the Hub.

    Args:
        source: Source as the user wrote it.
        repository: Hub id of the repository.
        revision: Revision of the repository; None for its default branch.
        wanted: Function that selects the files to fetch now.
        anonymous: Whether requests omit the user's token.

    Returns:
        Its files; None for a source that is neither a folder nor a Hub id.

    Raises:
        CheckpointError: The repository is not available.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        listed = frozenset(path.name for path in folder.iterdir() if path.is_file())
        return LocalFiles(folder, listed)
    if source.count("/") != 1 or is_path(source):
        return None
    return open_snapshot(repository, revision, wanted, need_config=False, anonymous=anonymous)

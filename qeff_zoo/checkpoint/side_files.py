# SPDX-License-Identifier: Apache-2.0
"""What goes with a checkpoint, an adapter or heads that draft: a folder, or a repository of the Hub -> its files."""

from collections.abc import Callable
from pathlib import Path

from qeff_zoo.checkpoint.files import Files, LocalFiles
from qeff_zoo.checkpoint.hub_snapshot import open_snapshot


def files_beside(
    source: str,
    repository: str,
    revision: str | None,
    wanted: Callable[[str], bool],
    *,
    anonymous: bool = False,
) -> Files | None:
    """Open what goes with a checkpoint: a folder or, where there is none, a repository of the Hub.

    Args:
        source: Source as the user wrote it.
        repository: Hub id that this would be.
        revision: Revision of the repository; None for its default branch.
        wanted: Which of its files to fetch now.
        anonymous: Whether requests go without the user's token.

    Returns:
        Its files; None for what is neither a folder nor like a Hub id.

    Raises:
        CheckpointError: The repository cannot be had.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        listed = frozenset(path.name for path in folder.iterdir() if path.is_file())
        return LocalFiles(folder, listed)
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        return None
    return open_snapshot(repository, revision, wanted, need_config=False, anonymous=anonymous)

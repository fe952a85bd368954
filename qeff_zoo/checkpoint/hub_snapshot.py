# SPDX-License-Identifier: Apache-2.0
"""One revision of a Hub repository: its list of files, and the files on demand.

It uses huggingface_hub (imported on use, since it is slow), so HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE have
their usual meaning; QEFF_ZOO_OFFLINE has that of the last. A branch or tag is resolved once, to the commit of all
reads.
"""

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from qeff_zoo.checkpoint.files import MODEL_INDEX, Progress
from qeff_zoo.checkpoint.hub_access import hub_token
from qeff_zoo.checkpoint.hub_errors import http_error, hub_errors, is_absent, is_refusal
from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.errors import CheckpointError, StoreError
from qeff_zoo.settings import offline

#: Seconds before the second and last try to reach the Hub.
_PAUSE = 1.0


@dataclass(frozen=True)
class HubSnapshot:
    """Files of one commit.

    Args:
        model_id: `org/name`.
        revision: Commit, 40 hex digits.
        folder: The commit's folder in the Hub cache.
        names: Names of all files of the commit; offline, of those in the cache.
        online: Whether the Hub responded.
        sizes: Sizes in bytes by file name, from the Hub.
        digests: SHA-256 by file name, from the Hub, for large files.
        token: Token of requests; False for none, None for the user's.
        cache_dir: Folder of the cache; None for the Hub's usual one.
    """

    model_id: str
    revision: str
    folder: Path
    names: frozenset[str]
    online: bool
    sizes: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    token: str | Literal[False] | None = field(default=None, repr=False)
    cache_dir: str | None = None

    def __str__(self) -> str:
        where = "on the Hub" if self.online else "in the offline cache (the Hub was not reached)"
        return f"{self.model_id!r} {where} at revision {self.revision[:12]}"

    def sha256(self, name: str) -> str | None:
        """Return a file's SHA-256 without reading it: the Hub's, or the one in its name in the cache.

        Args:
            name: Path in the repository.
        """
        path = self.folder / name
        if name in self.digests or not path.is_symlink():
            return self.digests.get(name)
        # One step only: the blob may itself be a link, named after another kind of hash.
        blob = path.readlink()
        named_by_sha256 = blob.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", blob.name)
        return blob.name if named_by_sha256 else None

    def fetch(self, names: Sequence[str], progress: Progress | None = None) -> None:
        """Download the files that are not in the cache, and verify them.

        Args:
            names: Paths in the repository.
            progress: Callback for every received piece.

        Raises:
            CheckpointError: The Hub cannot provide a file, or its content differs from the announced one.
            StoreError: The disk is full.
        """
        missing = [name for name in names if not (self.folder / name).exists()]
        if not missing:
            return
        total = self._check_room(missing)
        done = 0

        def count(received: int) -> None:
            nonlocal done
            done += received
            if progress is not None:
                progress(done, total)

        for name in missing:
            self._download(name, count)

    def _check_room(self, names: Sequence[str]) -> int:
        blobs = self.folder.parent.parent / "blobs"
        total = sum(
            self.sizes.get(name, 0)
            for name in names
            if not (blobs / self.digests.get(name, name)).exists()
        )
        free = shutil.disk_usage(self.folder).free
        if total > free:
            raise StoreError(
                f"No room for the weights of {self.model_id!r}: {total:,} bytes to download, "
                f"{free:,} free on the disk of {str(blobs.parent)!r}. Free some space, or point "
                "HF_HOME to a larger disk."
            )
        return total

    def _download(self, name: str, count: Callable[[int], None]) -> None:
        from huggingface_hub import hf_hub_download

        with hub_errors(self.model_id, self.revision):
            path = Path(
                hf_hub_download(
                    self.model_id,
                    name,
                    revision=self.revision,
                    tqdm_class=_bar(count),
                    local_files_only=offline(),
                    token=self.token,
                    cache_dir=self.cache_dir,
                )
            )
        expected = self.digests.get(name)
        if expected and (digest := sha256_file(path)) != expected:  # the client compares sizes
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            raise CheckpointError(
                f"{name!r} of {self.model_id!r} arrived damaged: SHA-256 {digest}, expected "
                f"{expected}. It was removed. Run the command again to download it once more."
            )


def open_snapshot(
    model_id: str,
    revision: str | None,
    wanted: Callable[[str], bool],
    *,
    need_config: bool = True,
    anonymous: bool = False,
    token: str | None = None,
    cache_dir: str | None = None,
) -> HubSnapshot:
    """Pin a revision, list its files, and fetch the selected small ones.

    Args:
        model_id: `org/name`.
        revision: Branch, tag or commit; None for the default branch.
        wanted: Function that selects the files to fetch now.
        need_config: If False, a repository may lack config.json, and only its files are listed.
        anonymous: Whether requests omit the user's token, as on behalf of others.
        token: Token in place of the user's.
        cache_dir: Folder of the cache; None for the Hub's usual one.

    Raises:
        CheckpointError: The repository or revision does not exist, permission is missing, or it is not in the cache
            when offline.
    """
    from huggingface_hub import HfApi, errors, hf_hub_download

    access_token = False if anonymous else hub_token(token)
    with hub_errors(model_id, revision):
        unreached = _unreached(model_id, revision, access_token, cache_dir)
        away = offline() or unreached is not None
        try:
            # Requested by branch, so that the client records the branch's commit for offline use.
            config = hf_hub_download(
                model_id,
                "config.json",
                revision=revision,
                tqdm_class=_bar(),
                local_files_only=away,
                token=access_token,
                cache_dir=cache_dir,
            )
        except errors.RemoteEntryNotFoundError:
            if need_config:
                info = HfApi(token=access_token).model_info(model_id, revision=revision)
                names = frozenset(file.rfilename for file in info.siblings or ())
                if MODEL_INDEX not in names:
                    return HubSnapshot(model_id, info.sha or "", Path(), names, online=True)
            config = _any_file(model_id, revision, access_token, cache_dir, away)
        except errors.LocalEntryNotFoundError as error:
            error.__cause__ = unreached or error.__cause__
            if need_config and not _has_index(model_id, revision, cache_dir):
                raise
            config = _any_file(model_id, revision, access_token, cache_dir, away)
        folder = Path(config).parent
        if away:
            return _cached_snapshot(model_id, folder, wanted, cache_dir)
        try:
            api = HfApi(token=access_token)
            info = api.model_info(model_id, revision=folder.name, files_metadata=True)
        except (http_error(), errors.OfflineModeIsEnabled) as error:
            if is_refusal(error):
                raise
            return _cached_snapshot(model_id, folder, wanted, cache_dir)
        files = info.siblings or []
        snapshot = HubSnapshot(
            model_id,
            folder.name,
            folder,
            frozenset(file.rfilename for file in files),
            online=True,
            sizes={file.rfilename: file.size or 0 for file in files},
            digests={file.rfilename: file.lfs.sha256 for file in files if file.lfs},
            token=access_token,
            cache_dir=cache_dir,
        )
        _fetch_companions(snapshot, wanted)
    return snapshot


def _unreached(
    model_id: str, revision: str | None, token: str | Literal[False] | None, cache_dir: str | None
) -> Exception | None:
    """Return the connection's error if the Hub is needed and does not respond; None if it does, with whatever status.

    The client repeats the first request of an uncached model for half a minute, and for minutes on a dead line. This
    request is repeated once, unless the first one was long.
    """
    from huggingface_hub import constants, errors, get_session, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # not declared

    cached = try_to_load_from_cache(model_id, "config.json", revision=revision, cache_dir=cache_dir)
    if offline() or isinstance(cached, str):  # it may also be known to be missing
        return None
    url, headers = hf_hub_url(model_id, "config.json"), build_hf_headers(token=token)
    timeout = constants.HF_HUB_ETAG_TIMEOUT
    for pause in (_PAUSE, 0.0):
        started = time.monotonic()
        try:
            get_session().head(url, headers=headers, timeout=timeout, follow_redirects=False)
        except errors.OfflineModeIsEnabled as error:
            return error
        except http_error() as error:
            failure = error
        else:
            return None
        if time.monotonic() - started > pause:
            break
        time.sleep(pause)
    return failure


def _has_index(model_id: str, revision: str | None, cache_dir: str | None) -> bool:
    """Return whether the cache has the model_index.json of a pipeline."""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model_id, MODEL_INDEX, revision=revision, cache_dir=cache_dir)
    return isinstance(cached, str)


def _any_file(
    model_id: str,
    revision: str | None,
    token: str | Literal[False] | None,
    cache_dir: str | None,
    away: bool,
) -> str:
    """Return a path in the folder of a revision without config.json, and record its branch's commit."""
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        model_id,
        revision=revision,
        allow_patterns=[".gitattributes", "README.md"],
        local_files_only=away,
        token=token,
        cache_dir=cache_dir,
    )
    Path(folder).mkdir(parents=True, exist_ok=True)
    return str(Path(folder) / "config.json")


def _fetch_companions(snapshot: HubSnapshot, wanted: Callable[[str], bool]) -> None:
    from huggingface_hub import snapshot_download
    from tqdm import tqdm

    class Silent(tqdm):  # type: ignore[type-arg]  # not generic at run time
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    silent: Any = Silent
    names = [name for name in sorted(snapshot.names) if wanted(name)]
    try:
        # From 2.0 this also notes the commit's file list, which `_cached_snapshot` needs.
        snapshot_download(
            snapshot.model_id,
            revision=snapshot.revision,
            allow_patterns=names,
            tqdm_class=silent,
            token=snapshot.token,
            cache_dir=snapshot.cache_dir,
        )
    except http_error() as error:
        if not is_absent(error):
            raise
    snapshot.fetch(names)  # of mirrors that list no trees; the client may ignore their refusal


def _cached_snapshot(
    model_id: str, folder: Path, wanted: Callable[[str], bool], cache_dir: str | None
) -> HubSnapshot:
    here = frozenset(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    missing = sorted(
        name for name in _listed_files(model_id, folder.name, cache_dir) - here if wanted(name)
    )
    if missing:
        raise CheckpointError(
            f"The cache of {model_id!r} lacks {', '.join(missing)}, and the Hub was not reached. "
            "Expected every tokenizer and configuration file. Run the command once with a "
            "connection."
        )
    return HubSnapshot(model_id, folder.name, folder, here, online=False, cache_dir=cache_dir)


def _listed_files(model_id: str, revision: str, cache_dir: str | None) -> frozenset[str]:
    try:
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError
    except ImportError:  # before 2.0 the cache has no file lists
        return frozenset()
    try:
        return frozenset(
            file.path
            for file in get_cached_repo_tree(model_id, revision=revision, cache_dir=cache_dir)
        )
    except CachedRepoTreeNotFoundError:
        return frozenset()


def _bar(count: Callable[[int], None] = lambda _: None) -> Any:
    """Return a class of progress bars for huggingface_hub that only calls `count`."""

    class Bar:
        def __init__(self, *_: Any, total: int | None = None, initial: int = 0, **__: Any) -> None:
            self.n, self.total = 0, total
            self.update(initial)

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

        def update(self, n: float | None = 1) -> None:
            self.n += int(n or 0)
            count(int(n or 0))

        def ignore(self, *_: Any, **__: Any) -> None:
            """Ignore arguments of bars, and counts of network bytes."""

        close = refresh = set_description = set_description_str = ignore
        set_postfix_str = set_transfer_postfix_str = update_transfer = ignore

    return Bar

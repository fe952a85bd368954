# SPDX-License-Identifier: Apache-2.0
"""Publishing: one commit with files, manifest, signature, index and model card.

In: a `Publication`. Out: the URL of the commit.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from qeff_zoo.checkpoint.hub_access import hub_token
from qeff_zoo.errors import PublishError
from qeff_zoo.hub.entries import Notice
from qeff_zoo.hub.index import Index, Sign
from qeff_zoo.hub.publish.card import card_upload
from qeff_zoo.hub.publish.plan import Publication, merged, other_at, refusal
from qeff_zoo.hub.remotes.hub_api import HubRemote, hub_call
from qeff_zoo.hub.remotes.protocol import PRIVATE, Content
from qeff_zoo.terminal.progress import Reporter
from qeff_zoo.terminal.progress_bars import Bars


def publish(
    publication: Publication,
    *,
    reporter: Reporter | None = None,
    sign: Sign | None = None,
    notice: Notice | None = None,
    change: Callable[[Index], Index] | None = None,
) -> str:
    """Do what was planned, in one commit; after a failure or a kill, planning and doing it again goes on from there.

    Args:
        publication: Publication from `plan_publication`.
        reporter: Without one, the client's own progress bars are not shown either.
        sign: Signs the index; needed where it is signed already.
        notice: Notice about the package; None for the remote's current one.
        change: Function of further changes of the index in the same commit.

    Returns:
        The URL of the commit, or of the pull request; that of the remote if it has all of it already.

    Raises:
        PublishError: The remote refused, or was not reached.
    """
    remote, entry = publication.remote, publication.entry
    if isinstance(remote, HubRemote):
        # To a folder it is done, for one that died after its commit.
        if publication.nothing_to_do and notice is None and (publication.signed or sign is None):
            return remote.url
        _prepare(remote, publication)

    def update(index: Index) -> Index:
        if other := other_at(entry, index):
            raise refusal(publication.package.name, remote.url, [other])
        index = index.with_entry(merged(entry, index))
        if change:
            index = change(index)
        if notice is None:
            return index
        known = notice.instead is None or index.has(notice.instead, entry.model)
        # The remote need not have the better package that a notice names.
        notice_there = notice if known else replace(notice, instead=None)
        return index.with_notice(entry.path, notice_there, entry.model)

    upload: dict[str, Content] = {file.path: file.source for file in publication.missing}
    with _bars(shown=isinstance(reporter, Bars)):
        return remote.commit(
            {**upload, **card_upload(remote)},
            update,
            message=f"Add {publication.package.name}: {entry.variant} {entry.key16}",
            create_pr=publication.create_pr,
            sign=sign,
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
    """Create the repository if it is missing, and check that its visibility is at most the planned one."""
    from huggingface_hub import HfApi

    api, private = HfApi(token=hub_token()), publication.visibility == PRIVATE
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

# SPDX-License-Identifier: Apache-2.0
"""The model card that goes with a commit: made from the new index, with what people wrote into the present card.

In: a remote. Out: what `qeff_zoo.hub.commits.commit` is to write.
"""

from collections.abc import Callable, Mapping

from qeff_zoo.hub import transport
from qeff_zoo.hub.card import CARD_NAME, card
from qeff_zoo.hub.folder_remote import FolderRemote
from qeff_zoo.hub.hub_remote import HubRemote, credentials, resolve_url
from qeff_zoo.hub.index import Index
from qeff_zoo.hub.retries import retried

_LIMIT = 1 << 20


def card_upload(remote: HubRemote | FolderRemote) -> Mapping[str, Callable[[Index], bytes]]:
    """Return the card as a commit takes it: how it follows from the index.

    Args:
        remote: Where to; its card is read when the index is known, and a commit in between makes both be made again.
    """
    return {CARD_NAME: lambda index: card(index, remote.url, _present(remote)).encode()}


def _present(remote: HubRemote | FolderRemote) -> str | None:
    if isinstance(remote, HubRemote):
        content = retried(lambda: _fetched(remote))
    else:
        path = remote.folder / CARD_NAME
        content = path.read_bytes() if path.is_file() else None
    return None if content is None else content.decode(errors="replace")


def _fetched(remote: HubRemote) -> bytes | None:
    url = f"{resolve_url(remote.repo, remote.revision or 'main')}/{CARD_NAME}"
    with transport.get(url, credentials=credentials) as answer:
        if answer.status == transport.NOT_FOUND:
            return None
        return transport.read_all(answer.pieces, _LIMIT, f"{CARD_NAME} of {remote.url!r}")

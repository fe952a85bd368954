# SPDX-License-Identifier: Apache-2.0
"""Sessions: `open_session` opens a package; the classes of sessions and their results are names of this module, too.

Each task declares its names in `Task.public`. They are imported on first use, so that text generation does not import
the code for images or speech.
"""

from typing import Any

from qeff_zoo.contract import NAMES, find, lazy
from qeff_zoo.sessions.opening import Opening, Session, open_session

__all__ = ["Opening", "Session", "open_session"]


def __getattr__(name: str) -> Any:
    """Import a name of a task on first use."""
    for task in map(find, NAMES):
        for path in task.public:
            if path.endswith(f":{name}"):
                return lazy(path)()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

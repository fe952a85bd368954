# SPDX-License-Identifier: Apache-2.0
"""Farm in one process: its steps run one after another where the command runs, so that a kill ends all of it.

Input: a folder with checkpoints `tune-*`. Output: a store in its folder `home`, and a remote in its folder `zoo`.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qeff_zoo.farm import running
from qeff_zoo.farm.schedule import Result, Step
from qeff_zoo.farm.tasks import Options, run_step


class LoneExecutor:
    """Machine that runs steps in this process."""

    home = "here"

    def __init__(self) -> None:
        self._options, self._waiting = Options(), deque[Step]()

    def configure(self, options: Options) -> None:
        """Set the options of all steps."""
        self._options = options

    @property
    def room(self) -> int:
        """Number of steps that may be submitted now."""
        return 1 - len(self._waiting)

    def submit(self, step: Step) -> Result | None:
        """Start a step."""
        self._waiting.append(step)
        return None

    def wait(self) -> Sequence[tuple[Step, Result]]:
        """Run a step."""
        step = self._waiting.popleft()
        return [(step, run_step(step, self._options))]


@contextmanager
def _started(*_: Any) -> Iterator[LoneExecutor]:
    yield LoneExecutor()


def begin(place: Path) -> None:
    """Write the zoo file of a folder, and let farms of this process run in it alone."""
    running.started = _started  # type: ignore[assignment]
    text = f'remote = "file://{place}/zoo"\n[[models]]\nmodel = "tune-*"\n'
    (place / "zoo.toml").write_text(text)

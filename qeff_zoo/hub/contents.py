# SPDX-License-Identifier: Apache-2.0
"""What is put into a remote."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from qeff_zoo.hub.index import Index

#: A file, its bytes, or how they follow from the index that is committed with it.
Content: TypeAlias = Path | bytes | Callable[[Index], bytes]

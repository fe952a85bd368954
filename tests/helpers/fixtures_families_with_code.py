# SPDX-License-Identifier: Apache-2.0
"""What several tests of families with code and others use."""

import json
from pathlib import Path
from typing import Any


def rewrite(folder: Path, **changes: Any) -> dict[str, Any]:
    """Change fields of a config.json; those that become None are removed."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    config = {name: value for name, value in config.items() if value is not None}
    path.write_text(json.dumps(config))
    return config

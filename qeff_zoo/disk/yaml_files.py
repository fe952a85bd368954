# SPDX-License-Identifier: Apache-2.0
"""YAML files of users, read without trust: no aliases, a few of which stand for any number of values; few levels."""

from pathlib import Path
from typing import Any

_DEEPEST = 50  # levels: PyYAML reads one in a millisecond, and no file of ours has ten


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Args:
        path: The file, of any kind: a user names it.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not YAML, or has an alias or too many levels; nothing has been constructed then.
    """
    import yaml

    text, depth = path.read_text(encoding="utf-8"), 0
    try:
        for event in yaml.parse(text):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(  # noqa: TRY004 -- an event of a file
                    f"it has the alias {'*' + event.anchor!r} in line {line}; expected values that are written out"
                )
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise ValueError(
                    f"it nests values {depth} deep in line {line}; expected at most {_DEEPEST}"
                )
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error

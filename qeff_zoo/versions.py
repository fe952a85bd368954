# SPDX-License-Identifier: Apache-2.0
"""Versions of what is installed, the same on every machine."""


def installed(name: str) -> str | None:
    """Return the version of an installed Python package without its local part (`+cpu`); None if there is none."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None

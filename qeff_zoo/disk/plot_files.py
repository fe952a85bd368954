# SPDX-License-Identifier: Apache-2.0
"""Check of the image file of a plot."""

from pathlib import Path

from qeff_zoo.errors import GenerationError


def require_drawable(path: Path) -> None:
    """Check that a plot can be drawn, before anything is measured.

    Args:
        path: Path of the image, from --plot.

    Raises:
        ModuleNotFoundError: The extra `plot` is not installed.
        GenerationError: There is no such folder, or no such format.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in known or not path.absolute().parent.is_dir():
        raise GenerationError(
            f"Cannot draw {str(path)!r}; expected a file in a folder that exists, named "
            f"{', '.join('.' + suffix for suffix in sorted(known))}. Change --plot."
        )

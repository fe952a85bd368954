# SPDX-License-Identifier: Apache-2.0
r"""Text files in UTF-8, as editors write them: without their byte order mark, by lines that end with \n or \r\n."""

from pathlib import Path

from qeff_zoo.errors import GenerationError


def read(path: Path) -> str:
    r"""Return the text of a file, without a byte order mark and with \n for \r\n.

    Args:
        path: Path of the file.

    Raises:
        OSError: The file is unreadable.
        UnicodeDecodeError: The file is not UTF-8.
    """
    return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")


def read_text(path: Path) -> str:
    """Return the text of a file that a user names.

    Args:
        path: Path of the file.

    Raises:
        GenerationError: The file is unreadable, or not UTF-8.
    """
    try:
        return read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise GenerationError(
            f"Cannot read {str(path)!r}: {error}. Expected a text file in UTF-8."
        ) from error


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text that have more than spaces.

    Args:
        text: Result of `read`.

    Example:
        >>> lines_of("one\n\ntwo\u2028still two\n")
        ['one', 'two\u2028still two']
    """
    return [line for line in text.split("\n") if line.strip()]

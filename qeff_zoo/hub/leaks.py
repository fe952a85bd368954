# SPDX-License-Identifier: Apache-2.0
"""Secrets that were left in a text: tokens, keys, passwords in URLs.

In: a file. Out: where something looks like one, and like which; never the secret itself.
"""

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

_HEAD = 8192


def _token(prefix: str, rest: str) -> re.Pattern[bytes]:
    r"""Match a token that begins a word. What `\n` of a JSON string ends in is not part of one.

    The prefix comes first, and what precedes it is checked afterwards: that makes the search fast.
    """
    start = rf"{prefix}(?:(?<![A-Za-z0-9_-]{prefix})|(?<=\\[nrt]{prefix}))"
    return re.compile((start + rest).encode())


# Examples in manuals: hf_xxxxxxxx…, AKIA…EXAMPLE.
_MIXED, _NO_EXAMPLE = r"(?!([A-Za-z0-9])\1{7})", "(?![A-Z0-9]*EXAMPLE)"
# A sentence's words have no digits; tokens of this length nearly always do.
_WITH_DIGIT = r"(?=[\w.~+/-]*[0-9])"
_KINDS: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("a Hugging Face token", _token("hf_", _MIXED + "[A-Za-z0-9]{30,}")),
    ("a Hugging Face token", _token("api_org_", "[A-Za-z0-9]{30,}")),
    ("an API key", _token("sk-", _WITH_DIGIT + "[A-Za-z0-9_-]{20,}")),
    ("an AWS access key", _token("AKIA", _NO_EXAMPLE + "[A-Z0-9]{16}(?![A-Za-z0-9])")),
    ("an AWS access key", _token("ASIA", "[A-Z0-9]{16}(?![A-Za-z0-9])")),
    ("a GitHub token", _token("ghp_", "[A-Za-z0-9]{36}")),
    ("a GitHub token", _token("ghs_", "[A-Za-z0-9]{36}")),
    ("a GitHub token", _token("github_pat_", "[A-Za-z0-9_]{22,}")),
    ("a private key", re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----")),
    ("a bearer token", re.compile(rb"[Bb]earer[ \t]+" + _WITH_DIGIT.encode() + rb"[\w.~+/-]{16,}")),
    # Not a place for one, as in https://${USER}:${PASSWORD}@host, nor one that is blacked out.
    (
        "a URL with a password",
        re.compile(rb"://[^\s/:@\"'<>{}$]{0,100}:[^\s/:@\"'<>{}$*]{3,}@[\w\[]"),
    ),
)


def leaks(path: Path) -> Iterator[tuple[int, str]]:
    """Find what looks like a secret in a file, if that is a text.

    Args:
        path: The file; it may be of any size.

    Yields:
        The line, from 1 on, and what it holds: "a Hugging Face token".
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if not head or b"\0" in head:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            found = {
                (text[: match.start()].count(b"\n") + 1, kind)
                for kind, pattern in _KINDS
                for match in pattern.finditer(text)
            }
    yield from sorted(found)

# SPDX-License-Identifier: Apache-2.0
"""What can be chosen about a build for target `qaic`: the flags of its compiler."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class QaicOptions:
    """Fields of `Request` that are for target `qaic`."""

# SPDX-License-Identifier: Apache-2.0
"""Builds that compare nothing, for tests of what is done with a package."""

import pytest

from qeff_zoo import pipeline


def build_unvalidated(patch: pytest.MonkeyPatch) -> None:
    """Let all builds skip validation: other tests do it."""
    build = pipeline.build
    patch.setattr(
        pipeline,
        "build",
        lambda *arguments, **named: build(*arguments, **{**named, "validate": False}),
    )

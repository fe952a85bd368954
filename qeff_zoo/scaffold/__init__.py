# SPDX-License-Identifier: Apache-2.0
"""The first draft of a recipe: `propose` reads a model's configuration, `write` makes the file, `try_out` runs it."""

from qeff_zoo.scaffold.draft import Proposal, propose, write
from qeff_zoo.scaffold.trial import Trial, try_out

__all__ = ["Proposal", "Trial", "propose", "try_out", "write"]

# SPDX-License-Identifier: Apache-2.0
"""The first draft of a recipe: `propose` reads a model's config, `write` writes the file, `try_out` compares it."""

from qeff_zoo.scaffold.draft import Proposal, proposals, propose, write
from qeff_zoo.scaffold.trial import Trial, try_out

__all__ = ["Proposal", "Trial", "proposals", "propose", "try_out", "write"]

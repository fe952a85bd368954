# SPDX-License-Identifier: Apache-2.0
"""The first draft of a recipe: `propose` reads a model's configuration, `write` makes the file."""

from qeff_zoo.scaffold.draft import Proposal, propose, write

__all__ = ["Proposal", "propose", "write"]

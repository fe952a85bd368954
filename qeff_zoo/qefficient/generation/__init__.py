# SPDX-License-Identifier: Apache-2.0
"""QEfficient's `generation`: the session of one compiled program, for loops that users write themselves."""

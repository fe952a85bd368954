# SPDX-License-Identifier: Apache-2.0
"""Audio classification: scores of labels for a whole recording."""

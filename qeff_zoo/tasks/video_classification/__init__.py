# SPDX-License-Identifier: Apache-2.0
"""Video classification: scores of labels for a whole video."""

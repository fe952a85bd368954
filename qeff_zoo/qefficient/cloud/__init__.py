# SPDX-License-Identifier: Apache-2.0
"""QEfficient's command lines: `python -m qeff_zoo.cloud.infer` and its siblings, with its flags and defaults."""

# SPDX-License-Identifier: Apache-2.0
"""Ways to damage a package: its graph, the calls that the runtime makes, and its files."""

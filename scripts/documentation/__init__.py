# SPDX-License-Identifier: Apache-2.0
"""Parts of the documentation that are derived from the source."""

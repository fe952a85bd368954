# SPDX-License-Identifier: Apache-2.0
"""What several tests of serving tools and others use."""

CITY = {"type": "string", "enum": ["Rome", "Oslo"]}

# SPDX-License-Identifier: Apache-2.0
"""Plan of a build: every option of a request, resolved before any expensive step."""

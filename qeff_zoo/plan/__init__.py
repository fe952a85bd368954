# SPDX-License-Identifier: Apache-2.0
"""The plan of a build: every option of a request, resolved before anything expensive."""

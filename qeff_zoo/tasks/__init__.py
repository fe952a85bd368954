# SPDX-License-Identifier: Apache-2.0
"""Tasks: declaration, session, trial, reference, verbs and service of every kind; similar tasks share a folder."""

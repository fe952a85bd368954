# SPDX-License-Identifier: Apache-2.0
"""Queues: shares of clients, limits on waiting requests, threads and worker processes."""

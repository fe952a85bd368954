# SPDX-License-Identifier: Apache-2.0
"""Monitoring: metrics in Prometheus' format, traces, and the usage of each request."""

# SPDX-License-Identifier: Apache-2.0
"""The engine: requests of many clients, scheduled on one decoder, with their answers."""

# SPDX-License-Identifier: Apache-2.0
"""Draft heads as torch modules, for the exporter."""

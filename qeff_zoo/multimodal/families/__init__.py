# SPDX-License-Identifier: Apache-2.0
"""Families of image and audio encoders, one class a module; a manifest records the module's name."""

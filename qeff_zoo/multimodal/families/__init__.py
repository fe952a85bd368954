# SPDX-License-Identifier: Apache-2.0
"""Image encoders, one module each: a module has one class, and a package's manifest records the module's name."""

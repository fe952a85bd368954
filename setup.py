# SPDX-License-Identifier: Apache-2.0
"""Packages of the distribution; everything else is in pyproject.toml, which cannot join found and named packages."""

from setuptools import find_packages, setup

#: Folders beside `qeff_zoo` that are installed inside it, see `package-dir` in pyproject.toml.
_BESIDE = ["qeff_zoo.recipes", "qeff_zoo.validated_models"]

setup(packages=[*find_packages(include=["qeff_zoo", "qeff_zoo.*"]), *_BESIDE])

# SPDX-License-Identifier: Apache-2.0
"""Image processors of single families of models, a module each; rules that families share are in `qeff_zoo.media`."""

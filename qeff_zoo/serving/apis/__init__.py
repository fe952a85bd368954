# SPDX-License-Identifier: Apache-2.0
"""APIs: the endpoints of each in a folder or module, with what is its own of bodies and answers."""

# SPDX-License-Identifier: Apache-2.0
"""What must hold on a disk: digests, folders that appear whole or not at all, and which owners are alive."""

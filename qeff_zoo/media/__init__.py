# SPDX-License-Identifier: Apache-2.0
"""What a request brings besides text, made into arrays without torch: pictures and sound."""

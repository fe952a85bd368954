# SPDX-License-Identifier: Apache-2.0
"""Speech transcription tasks: by a label for each audio frame (CTC), or token by token."""

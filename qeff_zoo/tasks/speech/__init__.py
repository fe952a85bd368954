# SPDX-License-Identifier: Apache-2.0
"""Tasks that transcribe speech: by a label for each audio frame (CTC), or token by token."""

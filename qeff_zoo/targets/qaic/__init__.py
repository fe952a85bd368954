# SPDX-License-Identifier: Apache-2.0
"""Target `qaic`: Cloud AI 100. So far, how vllm-qaic serves a package that was compiled for it."""

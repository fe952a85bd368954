# SPDX-License-Identifier: Apache-2.0
"""Video diffusion: videos from prompts, by pipelines as those of images."""

# SPDX-License-Identifier: Apache-2.0
"""Diffusion: images from prompts, by a pipeline of text encoders, a denoiser, and a VAE."""

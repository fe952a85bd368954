# SPDX-License-Identifier: Apache-2.0
"""Schedulers of diffusion pipelines: times of the denoiser's calls, and a step from one to the next; numpy alone."""

from qeff_zoo.tasks.diffusion.schedulers.opening import open_scheduler
from qeff_zoo.tasks.diffusion.schedulers.scheduler import FloatArray, Noise, Scheduler

__all__ = ["FloatArray", "Noise", "Scheduler", "open_scheduler"]

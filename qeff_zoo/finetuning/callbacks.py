# SPDX-License-Identifier: Apache-2.0
"""What is done at each step beside training: the log, progress, and stopping."""

import math
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from qeff_zoo.errors import TrainingError
from qeff_zoo.finetuning.run_folder import RunFolder, perplexity
from qeff_zoo.terminal.progress import Reporter

#: What another machine, or a resumed run, would log otherwise.
_NOT_LOGGED = ("_runtime", "_per_second", "num_tokens", "total_flos", "train_loss")


class Log(TrainerCallback):
    """Writes what is logged into the run's folder, and shows how far the run is.

    Args:
        folder: Folder of the run.
        reporter: Shows progress.
    """

    def __init__(self, folder: RunFolder, reporter: Reporter) -> None:
        self._folder, self._reporter = folder, reporter
        self._shown = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Begin the bar where the run goes on."""
        if state.is_world_process_zero:
            self._reporter.begin("training", state.max_steps, "step")
            self._show(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Move the bar."""
        if state.is_world_process_zero:
            self._show(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Close the bar."""
        if state.is_world_process_zero:
            self._reporter.end()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Append to the log.

        Raises:
            TrainingError: The loss is no number any more.
        """
        entry = {
            name: value for name, value in (logs or {}).items() if not name.endswith(_NOT_LOGGED)
        }
        if "loss" in entry:
            entry["perplexity"] = perplexity(entry["loss"])
        if not {"loss", "eval_loss"} & {*entry}:
            return  # the end of training, whose figures are those of this process
        if state.is_world_process_zero:
            self._folder.record({"step": state.global_step, **entry})
        loss = entry.get("loss", entry.get("eval_loss"))
        if loss is not None and not math.isfinite(loss):
            whole = self._folder.checkpoints()
            left = (
                f"the last checkpoint is {whole[-1].name!r}" if whole else "there is no checkpoint"
            )
            raise TrainingError(
                f"The loss of step {state.global_step} is {loss}. Expected a number; {left}. Lower --learning-rate, or "
                "train in more bits with --autocast."
            )

    def _show(self, step: int) -> None:
        self._reporter.advance(step - self._shown)
        self._shown = step


class Converged(TrainerCallback):
    """Stops a run whose logged loss has been small often enough.

    Args:
        loss: Loss that counts as small, in nats.
        times: Number of consecutive times.
    """

    def __init__(self, loss: float, times: int) -> None:
        self._loss, self._times = loss, times

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Look at the last losses, which a checkpoint keeps."""
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry][-self._times :]
        if len(losses) == self._times and max(losses) <= self._loss:
            control.should_training_stop = True

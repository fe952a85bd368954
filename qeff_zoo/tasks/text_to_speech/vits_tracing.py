# SPDX-License-Identifier: Apache-2.0
"""Both programs of VITS models, for tracing: `encoder` reads a text, `audio` makes samples of frames.

Between them, the host repeats the priors of each token for its duration, and draws frames from them.

encoder  IN   input_ids (batch_size, seq_len) i64         0 for padding
              attention_mask (batch_size, seq_len) i64    1 for a token
              [noise (batch_size, seq_len, 2) f32         scaled normal noise, if durations are drawn]
              [speaker_id (batch_size, 1) i64             for models with several speakers]
         OUT  log_durations (batch_size, seq_len)         natural logarithm of the frames of each token
              prior_means (batch_size, seq_len, width)    means of a token's frames
              prior_log_variances (batch_size, seq_len, width)    logarithms of their standard deviations
audio    IN   latents (batch_size, seq_len, width) f32    frames, zeros for padding
              attention_mask (batch_size, seq_len) i64    1 for a frame
              [speaker_id (batch_size, 1) i64]
         OUT  waveform (batch_size, samples)              as many samples for each frame
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.export.uncomputed import uncomputed
from qeff_zoo.tasks.text_to_speech.vocoder_tracing import vocode

_BATCH, _SEQ, _FRAMES = 2, 24, 16  # example sizes


class EncodeText(nn.Module):
    """One call of the text encoder and the duration predictor.

    Args:
        model: Hugging Face model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        noise: Tensor | None = None,
        speaker_id: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logarithms of durations, and means and logarithms of deviations of the priors."""
        mask = attention_mask.to(torch.float32)[..., None]
        encoded = self.model.text_encoder(
            input_ids=input_ids,
            padding_mask=mask,
            attention_mask=attention_mask,
            return_dict=True,
        )
        states, mask = encoded.last_hidden_state.transpose(1, 2), mask.transpose(1, 2)
        speaker, predictor = speaker_of(self.model, speaker_id), self.model.duration_predictor
        if noise is None:
            durations = predictor(states, mask, speaker)
        else:
            durations = _drawn(predictor, states, mask, speaker, noise.transpose(1, 2))
        return durations[:, 0], encoded.prior_means, encoded.prior_log_variances


def _drawn(
    predictor: Any, states: Tensor, mask: Tensor, speaker: Tensor | None, noise: Tensor
) -> Tensor:
    """Return the logarithms of durations that a stochastic predictor makes of noise, which its own forward draws.

    Args:
        predictor: Module with `flows`, of which the second is not used, as in transformers.
        states: States of the text, (batch, channels, seq).
        mask: (batch, 1, seq).
        speaker: Speaker embeddings; None without.
        noise: (batch, 2, seq).
    """
    states = predictor.conv_pre(states)
    if speaker is not None:
        states = states + predictor.cond(speaker)
    states = predictor.conv_proj(predictor.conv_dds(states, mask)) * mask
    first, _, *others = predictor.flows
    for flow in (*reversed(others), first):
        swapped = torch.cat([noise[:, 1:], noise[:, :1]], 1)
        noise, _ = flow(swapped, mask, global_conditioning=states, reverse=True)
    return noise[:, :1]


class MakeSamples(nn.Module):
    """One call of the flow and the vocoder.

    Args:
        model: Hugging Face model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, latents: Tensor, attention_mask: Tensor, speaker_id: Tensor | None = None
    ) -> Tensor:
        """Return samples."""
        mask = attention_mask.to(latents.dtype)[:, None]
        speaker = speaker_of(self.model, speaker_id)
        frames = self.model.flow(latents.transpose(1, 2), mask, speaker, reverse=True) * mask
        return vocode(self.model.decoder, frames, mask, speaker)


def speaker_of(model: Any, speaker_id: Tensor | None) -> Tensor | None:
    """Return speaker embeddings, (batch, channels, 1); None for a model of one speaker.

    Args:
        model: Hugging Face model.
        speaker_id: (batch, 1); None for a model of one speaker.
    """
    if speaker_id is None:
        return None
    embedding: Tensor = model.embed_speaker(speaker_id).transpose(1, 2)
    return embedding


def _example(model: Any, width: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs that both programs have, and the axes of all inputs."""
    several = model.config.num_speakers > 1
    speakers = {"speaker_id": torch.zeros(_BATCH, 1, dtype=torch.long)} if several else {}
    # Shorter texts are padded: relative positions of fewer tokens have a branch of their own.
    batch, seq = Dim("batch_size", min=2), Dim("seq_len", min=model.config.window_size + 2)
    mask = torch.ones(_BATCH, width, dtype=torch.long)
    return {"attention_mask": mask, **speakers}, {"speaker_id": {0: batch}, "": {0: batch, 1: seq}}


def encoder_tracing(model: Any) -> Tracing:
    """Describe how to trace the text encoder and the duration predictor.

    Args:
        model: Model from `loader.load_meta`.
    """
    more, axes = _example(model, _SEQ)
    inputs = {"input_ids": torch.ones(_BATCH, _SEQ, dtype=torch.long), **more}
    if model.config.use_stochastic_duration_prediction:
        inputs["noise"] = torch.zeros(_BATCH, _SEQ, 2)
    return Tracing(
        module=EncodeText(model).eval(),
        inputs=inputs,
        dynamic_shapes={name: axes.get(name, axes[""]) for name in inputs},
        input_names=[*inputs],
        output_names=["log_durations", "prior_means", "prior_log_variances"],
    )


def audio_tracing(model: Any) -> Tracing:
    """Describe how to trace the flow and the vocoder.

    Args:
        model: Model from `loader.load_meta`.
    """
    more, axes = _example(model, _FRAMES)
    inputs = {"latents": torch.zeros(_BATCH, _FRAMES, model.config.flow_size), **more}
    return Tracing(
        module=MakeSamples(model).eval(),
        inputs=inputs,
        dynamic_shapes={name: axes.get(name, axes[""]) for name in inputs},
        input_names=[*inputs],
        output_names=["waveform"],
        then=_name_samples,
    )


def _name_samples(graph: Any) -> None:
    """Name the number of samples, in place of its expression in the trace."""
    (output,) = graph.graph.outputs
    output.shape = type(output.shape)(["batch_size", "samples"])


def run_once(model: Any) -> None:
    """Run the text encoder without any computation."""
    with uncomputed():
        tracing = encoder_tracing(model)
        tracing.module(**tracing.inputs)

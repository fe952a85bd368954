# SPDX-License-Identifier: Apache-2.0
"""diffusers' own pipelines: images of prompts, and outputs of single components for the inputs that a package had.

Only the reference process imports this.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify, unpatchify
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from qeff_zoo.validation.reference.pipelines import embeds_of, with_image
from qeff_zoo.validation.reference.runs import Answers, tick
from qeff_zoo.validation.trial.faults import Fault
from qeff_zoo.validation.trial.points import evenly_spaced

Array = np.ndarray[Any, np.dtype[Any]]

_COUNT = 1 << 14  # compared values of a row
_TIMESTEPS = 1000
_DENOISERS = ("unet", "transformer", "transformer_2")


class PipelineReference(Answers):
    """Last latents and pixels of images, or outputs of a component; (outputs, values).

    Args:
        model: Loaded pipeline, see `qeff_zoo.validation.reference.pipelines`.
        request: Request with `sequences`: each the characters of a case in JSON.
        arrays: Arrays `audio.number`: inputs of components.
    """

    def __init__(self, model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        super().__init__(request["sequences"], *model.halves)
        self._model, self._stages = model, request["stages"]
        self._cases = [json.loads("".join(map(chr, one))) for one in request["sequences"]]
        self._arrays = [array for name, array in arrays.items() if name.startswith("audio.")]

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        found = []
        for number in numbers:
            case = self._cases[number]
            outputs = self._call(case) if "role" in case else self._draw(case)
            found.append(np.stack([_row_of(one) for one in outputs]))
            tick()
        return found

    def faulty(self, fault: Fault) -> dict[int, Array]:
        """Run the images of a stage with its fault."""
        numbers = sorted({number for number, _ in self._stages[fault.stage]})
        found = {}
        for number in numbers:
            case = dict(self._cases[number])
            if fault.kind == "guidance":
                true = case["true_cfg_scale"] > 1
                case["true_cfg_scale" if true else "guidance_scale"] = 1.0
            if fault.kind == "strength":
                case["strength"] += 1 / case["steps"]
            if fault.kind == "prompts":
                case["prompt"], case["negative_prompt"] = case["negative_prompt"], case["prompt"]
            if fault.kind == "second_guidance":
                case["guidance_scale_2"] = None
            with ExitStack() as stack:
                if fault.kind == "features":
                    stack.enter_context(self._forgetful())
                if fault.kind == "boundary":
                    stack.enter_context(self._changed(self._model.pipeline, boundary_ratio=2.0))
                if fault.kind == "timestep":
                    stack.enter_context(self._later())
                if fault.kind == "scale":
                    stack.enter_context(self._unscaled())
                drawn = self._draw(case, inverted=fault.kind in ("mask", "image"))
                found[number] = np.stack([_row_of(one) for one in drawn])
        return found

    @contextmanager
    def _later(self) -> Iterator[None]:
        """Let the models that remove noise get timesteps that are one too high."""
        parts = [getattr(self._model, name, None) for name in _DENOISERS]
        with ExitStack() as stack:
            for part in filter(None, parts):
                stack.enter_context(_wrapped(part, _one_later))
            yield

    @contextmanager
    def _forgetful(self) -> Iterator[None]:
        """Let the decoder of the VAE decode frames without features of those before."""

        def decode(forward: Any, *args: Any, **kwargs: Any) -> Any:
            features = kwargs["feat_cache"]
            features[:] = [
                torch.zeros_like(one) if isinstance(one, Tensor) else one for one in features
            ]
            return forward(*args, **kwargs)

        with _wrapped(self._model.vae.decoder, decode):
            yield

    @contextmanager
    def _unscaled(self) -> Iterator[None]:
        """Let the VAE read latents without their scale."""
        vae = self._model.vae
        if "latents_std" in vae.config and "scaling_factor" not in vae.config:
            scale: Any = {"latents_std": [1.0] * len(vae.config.latents_std)}
        else:
            scale = {"scaling_factor": 1.0}
        with self._changed(vae, **scale):
            yield

    @contextmanager
    def _changed(self, part: Any, **settings: Any) -> Iterator[None]:
        """Change settings of a configuration."""
        before = {name: part.config[name] for name in settings}
        part.register_to_config(**settings)
        try:
            yield
        finally:
            part.register_to_config(**before)

    def _draw(self, case: Mapping[str, Any], *, inverted: bool = False) -> list[Tensor]:
        """Return the last latents and the pixels of an image or a video, from 0 to 1.

        Args:
            case: Prompt and options.
            inverted: Whether its mask, or the first image of a video, is inverted.
        """
        last: list[Tensor] = []

        def note(_: Any, step: int, time: Any, values: dict[str, Tensor]) -> dict[str, Tensor]:
            last[:] = [values["latents"]]
            return values

        names = ["prompt", "negative_prompt", "guidance_scale", "height", "width"]
        if case["true_cfg_scale"] > 1:
            names.append("true_cfg_scale")
        further = {}
        if "frames" in case:
            names.append("guidance_scale_2")
            further["num_frames"] = case["frames"]
        pipeline, initial = self._model.pipeline, {}
        if "pixels" in case and "frames" in case:
            pixels = self._arrays[case["pixels"]]
            initial = {"image": Image.fromarray(255 - pixels if inverted else pixels)}
            initial |= embeds_of(pipeline, case["prompt"], case["negative_prompt"])
            names = [name for name in names if "prompt" not in name]
        elif "pixels" in case:
            pipeline = with_image(pipeline, masked="mask" in case)
            initial = self._initial(case, pipeline, inverted=inverted)
            known = inspect.signature(type(pipeline).__call__).parameters
            names = [name for name in names if name in known]  # some take the size of the image
        with NoiseInFloat32():
            results, *_ = pipeline(
                **{name: case[name] for name in names},
                **further,
                **initial,
                num_inference_steps=case["steps"],
                generator=torch.Generator().manual_seed(case["seed"]),
                output_type="pt",
                callback_on_step_end=note,
                return_dict=False,
            )
        return [last[0], results[0]]

    def _initial(self, case: Mapping[str, Any], pipeline: Any, *, inverted: bool) -> dict[str, Any]:
        """Return the arguments of a pipeline that begins with an image."""
        image = Image.fromarray(self._arrays[case["pixels"]])
        if "mask" not in case:
            image = pipeline.image_processor.resize(image, case["height"], case["width"])
            return {"image": image, "strength": case["strength"]}
        mask = self._arrays[case["mask"]]
        mask_image = Image.fromarray(255 - mask if inverted else mask)
        if case["mask_blur"]:
            mask_image = pipeline.mask_processor.blur(mask_image, case["mask_blur"])
        return {"image": image, "mask_image": mask_image, "strength": case["strength"]}

    def _call(self, case: Mapping[str, Any]) -> list[Tensor]:
        """Return the outputs of a component for the inputs of a call."""
        component = "vae" if case["role"].startswith("vae_") else case["role"]
        module = getattr(self._model, component)
        dtype = next(module.parameters()).dtype
        inputs: dict[str, Any] = {}
        for name, number in case["inputs"].items():
            value = torch.from_numpy(self._arrays[number].copy())
            inputs[name] = value.to(dtype) if value.is_floating_point() else value
        if "present_features_0" in case["outputs"]:
            frames = _frames_of(module, inputs)
            return [
                _with_zeros(frames[name], count) if name.startswith("present") else frames[name]
                for name, count in case["outputs"].items()
            ]
        if case["role"] == "image_encoder":
            return [module(inputs["pixel_values"], output_hidden_states=True).hidden_states[-2]]
        if case["role"] == "vae_decoder":
            return [module.decode(inputs["latent_sample"]).sample]
        if case["role"] == "vae_encoder":
            found = module.encode(inputs["pixel_values"]).latent_dist
            return [found.mean, found.std]
        if component.startswith("text_encoder"):
            found = module(inputs["input_ids"], output_hidden_states=True)
            more = {"penultimate_state": found.hidden_states[-2]}
            return [more[name] if name in more else found[name] for name in case["outputs"]]
        added = {name: inputs.pop(name) for name in ("text_embeds", "time_ids") if name in inputs}
        if added:
            inputs["added_cond_kwargs"] = added
        return [module(**inputs).sample]


@contextmanager
def _wrapped(module: Any, around: Callable[..., Any]) -> Iterator[None]:
    """Let a function of the forward of a module, and its arguments, run in place of it."""
    module.forward = partial(around, module.forward)
    try:
        yield
    finally:
        del module.forward


def _one_later(forward: Any, *args: Any, **kwargs: Any) -> Any:
    if "timestep" in kwargs:  # of transformers, some from 0 to 1
        time = kwargs["timestep"]
        kwargs["timestep"] = time + (1 if time.max() > 1 else 1 / _TIMESTEPS)
    else:
        args = (args[0], args[1] + 1, *args[2:])
    return forward(*args, **kwargs)


def _frames_of(vae: Any, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs of the VAE for the frames of one latent, as `vae.decode` and `vae.encode` compute them."""
    part = "decoder" if "latent_sample" in inputs else "encoder"
    features: list[Any] = [
        inputs.get(f"past_features_{number}") for number in range(vae._cached_conv_counts[part])
    ]
    first, size = features[0] is None, vae.config.patch_size
    if part == "decoder":
        latents = vae.post_quant_conv(inputs["latent_sample"])
        frames = vae.decoder(latents, feat_cache=features, feat_idx=[0], first_chunk=first)
        found = {"sample": (frames if size is None else unpatchify(frames, size)).clamp(-1, 1)}
    else:
        pixels = inputs["pixel_values"]
        pixels = pixels if size is None else patchify(pixels, size)
        encoded = vae.encoder(pixels, feat_cache=features, feat_idx=[0])
        found = {"mean": vae.quant_conv(encoded).chunk(2, dim=1)[0]}
    present: list[Tensor] = []
    for one in filter(lambda one: one is not None, features):
        present.append(one if isinstance(one, Tensor) else torch.zeros_like(present[-1]))
    return found | {f"present_features_{number}": one for number, one in enumerate(present)}


def _with_zeros(values: Tensor, like: int) -> Tensor:
    """Return features of the first frame with those of frames of zeros before it, as convolutions pad them."""
    return pad(values, (0, 0, 0, 0, like - values.shape[2], 0))


def _row_of(values: Tensor) -> Array:
    """Return the values at as many evenly spaced points as a trial compares."""
    flat = values.detach().flatten()
    row: Array = flat[evenly_spaced(flat.numel(), _COUNT)].float().numpy()
    return row


class NoiseInFloat32(TorchFunctionMode):
    """Draws noise in float32 also for a model in float64: the numbers of a generator depend on the type."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch."""
        kwargs = kwargs or {}
        wide = kwargs.get("dtype")
        if func is not torch.randn or wide is not torch.float64:
            return func(*args, **kwargs)
        return func(*args, **{**kwargs, "dtype": torch.float32}).to(wide)

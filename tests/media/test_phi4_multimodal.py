# SPDX-License-Identifier: Apache-2.0
"""One checkpoint, three tasks: Phi-4 multimodal reads tiles of padded images, or recordings, with an adapter for each.

Where a prompt has both, the adapter is that for pictures, and sounds are projected otherwise.
"""

import importlib
import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fixtures_audio_text import RATE, recorded, recording
from peft import LoraConfig
from PIL import Image
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from torch.nn import functional as F  # noqa: N812
from transformers import Phi4MultimodalConfig, Phi4MultimodalForCausalLM, PreTrainedTokenizerFast
from transformers.image_processing_backends import TorchvisionBackend
from transformers.models.phi4_multimodal.feature_extraction_phi4_multimodal import (
    Phi4MultimodalFeatureExtractor,
)
from transformers.models.phi4_multimodal.processing_phi4_multimodal import Phi4MultimodalProcessor

import qeff_zoo
from qeff_zoo import pipeline
from qeff_zoo.cli import main
from qeff_zoo.errors import GenerationError, MediaError, PlanError
from qeff_zoo.media.features import find
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.media.interpolation import resize_bytes, resize_numbers
from qeff_zoo.plan.request import Request
from qeff_zoo.qefficient.processor_outputs import images_of
from qeff_zoo.registry import find_recipe
from qeff_zoo.store import Store

pytestmark = pytest.mark.together("pictures_and_sounds")

SMALL = {"size": {"height": 28, "width": 28}, "patch_size": 7, "dynamic_hd": 4}
LARGE = {"size": {"height": 448, "width": 448}, "patch_size": 14, "dynamic_hd": 36}


def resized(image: torch.Tensor, size: Any, mode: str = "bilinear", antialias: bool = True) -> Any:
    """Resize as torchvision does, which asks PyTorch to."""
    if list(image.shape[-2:]) == [*size]:
        return image
    settings = {"size": [*size], "mode": mode, "align_corners": False, "antialias": antialias}
    return F.interpolate(image[None], **settings)[0]  # type: ignore[arg-type]


def reference_output(pixels: Any, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Prepare an image by transformers' own code; torchvision is not installed, and three calls are spelled out."""
    functional: Any = ModuleType("torchvision.transforms.v2.functional")
    functional.resize = resized
    functional.pad = lambda image, sides, fill: F.pad(
        image, (sides[0], sides[2], sides[1], sides[3]), value=fill[0]
    )
    path = "torchvision.transforms.v2"
    for name in (path.rsplit(".", count)[0] for count in range(3)):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[path].functional = functional  # type: ignore[attr-defined]
    name = "transformers.models.phi4_multimodal.image_processing_phi4_multimodal"
    monkeypatch.delitem(sys.modules, name, raising=False)
    kind = importlib.import_module(name).Phi4MultimodalImageProcessor

    class Processor(kind):  # type: ignore[misc,valid-type]
        def __init__(self) -> None: ...

        def resize(self, image: Any, size: Any, resample: int, antialias: bool) -> Any:
            assert resample == Image.Resampling.BICUBIC
            return resized(image, (size.height, size.width), "bicubic", antialias)

        def normalize(self, image: Any, mean: Any, std: Any, inplace: bool) -> Any:
            return (image - mean[:, None, None]) / std[:, None, None]

    assert issubclass(kind, TorchvisionBackend)
    side = settings["size"]["height"]
    return Processor()._preprocess(
        [torch.from_numpy(pixels).permute(2, 0, 1).contiguous()],
        *(True, SimpleNamespace(height=side, width=side), 3, True, 1 / 255, True),
        *((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), settings["patch_size"], settings["dynamic_hd"], "pt"),
    )


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        *(((*size,), SMALL) for size in ((24, 40), (97, 31), (30, 30), (28, 56), (300, 100))),
        ((480, 640), LARGE),
    ],
)
def test_images_are_processed_as_by_transformers(
    size: tuple[int, int], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, but for the whole image, whose interpolation in float32 depends on the processor that computes."""
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    right = reference_output(pixels, settings, monkeypatch)
    kind = "Phi4MultimodalImageProcessorFast"
    made = image_processor({"image_processor_type": kind, **settings})([pixels])
    for name, array in made.items():
        expected = right[name].numpy()
        if name == "image_pixel_values":
            np.testing.assert_allclose(array[:, 0], expected[:, 0], atol=1e-6, rtol=0)
            array, expected = array[:, 1:], expected[:, 1:]
        np.testing.assert_array_equal(array, expected, err_msg=name)


@pytest.mark.parametrize("new", [(28, 70), (97, 50), (200, 31), (448, 300)])
def test_bytes_are_resized_as_pytorch_does(new: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (97, 70, 3), np.uint8)
    right = resized(torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), new)
    np.testing.assert_array_equal(resize_bytes(pixels, *new), right.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("new", [(28, 70), (97, 50), (200, 31)])
def test_numbers_are_interpolated_as_pytorch_does(new: tuple[int, int]) -> None:
    numbers = np.random.default_rng(0).standard_normal((3, 97, 70), np.float32)
    right = resized(torch.from_numpy(numbers), new, "bicubic", antialias=False).numpy()
    np.testing.assert_allclose(resize_numbers(numbers, *new), right, atol=3e-6, rtol=0)


def test_narrow_images_are_refused() -> None:
    process = image_processor({"image_processor_type": "Phi4MultimodalImageProcessor", **SMALL})
    with pytest.raises(MediaError, match="would become one of 112 x 3"):
        process([np.zeros((10, 300, 3), np.uint8)])


@dataclass(frozen=True)
class Saved:
    """A tiny Phi-4 multimodal, as transformers converts it: adapters in folders, tiles of the usual size."""

    folder: Path
    model: Any
    store: Store

    def package(self, task: str, adapter: str) -> Path:
        """Build for a task, with an adapter."""
        package = self.folder.parent / f"{task}-{adapter}"
        request = Request(task=task, adapter=(str(self.folder / adapter),), ctx_len=608)
        pipeline.build(str(self.folder), request, validate=False, output=package, store=self.store)
        return package

    def answer(self, adapter: str, text: str, **shown: Any) -> list[int]:
        """Answer by transformers' model and `generate`."""
        self.model.set_adapter(adapter)
        ids = torch.tensor([[int(word[1:]) for word in text.split()]])
        settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
        found = self.model.generate(input_ids=ids, **shown, **settings)[0, ids.shape[1] :]
        return found.tolist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    top = tmp_path_factory.mktemp("phi")
    folder, settings = top / "tiny-phi", dict(find_recipe("phi4_multimodal").tiny[0].config)
    settings["vision_config"] = settings["vision_config"] | {
        "image_size": 448,
        "crop_size": 448,
        "patch_size": 14,
    }
    settings["vision_config"]["num_hidden_layers"] = settings["num_hidden_layers"] = 2
    settings["audio_config"] = settings["audio_config"] | {"input_size": 80, "num_blocks": 1}
    config = Phi4MultimodalConfig(
        **{**settings, "max_position_embeddings": 1024, "sliding_window": None}
    )
    torch.manual_seed(0)
    model = Phi4MultimodalForCausalLM._from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.dim() == 1 or not parameter.any():
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    kinds = {"image_processor_type": "Phi4MultimodalImageProcessorFast"}
    (folder / "preprocessor_config.json").write_text(json.dumps({**kinds, **LARGE}))
    audio_settings = {"feature_extractor_type": "Phi4MultimodalFeatureExtractor"}
    (folder / "processor_config.json").write_text(json.dumps({"audio_processor": audio_settings}))
    words = {f"w{number}": number for number in range(257)}
    words |= {"<|image|>": words.pop("w200"), "<|audio|>": words.pop("w201")}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        additional_special_tokens=["<|image|>", "<|audio|>"],
        chat_template="{% for one in messages[0].content %}"
        "{{ one if one is string else one.text if one.type == 'text' else '<|' + one.type + '|>' }}{% endfor %}",
    ).save_pretrained(folder)
    changed = LoraConfig(r=3, lora_alpha=8, target_modules=["qkv_proj", "down_proj"])
    for adapter in ("vision-lora", "speech-lora"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a second one
            model.add_adapter(changed, adapter)
        model.set_adapter(adapter)
        for name, parameter in model.named_parameters():
            if f"lora_B.{adapter}" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(str(folder / adapter))
        inner = folder / adapter / adapter  # where peft has put it by its name
        for path in inner.iterdir() if inner.is_dir() else ():
            path.rename(folder / adapter / path.name)
    return Saved(folder, model, Store(top / "store"))


@pytest.mark.full
def test_a_vision_package_equals_generate(
    tiny: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        PlanError, match=r"expected it to be merged. Give --adapter .*/vision-lora:"
    ):
        pipeline.build(str(tiny.folder), store=tiny.store)
    package = tiny.package("image-text-to-text", "vision-lora")
    pixels = np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    shown = dict(reference_output(pixels, LARGE, monkeypatch))
    count = {"num_img_tokens": shown.pop("num_img_tokens")}
    token = SimpleNamespace(image_token="w200 ")
    text = Phi4MultimodalProcessor.replace_image_token(token, count, 0) + "w3 w4"
    right = tiny.answer("vision-lora", text, **shown)
    assert right != tiny.answer("speech-lora", text, **shown)
    command = ["run", str(package), "--prompt", " w3 w4", "--chat", "--generation-len", "6"]
    assert main([*command, "--image", str(tmp_path / "picture.png"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["outputs"]
    assert found["token_ids"] == right
    assert main(command) == 1
    assert "has no images; expected one at least" in capsys.readouterr().err


@pytest.mark.full
def test_an_audio_package_equals_generate(
    tiny: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is cut, as it is longer than the encoder reads at once, and the last part filled up."""
    with pytest.raises(
        PlanError, match=r"expected it to be merged. Give --adapter .*/speech-lora:"
    ):
        pipeline.build(str(tiny.folder), Request(task="audio-text-to-text"), store=tiny.store)
    package = tiny.package("audio-text-to-text", "speech-lora")
    for number, seconds in enumerate((1.3, 42.0)):
        given = recording(number, seconds)
        recorded(tmp_path / "speech.wav", given)
        audio = (given * 32767).astype("<i2").astype(np.float32) / 32768
        shown = Phi4MultimodalFeatureExtractor()(audio, sampling_rate=RATE, return_tensors="pt")
        token = SimpleNamespace(audio_token="w201 ")
        text = Phi4MultimodalProcessor.replace_audio_token(token, shown, 0) + "w3 w4"
        command = ["run", str(package), str(tmp_path / "speech.wav"), "--chat", "--json"]
        assert main([*command, "--prompt", " w3 w4", "--generation-len", "6"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["outputs"]
        assert found["token_ids"] == tiny.answer("speech-lora", text, **shown)


def test_a_vision_and_audio_package_equals_generate(
    tiny: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both orders; a recording that a prompt without images has is another one, and is refused."""
    with pytest.raises(PlanError, match=r"Give --adapter .*/vision-lora:"):
        tiny.package("any-to-any", "speech-lora")
    session: Any = qeff_zoo.load(tiny.package("any-to-any", "vision-lora"))
    pixels, given = (
        np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8),
        recording(1, 1.3),
    )
    shown = dict(reference_output(pixels, LARGE, monkeypatch))
    count = {"num_img_tokens": shown.pop("num_img_tokens")}
    audio_input = Phi4MultimodalFeatureExtractor()(given, sampling_rate=RATE, return_tensors="pt")
    words = SimpleNamespace(image_token="w200 ", audio_token="w201 ")
    image = Phi4MultimodalProcessor.replace_image_token(words, count, 0)
    speech = Phi4MultimodalProcessor.replace_audio_token(words, audio_input, 0)
    brought = {"images": [pixels], "audio": [given], "generation_len": 6}
    for first, second in (("image", "audio"), ("audio", "image")):
        text = f"<|{first}|> w3 <|{second}|> w4"
        whole = text.replace("<|image|>", image).replace("<|audio|>", speech)
        right = tiny.answer("vision-lora", whole, **shown, **audio_input)
        assert session.generate(text, **brought)[0].token_ids == right
    # What was read of the sound is kept by how it was projected.
    prepared = session.prepare_audio(given)
    alone, beside = (
        session.look([prepared])[0],
        session.look([prepared, session.prepare(pixels)])[0],
    )
    assert alone.digest != beside.digest
    assert not np.allclose(*(next(iter(one.features.values())) for one in (alone, beside)))
    with pytest.raises(GenerationError, match="has no images; expected one at least"):
        session.generate("<|audio|> w3", audio=[given])


@pytest.mark.parametrize("samples", [400, 559, 560, 16_000, 50_001])
def test_audio_features_equal_transformers(samples: int) -> None:
    given = recording(samples, samples / RATE)
    extractor = Phi4MultimodalFeatureExtractor()
    made = find(extractor.to_dict()).compute(given)
    right = extractor(given, sampling_rate=RATE)["audio_input_features"][0].numpy()
    np.testing.assert_allclose(made, right, atol=2e-5, rtol=0)


def test_images_of_a_processor_are_separated() -> None:
    given = {
        "image_pixel_values": np.zeros((2, 3, 3, 4, 4)),
        "image_sizes": np.array([[4, 8], [4, 4]]),
        "image_attention_mask": np.ones((2, 3, 2, 2)),
    }
    found = images_of(given, "image_pixel_values")
    assert [one["image_sizes"].tolist() for one in found] == [[[4, 8]], [[4, 4]]]
    assert all(len(array) == 1 for one in found for array in one.values())

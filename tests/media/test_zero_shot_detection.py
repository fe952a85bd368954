# SPDX-License-Identifier: Apache-2.0
"""Zero-shot object detection: packages return what transformers' pipeline and processors do."""

import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from built_images import BuiltModel, making
from checkout import TESTS
from fixtures_qaic_runtime import rt
from fixtures_qaic_whole import compiled
from fixtures_serving import KEY, MODEL, post, running
from huggingface_hub import InferenceClient, ZeroShotObjectDetectionOutputElement
from huggingface_hub.inference._providers.hf_inference import HFInferenceBinaryInputTask
from PIL import Image
from tiny_checkpoint import plain_class
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from qeff_zoo import cli, registry
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.pipeline import build, prepare
from qeff_zoo.plan.request import Request
from qeff_zoo.sessions import ZeroShotDetectionSession, open_session
from qeff_zoo.store import Store
from qeff_zoo.store.adoption import adopt
from qeff_zoo.tasks.zero_shot_detection.endpoints import NamedDetectionQueue
from qeff_zoo.tasks.zero_shot_detection.objects import PADDED
from qeff_zoo.tasks.zero_shot_detection.task import NAME
from qeff_zoo.validation.content.image_arrays import AWKWARD, difference

pytest.importorskip("scipy")
pytestmark = [
    pytest.mark.turns(2),
    pytest.mark.filterwarnings("ignore:It is recommended to use mode"),  # scipy's, of OWLv2
]

__all__ = ["rt"]
TYPES = [recipe.model_type for recipe in registry.list_recipes() if recipe.task == NAME]
END = 98  # ends a text
LABELS = ["w3 w4", "w50", "w7 w8 w9"]
#: (width, height) of images: the second and third share a call.
SIZES = ((61, 93), (120, 37), (120, 37))


class Built(BuiltModel):
    """A tiny model with a tokenizer of words, its package for batches of 2, and transformers' pipeline of it."""

    sizes = SIZES

    def complete(self) -> None:
        """Add a tokenizer."""
        words = {f"w{number}": number for number in range(99)}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A w{END}", special_tokens=[(f"w{END}", END)]
        )
        tokenizer.save(str(self.checkpoint / "tokenizer.json"))
        plain_class(self.checkpoint)

    def _loaded(self) -> tuple[Any, Any, Any]:
        model = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(self.checkpoint)
        process = transformers.AutoImageProcessor.from_pretrained(self.checkpoint, backend="pil")
        path = str(self.checkpoint / "tokenizer.json")
        return model, process, transformers.PreTrainedTokenizerFast(tokenizer_file=path)

    def expected(self, image: Image.Image, threshold: float) -> list[dict[str, Any]]:
        """Return the objects of transformers' pipeline."""
        model, process, tokenizer = self._loaded()
        pipeline = transformers.pipeline(
            NAME, model=model, image_processor=process, tokenizer=tokenizer
        )
        objects: list[dict[str, Any]] = pipeline(
            image, candidate_labels=LABELS, threshold=threshold
        )
        return objects

    def grounded(self, image: Image.Image, threshold: float) -> dict[str, Any]:
        """Return the objects of `post_process_grounded_object_detection`, without its order."""
        model, process, tokenizer = self._loaded()
        tokenizer.pad_token = "w0"
        texts = tokenizer(LABELS, return_tensors="pt", padding=True)
        pixels = process(image, return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            outputs = model(
                pixel_values=pixels,
                input_ids=texts["input_ids"],
                attention_mask=texts["attention_mask"],
            )
        (found,) = process.post_process_object_detection(
            outputs, threshold, target_sizes=[image.size[::-1]]
        )
        result: dict[str, Any] = found
        return result


Make = Callable[[str, str], Built]


make = making(Built)


@pytest.fixture(scope="module")
def owl(make: Make) -> Built:
    return make("owlvit", "")


def opened(built: Built) -> ZeroShotDetectionSession:
    session = open_session(built.package, threads=1)
    assert isinstance(session, ZeroShotDetectionSession)
    return session


def require_same(made: Any, expected: list[dict[str, Any]]) -> None:
    """Compare objects with the pipeline's; those of nearly one score may be in another order."""
    assert expected
    assert len(made) == len(expected)
    for one, right in zip(made, expected, strict=True):
        assert {*one} == {*right}
        assert one["score"] == pytest.approx(right["score"], abs=1e-4)
    left = [*made]
    for right in expected:
        left.remove(next(one for one in left if is_same(one, right)))


def is_same(one: dict[str, Any], right: dict[str, Any]) -> bool:
    """Return whether two objects are equal; truncated edges of other sums may differ by a pixel."""
    edges = (abs(one["box"][edge] - pixel) for edge, pixel in right["box"].items())
    near = abs(one["score"] - right["score"]) < 1e-4 and max(edges) <= 1
    return bool(near and one["label"] == right["label"])


@pytest.mark.parametrize("model_type", TYPES)
def test_objects_are_those_of_the_pipeline(model_type: str, make: Make) -> None:
    built = make(model_type, "")
    found = opened(built).detect(built.images, LABELS, 0.3)
    for image, objects in zip(built.images, found, strict=True):
        require_same([asdict(detection) for detection in objects], built.expected(image, 0.3))
    assert len({one.label for one in found[0]}) > 1
    assert found[0] != found[1]


@pytest.mark.parametrize("model_type", TYPES)
def test_a_box_has_its_best_label_on_request(model_type: str, make: Make) -> None:
    built = make(model_type, "")
    session = opened(built)
    (found,) = session.detect(built.images[0], LABELS, 0.3, one_label=True)
    right = built.grounded(built.images[0], 0.3)
    expected = [
        {
            "score": float(score),
            "label": LABELS[int(label)],
            "box": dict(zip(("xmin", "ymin", "xmax", "ymax"), map(int, box), strict=True)),
        }
        for score, label, box in zip(right["scores"], right["labels"], right["boxes"], strict=True)
    ]
    require_same([asdict(one) for one in found], sorted(expected, key=lambda one: -one["score"]))
    assert len(found) < len(session.detect(built.images[0], LABELS, 0.3)[0])


def test_cards_detect_objects(owl: Built, tmp_path: Path) -> None:
    """In float16, by two QPCs of which neither has states."""
    requested, store = Request(batch_size=2, target="qaic"), Store(tmp_path / "store")
    folder = prepare(
        str(owl.checkpoint), tmp_path / "prepared", request=requested, validate=False, store=store
    )
    on_cards = open_session(adopt(folder, compiled(folder, tmp_path), store))
    assert isinstance(on_cards, ZeroShotDetectionSession)
    session = opened(owl)
    for image in owl.images:
        both = [
            one.logits_of(one.run(one.prepare([image])), one.embed_texts(LABELS))
            for one in (session, on_cards)
        ]
        for wanted, made in zip(*both, strict=True):
            assert np.abs(wanted - made).max() < 0.02 * wanted.std()


@pytest.mark.parametrize(
    ("labels", "threshold", "text"),
    [
        ([], 0.5, "expected at least one text"),
        ("", 0.5, "expected at least one text"),
        (["a", " "], 0.5, "expected at least one text"),
        ([3], 0.5, "expected at least one text"),
        (LABELS, 1.5, "expected a number from 0 to 1"),
        (LABELS, float("nan"), "expected a number from 0 to 1"),
    ],
)
def test_arguments_are_checked_before_images_are_read(
    owl: Built, labels: Any, threshold: float, text: str
) -> None:
    with pytest.raises(GenerationError, match=text):
        opened(owl).detect(["missing.png"], labels, threshold)


def test_run_prints_objects_and_draws_boxes(
    owl: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, boxes, package = tmp_path / "a.png", tmp_path / "boxes.png", str(owl.package.path)
    owl.images[0].save(image)
    labels = [part for label in LABELS for part in ("--label", label)]
    command = ["run", package, "--image", str(image), *labels, "--threshold", "0.3"]
    expected = owl.expected(owl.images[0], 0.3)
    assert cli.main([*command, "--output", str(boxes)]) == 0
    printed = capsys.readouterr().out
    assert all(one["label"] in printed for one in expected)
    assert (np.asarray(Image.open(boxes)) != np.asarray(owl.images[0])).any()
    assert cli.main([*command, "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert output["image"] == str(image)
    require_same(output["objects"], expected)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "expected at least one text"),
        (["--label", "a", "--threshold", "2"], "expected a number from 0 to 1"),
        (["--label", "a", "--output", "boxes.jpg"], "expected a name that ends with .png"),
    ],
    ids=str,
)
def test_options_are_checked_before_the_image_is_read(
    owl: Built, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(owl.package.path), "--image", "missing.png", *options]) == 1
    assert text in capsys.readouterr().err


# --- server ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def served(owl: Built) -> Iterator[str]:
    with (
        closing(NamedDetectionQueue(opened(owl), max_waiting=4)) as queue,
        running(queue) as url,
    ):
        yield f"{url.removesuffix('/v1')}/models/{MODEL}"


def test_a_server_answers_hugging_face_s_client(owl: Built, served: str) -> None:
    image = io.BytesIO()
    owl.images[0].save(image, "PNG")
    parameters = {"candidate_labels": LABELS, "threshold": 0.3}
    request = HFInferenceBinaryInputTask(NAME).prepare_request(
        inputs=image.getvalue(), parameters=parameters, headers={}, model=served, api_key=KEY
    )
    answer = json.loads(InferenceClient()._inner_post(request))
    ZeroShotObjectDetectionOutputElement.parse_obj_as_list(answer)
    require_same(answer, owl.expected(owl.images[0], 0.3))


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "texts that name objects"),
        ({"candidate_labels": []}, "texts that name objects"),
        ({"candidate_labels": [" "]}, "texts that name objects"),
        ({"candidate_labels": [""]}, ""),
        ({"candidate_labels": "a cat"}, ""),
        ({"candidate_labels": ["a"] * 257}, ""),
        ({"candidate_labels": ["a"], "threshold": 2}, ""),
        ({"candidate_labels": ["a"], "top_k": 2}, ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_server_refuses_wrong_parameters(
    served: str, parameters: dict[str, Any], text: str
) -> None:
    base, _, name = served.rpartition("/models/")
    body = json.dumps({"inputs": "", "parameters": parameters}).encode()
    status, refusal = post(base, f"models/{name}", body, **{"Content-Type": "application/json"})
    assert status == 400
    assert text in refusal["error"]["message"]


# --- processors ------------------------------------------------------------------------------------
PUBLISHED = {
    path.stem: json.loads(path.read_bytes())["preprocessor_config"]
    for path in (TESTS / "published" / "zero_shot_detection").glob("*.json")
}
_OWLV2 = {"image_processor_type": "Owlv2ImageProcessor"}
SETTINGS = {
    **PUBLISHED,
    "old": {"feature_extractor_type": "OwlViTFeatureExtractor", "size": 40, "rescale": True},
    "small": {**_OWLV2, "size": {"height": 30, "width": 44}},
    "unpadded": {**_OWLV2, "size": {"height": 64, "width": 64}, "do_pad": False},
    "unresized": {**_OWLV2, "do_resize": False},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_images_are_processed_as_by_transformers(name: str) -> None:
    settings = SETTINGS[name]
    ours = image_processor(settings)
    options = {key: value for key, value in settings.items() if not key.endswith("_type")}
    reference = getattr(transformers, f"{ours.name}Pil")(**options)
    for size in (*AWKWARD, (64, 90), (2, 2)):
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        assert not difference(ours, reference, Image.fromarray(pixels), {})


@pytest.mark.parametrize(
    ("model_type", "settings", "text"),
    [
        ("owlvit", {"do_center_crop": True, "crop_size": 28}, "boxes would be shares of a part"),
        ("owlvit", {"image_processor_type": "ViTImageProcessor"}, "has no boxes of objects"),
        ("owlv2", {"do_pad": False}, "boxes would be shares of a part"),
    ],
    ids=str,
)
def test_a_build_refuses_processors_whose_boxes_would_be_wrong(
    make: Make, tmp_path: Path, model_type: str, settings: dict[str, Any], text: str
) -> None:
    built, copy = make(model_type, ""), tmp_path / "copy"
    shutil.copytree(built.checkpoint, copy)
    path = copy / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    with pytest.raises(PlanError, match=text):
        build(str(copy), Request(), store=built.store)


def test_every_processor_has_a_rule() -> None:
    assert {registry.find_recipe(name).image_processor for name in TYPES} == {*PADDED}

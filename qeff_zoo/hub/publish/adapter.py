# SPDX-License-Identifier: Apache-2.0
"""Publishes an adapter in the Hub's form: its files, and a card that names its base model.

In: a folder that peft wrote. Out: the URL of one commit. The Hub then lists it with the adapters of its base
(`base_model:adapter:org/name`), and `resolve` finds the packages that take it.
"""

import json
import re
from pathlib import Path

from qeff_zoo.checkpoint.adapters.peft_files import CONFIG, WEIGHTS, Adapter, open_adapter
from qeff_zoo.checkpoint.hub_access import hub_token
from qeff_zoo.disk.regular import is_here, read_text
from qeff_zoo.errors import PublishError
from qeff_zoo.hub.publish.card import CARD_NAME
from qeff_zoo.hub.remotes import is_repository
from qeff_zoo.hub.remotes.hub_api import hub_call

_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


def is_adapter(folder: str) -> bool:
    """Whether a reference is an adapter: a folder with an adapter configuration."""
    return is_here(str(Path(folder, CONFIG)))


def publish_adapter(
    folder: str, repository: str, *, private: bool = False, dry_run: bool = False
) -> str:
    """Publish an adapter, in one commit.

    Args:
        folder: Folder of the adapter's files.
        repository: Hub repository, `org/name`; created if it is missing.
        private: Make a new repository private.
        dry_run: Send nothing.

    Returns:
        The URL of the commit; of a dry run the card.

    Raises:
        AdapterError: The folder has no adapter, or one of another kind than LoRA.
        PublishError: The base is not a model of the Hub, or the repository name is invalid.
        RemoteError: The Hub refused it, or was not reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    adapter = open_adapter(folder)
    adapter.require({})
    _ = adapter.modules  # a damaged file is refused here
    if not is_repository(repository):
        raise PublishError(
            f"Cannot publish the adapter {folder!r} to {repository!r}; expected a Hub repository, org/name: only there "
            "an adapter is found by its model. Name one, or copy the folder."
        )
    model = adapter.base
    if not is_repository(model) or is_here(model):
        raise PublishError(
            f"Cannot publish the adapter {folder!r}: {CONFIG} says that it is for {model!r}; expected a model of the "
            "Hub, org/name, so that others find what takes it. Train it on the model of the Hub, or name that in "
            "base_model_name_or_path."
        )
    text = card(adapter, model)
    if dry_run:
        return text
    api = HfApi(library_name="qeff-zoo", token=hub_token())
    hub_call(
        f"make {repository!r}",
        lambda: api.create_repo(repository, private=private, exist_ok=True),
    )
    files = [
        CommitOperationAdd(CARD_NAME, text.encode()),
        *(CommitOperationAdd(name, str(adapter.folder / name)) for name in (CONFIG, WEIGHTS)),
    ]
    done = hub_call(
        f"write to {repository!r}",
        lambda: api.create_commit(repository, files, commit_message=f"Add an adapter of {model}"),
    )
    return str(done.commit_url)


def card(adapter: Adapter, model: str) -> str:
    """Write the card of an adapter: the user's text stays, below front matter that names the base.

    Args:
        adapter: Any.
        model: Hub id of its base.
    """
    path = adapter.folder / CARD_NAME
    text = read_text(path, errors="replace") if path.is_file() else ""
    front_matter = _FRONT.match(text)
    about = f"# An adapter (LoRA) of {model}\n"
    body = text[front_matter.end() :].strip() if front_matter else text.strip()
    kept = _others(front_matter[1]) if front_matter else []
    ours = {"base_model": model, "base_model_relation": "adapter", "library_name": "peft"}
    lines = [f"{name}: {json.dumps(value)}" for name, value in ours.items()]
    tags = ["tags:", f"- base_model:adapter:{model}", "- lora", "- qeff-zoo"]
    front = "\n".join(["---", *lines, *kept, *tags, "---"])
    return f"{front}\n\n{body or about}\n"


def _others(front: str) -> list[str]:
    """Return the lines of front matter that ours does not set."""
    ours, kept, keep = ("base_model", "base_model_relation", "library_name", "tags"), [], True
    for line in front.splitlines():
        if line[:1].isalpha():
            keep = line.partition(":")[0] not in ours
        if keep:
            kept.append(line)
    return kept

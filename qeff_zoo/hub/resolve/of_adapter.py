# SPDX-License-Identifier: Apache-2.0
"""From an adapter to packages of its base: a reference to an adapter requests a package that can run it.

In: what was named, a folder or a Hub repository. Out: its base model, and what a package of that must have for it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qeff_zoo.disk.regular import is_here
from qeff_zoo.errors import AdapterError, CheckpointError, ResolutionError
from qeff_zoo.hub.remotes import is_repository
from qeff_zoo.settings import offline


@dataclass(frozen=True, kw_only=True)
class AdapterRequest:
    """Requirements of an adapter.

    Args:
        model: Hub id of its base.
        requirements: Requirements of a package that can run it.
    """

    model: str
    requirements: dict[str, Any] = field(default_factory=dict)


def of_adapter(reference: str) -> AdapterRequest | None:
    """Read the requirements of an adapter; None if the reference is not an adapter.

    Args:
        reference: A folder, or a Hub `org/name`.

    Raises:
        AdapterError: No package can run the adapter.
        ResolutionError: The adapter's base is not a model of the Hub.
    """
    from qeff_zoo.checkpoint.adapters.peft_files import CONFIG, MERGEABLE, open_adapter

    here = is_here(reference)
    if here and not Path(reference, CONFIG).is_file():
        return None
    if not here and (offline() or not is_repository(reference)):
        return None
    try:
        adapter = open_adapter(reference)
    except (AdapterError, CheckpointError):
        if here:
            raise
        return None  # of the Hub: something else, or nothing
    adapter.require(MERGEABLE)
    if not is_repository(adapter.base):
        raise ResolutionError(
            f"{reference!r} is an adapter of {adapter.base!r}, which is no model of the Hub. Expected "
            "base_model_name_or_path in adapter_config.json to be a Hub id. Name the model instead."
        )
    ends = {module.rpartition(".")[2] for module in adapter.modules}
    requirements = {"max_loras": 1, "max_lora_rank": max(adapter.modules.values())}
    return AdapterRequest(
        model=adapter.base, requirements={**requirements, "lora_targets": tuple(sorted(ends))}
    )

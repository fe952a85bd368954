# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters as models of a server, and vLLM's endpoints that load and unload them.

The endpoints exist only for sources that the operator named. Every other source gets the same refusal, without any
look-up of a file, name or host.
"""

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from qeff_zoo.errors import AdapterError, CheckpointError, ServingError
from qeff_zoo.runtime.decoding.adapters import Adapters
from qeff_zoo.serving.errors import ApiError, brief
from qeff_zoo.serving.requests.schemas import LoadAdapter, UnloadAdapter

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_INNER = re.compile(r"\w[\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Sources:
    """Sources from which clients may load adapters.

    Args:
        folders: Absolute paths of adapter folders, or of folders that contain some.
        repositories: Hub ids, each `org/name`.
    """

    folders: tuple[str, ...] = ()
    repositories: frozenset[str] = frozenset()

    @classmethod
    def of(cls, named: Sequence[str]) -> "Sources":
        """Parse the operator's sources; an existing folder has precedence over a repository.

        Raises:
            ServingError: A source is neither a folder nor a Hub id.
        """
        folders, repositories = [], []
        for one in named:
            if Path(one).expanduser().is_dir():
                folders.append(os.path.abspath(os.path.expanduser(one)))  # noqa: PTH100, PTH111 -- lexical
            elif _REPOSITORY.fullmatch(one) and not one.startswith("."):
                repositories.append(one)
            else:
                raise ServingError(
                    f"--allow-adapters has {one!r}, which is no folder here; expected folders of adapters, or Hub "
                    "repositories as org/name. Correct it."
                )
        return cls(tuple(folders), frozenset(repositories))

    def find(self, named: str) -> str | None:
        """Return the source that a client may load by a name or a path; None for any other."""
        outer, _, inner = named.rpartition("/")
        if named in self.repositories or (outer in self.repositories and _INNER.fullmatch(inner)):
            return named
        path = os.path.abspath(named)  # noqa: PTH100 -- without a look at what is there
        for folder in self.folders:
            # Links below a folder count only if they stay in the folder.
            if _is_below(path, folder) and _is_below(
                os.path.realpath(path), os.path.realpath(folder)
            ):
                return path
        return None


def _is_below(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def paths(prefix: str) -> tuple[str, str]:
    """Return the paths that load and unload adapters, which exist if clients may load any.

    Args:
        prefix: Prefix of the paths.
    """
    return f"{prefix}load_lora_adapter", f"{prefix}unload_lora_adapter"


def routes(prefix: str, model: str, adapters: Adapters, sources: Sources) -> APIRouter:
    """Return the endpoints that load and unload adapters.

    Args:
        prefix: Prefix of their paths.
        model: Name of the base model.
        adapters: Adapters of its session.
        sources: The folders and repositories that clients may load from.
    """
    router = APIRouter()
    load_path, unload_path = paths(prefix)
    #: Names, chosen by clients, of adapters that are loaded or being loaded.
    chosen: set[str] = set()

    @router.post(load_path)
    async def load(body: LoadAdapter) -> Response:
        name, source = body.lora_name, sources.find(body.lora_path)
        if source is None:
            raise ApiError(
                403,
                f"This server loads no adapter from {brief(body.lora_path)}; expected a folder or a repository that it "
                "was started with (--allow-adapters). Ask its operator.",
                param="lora_path",
                code="adapter_not_allowed",
            )
        if name == model or name in adapters or name in chosen:
            raise ApiError(
                400,
                f"There is a model {name!r} already; expected another name. Unload it first, or choose one.",
                param="lora_name",
                code="invalid_value",
            )
        chosen.add(name)
        try:
            await asyncio.to_thread(adapters.load, name, source, anonymous=True)
        except (AdapterError, CheckpointError) as error:
            raise ApiError(400, str(error), param="lora_path", code="invalid_value") from error
        finally:
            if name not in adapters:
                chosen.discard(name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    @router.post(unload_path)
    async def unload(body: UnloadAdapter) -> Response:
        name = body.lora_name
        if name in adapters and name not in chosen:
            raise ApiError(
                403,
                f"The adapter {brief(name)} was loaded by the operator of this server; expected one that a client has "
                "loaded. Leave it.",
                param="lora_name",
                code="adapter_not_allowed",
            )
        try:
            adapters.unload(name)
        except AdapterError as error:
            raise ApiError(404, str(error), param="lora_name", code="model_not_found") from error
        chosen.discard(name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    return router

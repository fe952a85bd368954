# SPDX-License-Identifier: Apache-2.0
"""Adapters as models of a server: which one a request asks for, and vLLM's endpoints that load and unload them."""

import asyncio

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from qeff_zoo.errors import AdapterError, CheckpointError
from qeff_zoo.runtime.adapters import Adapters
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.schemas import LoadAdapter, UnloadAdapter


def routes(prefix: str, model: str, adapters: Adapters) -> APIRouter:
    """Return the endpoints that change which adapters there are.

    Args:
        prefix: Of their paths.
        model: Name of the model that they are for.
        adapters: Of its session.
    """
    router = APIRouter()

    @router.post(f"{prefix}load_lora_adapter")
    async def load(body: LoadAdapter) -> Response:
        if body.lora_name == model or body.lora_name in adapters:
            raise ApiError(
                400,
                f"There is a model {body.lora_name!r} already; expected another name. Unload it first, or choose one.",
                param="lora_name",
                code="invalid_value",
            )
        try:
            await asyncio.to_thread(adapters.load, body.lora_name, body.lora_path)
        except (AdapterError, CheckpointError) as error:
            raise ApiError(400, str(error), param="lora_path", code="invalid_value") from error
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @router.post(f"{prefix}unload_lora_adapter")
    async def unload(body: UnloadAdapter) -> Response:
        try:
            adapters.unload(body.lora_name)
        except AdapterError as error:
            raise ApiError(404, str(error), param="lora_name", code="model_not_found") from error
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return router

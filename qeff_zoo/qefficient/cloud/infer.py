# SPDX-License-Identifier: Apache-2.0
"""`qeff-cloud-infer`: a model and prompts in, answers out; what is built already is not built again."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.inputs import saying_warnings
from qeff_zoo.cli.options import integers
from qeff_zoo.errors import GenerationError
from qeff_zoo.qefficient.cloud.execute import answer

from . import flags

if TYPE_CHECKING:
    from qeff_zoo.qefficient import QEFFAutoModelForCausalLM


def main(argv: Sequence[str] | str | None = None, **given: Any) -> int:
    """Run the command and return its exit code.

    Args:
        argv: Command line; None for that of the process. In QEfficient's Python function, the model's name.
        **given: Arguments of QEfficient's Python function, which have the names of the flags.

    Raises:
        ZooError: The function fails.
    """
    return flags.run(_infer, _parser(), argv, given, unknown_options=True)


def execute_vlm_model(
    qeff_model: Any,
    model_name: str,
    image_url: str | None,
    image_path: str | None,
    prompt: Sequence[str],
    device_group: Sequence[int] | None = None,
    generation_len: int | None = None,
) -> Any:
    """Generate with a compiled vision-language model, from prompts that share an image.

    Args:
        qeff_model: The model, an instance of `QEFFAutoModelForImageTextToText`.
        model_name: Hub id of the model; the package has its processor.
        image_url: URL of the image.
        image_path: File of the image, in place of a URL.
        prompt: Prompts.
        device_group: Cards to run on; None for free ones.
        generation_len: Maximum number of tokens of each prompt.

    Raises:
        ValueError: There is no image.
    """
    image = image_url or image_path
    if not image:
        raise ValueError(
            f"Neither Image URL nor Image Path is given for {model_name!r}, expected one. Give image_url or image_path."
        )
    prompts = [prompt] if isinstance(prompt, str) else [*prompt]
    return qeff_model.generate(
        prompts=prompts,
        images=[image] * len(prompts),
        device_ids=device_group,
        generation_len=generation_len,
    )


def _infer(arguments: argparse.Namespace, options: dict[str, Any]) -> None:
    model_name = flags.configure_hub(arguments)

    from qeff_zoo.qefficient.execution import prompts_of

    prompts = prompts_of(arguments.prompt, arguments.prompts_txt_file_path)
    chosen = _class_of(model_name, arguments)
    image = flags.image_of(arguments)
    with saying_warnings():
        model = chosen.from_pretrained(
            model_name,
            continuous_batching=arguments.full_batch_size is not None,
            qaic_config={"ccl_enabled": arguments.ccl_enabled},
            trust_remote_code=arguments.trust_remote_code,
        )
        path = model.compile(
            prefill_seq_len=arguments.prompt_len,
            ctx_len=arguments.ctx_len,
            batch_size=arguments.batch_size,
            full_batch_size=arguments.full_batch_size,
            comp_ctx_lengths_prefill=arguments.comp_ctx_lengths_prefill,
            comp_ctx_lengths_decode=arguments.comp_ctx_lengths_decode,
            use_onnx_subfunctions=arguments.use_onnx_subfunctions,
            dynamo=arguments.dynamo,
            **flags.compiler_options(arguments),
            **options,
        )
    for stage, seconds in model.seconds.items() if arguments.verbose else ():
        print(f"{stage}: {seconds:.1f} s", file=sys.stderr)
    if model.package is None:
        print(
            "Prepared, which answers nothing yet: run compile.sh in it where the SDK is, then `qeff-zoo adopt`.",
            file=sys.stderr,
        )
        print(path)
        return
    print(f"Run it again: qeff-cloud-execute --qpc_path {path} --prompt TEXT", file=sys.stderr)
    answer(path, prompts, arguments, image)


def _class_of(model_name: str, arguments: argparse.Namespace) -> "type[QEFFAutoModelForCausalLM]":
    """Return QEfficient's class for a checkpoint's task; refuse an image for a model without a vision encoder."""
    from qeff_zoo.checkpoint.opening import open_checkpoint
    from qeff_zoo.contract import IMAGE_TEXT_TO_TEXT
    from qeff_zoo.plan.task import recipe_of
    from qeff_zoo.qefficient import QEFFAutoModelForCausalLM, QEFFAutoModelForImageTextToText

    task = recipe_of(open_checkpoint(model_name)).task
    if task == IMAGE_TEXT_TO_TEXT:
        return QEFFAutoModelForImageTextToText
    if given := arguments.image_path or arguments.image_url:
        raise GenerationError(
            f"`infer`: an image is given, {given!r}, and {model_name!r} is a model for {task!r}, which reads none; "
            f"expected one for {IMAGE_TEXT_TO_TEXT!r}. Leave the image out, or choose another model."
        )
    return QEFFAutoModelForCausalLM


def _parser() -> argparse.ArgumentParser:
    parser = flags.command(
        "infer", "Build a package of a model unless it is there, and run it on prompts."
    )
    on = {"action": "store_true"}
    flags.add_model(parser)
    flags.add_sizes(parser)
    for calls in ("prefill", "decode"):
        name, text = f"comp_ctx_lengths_{calls}", f"rows of the cache that a {calls} call reads"
        flags.add(parser, name, type=integers, metavar="N,N", help=text)
    text = "choose --comp-ctx-lengths-prefill and --comp-ctx-lengths-decode where neither is given"
    flags.add(parser, "ccl_enabled", **on, help=text)
    flags.add_compiler(parser, mos=1, device_group=False)
    text = "needed by no supported model: code of a checkpoint is never run"
    flags.add(parser, "trust_remote_code", **on, help=text)
    flags.add(parser, "use_onnx_subfunctions", **on, help="compile repeated functions once")
    flags.add(parser, "dynamo", **on, help="as always here")
    flags.add_prompts(parser)
    flags.add_image(parser)
    flags.add(parser, "verbose", "v", **on, help="say how long each stage took")
    return parser


flags.sign(main, _parser())

if __name__ == "__main__":
    sys.exit(main())

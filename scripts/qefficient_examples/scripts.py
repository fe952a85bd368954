# SPDX-License-Identifier: Apache-2.0
"""Which files of QEfficient's are scripts, and what each is called with."""

from collections.abc import Mapping

#: Tools for users, beside `examples/`.
TOOLS = (
    *(f"scripts/debug/{name}.py" for name in ("audio_model", "embedding_model", "gemma4_dense_layer_compare",
                                             "gemma4_dense_ort_qaic_parity", "image_model", "text_model")),
    "scripts/finetune/run_ft_model.py",
    "scripts/perplexity_computation/calculate_perplexity.py",
    "scripts/replicate_kv_head/replicate_kv_heads.py",
)  # fmt: skip
#: Modules that scripts beside them import, and a template of a module.
NOT_SCRIPTS = {
    "examples/embeddings/qwen3vl/embedding_model.py",
    "examples/image_text_to_text/models/gemma_vision/gemma4/gemma4_utils.py",
    "examples/onboarding_guide/causallm/modeling_example.py",
    "examples/reranker/qwen3vl/reranker_model.py",
}
#: Scripts that stop in their own code, and why.
OWN_FAULTS: Mapping[str, str] = {
    "examples/image_text_to_text/models/kimi_k2/example_kimi_k25_vision_disagg.py": (
        "It runs code of the published checkpoint, modeling_kimi_k25.py, which small checkpoints do not have."
    ),
    "examples/onboarding_guide/causallm/example_pytorch_transforms.py": (
        "It imports transformers.models.blueprint, a placeholder for the reader's model."
    ),
    "examples/performance/compute_context_length/granite_vision.py": (
        "It calls its own function run_model without the argument token."
    ),
    "examples/performance/cpp_execution/text_inference_cpp.py": (
        "It calls a C++ module beside it, which is compiled against the runtime of a card's SDK."
    ),
    "examples/performance/speculative_decoding/draft_based.py": (
        "Line 296 assigns an array of one number to an element, which NumPy refuses since 2.4; it runs with 2.3.5."
    ),
    "scripts/debug/gemma4_dense_layer_compare.py": (
        "It searches the exported graph for QEfficient's name of a layer, QEffGemma4TextDecoderLayer."
    ),
}
#: Arguments of scripts that require some, as their READMEs have them.
ARGUMENTS: Mapping[str, str] = {
    "examples/image_text_to_text/models/kimi_k2/example_kimi_k25_vision_disagg.py": "--model-path moonshotai/Kimi-K2.5",
    "examples/performance/on_device_sampling.py": (
        "--model-name meta-llama/Llama-3.1-8B --prompt-len 128 --ctx-len 256 --generation-len 20 --full-batch-size 2 "
        "--num-cores 16 --mxint8-kv-cache --mxfp6-matmul --override-qaic-config 'aic_include_sampler:true "
        "aic_return_pdfs:false max_top_k_ids:512 aic_include_guided_decoding:true' --repetition-penalty 1.9 "
        "--presence-penalty 0.8 --temperature 0.67 --top-k 54 --top-p 0.89 --min-p 0.6 --random-number 26"
    ),
    "scripts/perplexity_computation/calculate_perplexity.py": (
        "--model_type qpc --model_path {qpc_path} --model_name TinyLlama/TinyLlama-1.1B-Chat-v1.0 --ctx_len 64 "
        "--stride 32 --num_samples 2"
    ),
}
#: Models that are compiled before a script, which gets the path as `{qpc_path}`, and the arguments of `compile`.
COMPILED: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "scripts/perplexity_computation/calculate_perplexity.py": (
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        {"prefill_seq_len": 1, "ctx_len": 64},
    ),
}
#: Checkpoints that arguments name.
NEEDED: Mapping[str, tuple[str, ...]] = {
    "examples/image_text_to_text/models/kimi_k2/example_kimi_k25_vision_disagg.py": (
        "moonshotai/Kimi-K2.5",
    ),
    "scripts/finetune/run_ft_model.py": (
        "meta-llama/Llama-3.2-1B",
        "training_results/complete_epoch_1",
    ),
    "scripts/perplexity_computation/calculate_perplexity.py": (
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    ),
}

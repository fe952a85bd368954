# SPDX-License-Identifier: Apache-2.0
"""Florence-2, `transformers.models.florence2`: captions, objects with their places, and text in images, by prompts.

Unusual: an encoder reads what a DaViT saw before a prompt, which is a task's token; a BART writes the answer.
"""

from qeff_zoo.recipe import IMAGE_PROMPT_SHAPES, ImagePrompt, Recipe, Tiny, row_positions

from .bart import RECIPE as BART

_TASK_PROMPTS = {
    "<OCR>": "What is the text in the image?",
    "<REGION_TO_SEGMENTATION>": "What is the polygon mask of region {input}",
    "<OCR_WITH_REGION>": "What is the text in the image, with regions?",
    "<CAPTION>": "What does the image describe?",
    "<DETAILED_CAPTION>": "Describe in detail what is shown in the image.",
    "<MORE_DETAILED_CAPTION>": "Describe with a paragraph what is shown in the image.",
    "<OD>": "Locate the objects with category name in the image.",
    "<DENSE_REGION_CAPTION>": "Locate the objects in the image, with their descriptions.",
    "<REGION_PROPOSAL>": "Locate the region proposals in the image.",
    "<CAPTION_TO_PHRASE_GROUNDING>": "Locate the phrases in the caption: {input}",
    "<REFERRING_EXPRESSION_SEGMENTATION>": "Locate {input} in the image with mask",
    "<OPEN_VOCABULARY_DETECTION>": "Locate {input} in the image.",
    "<REGION_TO_CATEGORY>": "What is the region {input}?",
    "<REGION_TO_OCR>": "What text is in the region {input}?",
    "<REGION_TO_DESCRIPTION>": "What does the region {input} describe?",
}
_VISION_CONFIG = {
    "depths": [1, 2],
    "patch_size": [7, 3],
    "patch_stride": [4, 2],
    "patch_padding": [3, 1],
    "window_size": 3,
    "patch_prenorm": [False, True],
    "embed_dim": [16, 32],
    "num_heads": [2, 4],
    "num_groups": [2, 4],
    "projection_dim": 64,
    "max_position_embeddings": 8,
    "max_temporal_embeddings": 4,
    "initializer_range": 0.2,
}
_TEXT_CONFIG = {**BART.tiny[0].config, "model_type": "bart", "scale_embedding": True}

RECIPE = Recipe(
    model_type="florence2",
    architectures=("Florence2ForConditionalGeneration",),
    task="image-to-text",
    special="An encoder reads a prompt behind what a DaViT saw: windows of places and groups of channels in turn.",
    transforms=(row_positions(),),
    shapes=IMAGE_PROMPT_SHAPES,
    image_prompt=ImagePrompt(
        placeholder="image_token_id", strides="patch_stride", questions=_TASK_PROMPTS
    ),
    tiny=(
        Tiny(
            config={
                "text_config": _TEXT_CONFIG,
                "vision_config": _VISION_CONFIG,
                "image_token_id": 256,
            },
            image_processor={
                "image_processor_type": "CLIPImageProcessor",
                "do_center_crop": False,
                "size": {"height": 32, "width": 24},
            },
        ),
    ),
)

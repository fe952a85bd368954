# SPDX-License-Identifier: Apache-2.0
"""Image processor of a checkpoint: its JSON in, and the arrays that its model takes for images out.

The JSON is `preprocessor_config.json`, or the part `image_processor` of `processor_config.json`, in any spelling that
transformers reads: `…FeatureExtractor`, `…ImageProcessor` and `…ImageProcessorFast`; sizes as a number, a pair or by
name. Each kind is an entry of `PROCESSORS`, with its defaults; an unknown kind is rejected by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.files import PROCESSOR_SETTINGS, read_config
from qeff_zoo.checkpoint.json_files import read_json
from qeff_zoo.errors import CheckpointError, MediaError, UnsupportedModelError, ZooError
from qeff_zoo.media.families import (
    aria,
    cohere2_vision,
    convnext,
    cosmos3_edge,
    deepseek_ocr2,
    deepseek_vl_hybrid,
    donut,
    dpt,
    efficientnet,
    fuyu,
    gemma3,
    gemma4,
    glpn,
    got_ocr2,
    granite_docling,
    idefics2,
    kimi_k25,
    lfm2,
    llama4,
    minicpm,
    minimax_m3,
    mllama,
    mobilevit,
    molmo,
    ovis2,
    owlv2,
    paddleocr_vl,
    perception_lm,
    phi4,
    pixtral,
    radio,
    sam,
    segformer,
    step3p7,
    swin2sr,
    timm_wrapper,
    video_llama_3,
    vitpose,
    zoedepth,
)
from qeff_zoo.media.images import LIMITS, ImageLimits, ImageSource, Pixels, read_image

from . import detection_rules, patch_rules
from . import image_rules as rules

FILES = (PROCESSOR_SETTINGS, "processor_config.json", "preprocessor_config.json")
_CONFIG = "config.json"  # with the settings of a timm checkpoint, or of a checkpoint's code

#: Errors that a rule raises for contradictory settings, or for values that are not sizes.
_IMPOSSIBLE = ArithmeticError, ValueError, TypeError, LookupError

# Pillow's filters; PIL itself is imported only when an image is read.
_LANCZOS, _BILINEAR, _BICUBIC = 1, 2, 3

_HALF = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
_CLIP = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
_PLAIN = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "default_to_square": True,
}
_CROPPED = {
    **_PLAIN, **_CLIP,
    "resample": _BICUBIC, "size": {"shortest_edge": 224}, "default_to_square": False,
    "do_center_crop": True, "crop_size": {"height": 224, "width": 224},
}  # fmt: skip
_PADDED = {
    **_PLAIN, **_CLIP, "resample": _BICUBIC, "size": {"height": 384, "width": 384}, "min_size": 14,
    "do_pad": True,
}  # fmt: skip
_PAGE = {
    **_PLAIN,
    "resample": _BILINEAR, "do_thumbnail": True, "do_align_long_axis": False, "do_pad": True,
}  # fmt: skip
_PATCHES = {
    **_PLAIN, **_CLIP, "resample": _BICUBIC, "default_to_square": False,
    "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
}  # fmt: skip
_BETWEEN_EDGES = {
    **_PLAIN, **_IMAGENET,
    "resample": _BILINEAR, "size": {"shortest_edge": 800, "longest_edge": 1333}, "default_to_square": False,
    "max_size": 1333, "do_pad": True,
}  # fmt: skip
_IDEFICS3 = {
    **_PLAIN, **_HALF,
    "resample": _LANCZOS, "size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364},
    "do_image_splitting": True, "do_pad": True,
}  # fmt: skip

# transformers' class, or one of a checkpoint's code -> the rule that computes its arrays, and default settings.
PROCESSORS: Mapping[str, tuple[rules.Rule, Mapping[str, Any]]] = {
    "AriaImageProcessor": (
        aria.corner_of_square,
        {
            **_PLAIN, **_HALF, "resample": _BICUBIC, "size": {"height": 980, "width": 980}, "max_image_size": 980,
            "min_image_size": 336, "split_image": False,
        },
    ),
    "BeitImageProcessor": (
        rules.plain,
        {
            **_PLAIN, **_HALF, "resample": _BICUBIC, "size": {"height": 224, "width": 224},
            "crop_size": {"height": 224, "width": 224},
        },
    ),
    "BitImageProcessor": (rules.plain, _CROPPED),
    "BlipImageProcessor": (
        rules.plain,
        {**_PLAIN, **_CLIP, "resample": _BICUBIC, "size": {"height": 384, "width": 384}},
    ),
    "ChineseCLIPImageProcessor": (rules.plain, _CROPPED),
    "CLIPImageProcessor": (rules.plain, _CROPPED),
    "ConditionalDetrImageProcessor": (detection_rules.padded_wholes, _BETWEEN_EDGES),
    "CohereCompassImageProcessor": (
        patch_rules.grid_of_patches,
        {
            **_PATCHES, "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
        },
    ),
    "Cohere2VisionImageProcessor": (
        cohere2_vision.tiles_of_fitting_grids,
        {
            **_PLAIN, **_CLIP, "resample": _BICUBIC, "size": {"height": 512, "width": 512},
            "crop_to_patches": True, "min_patches": 1, "max_patches": 12, "patch_size": 16,
        },
    ),
    "ConvNextImageProcessor": (
        convnext.cropped_below_384,
        {
            **_PLAIN, **_HALF, "resample": _BICUBIC, "size": {"shortest_edge": 384}, "crop_pct": 224 / 256,
            "default_to_square": False,
        },
    ),
    "Cosmos3EdgeImageProcessor": (
        cosmos3_edge.grid_of_pixels,
        {
            **_PATCHES, **_HALF, "size": {"shortest_edge": 256 * 256, "longest_edge": 4096 * 4096},
            "patch_size": 16, "temporal_patch_size": 1,
        },
    ),
    "DeepseekOcr2ImageProcessor": (
        deepseek_ocr2.smaller_tiles_and_whole,
        {
            **_PLAIN, **_HALF, "resample": _BICUBIC, "size": {"height": 1024, "width": 1024}, "tile_size": 768,
            "crop_to_patches": True, "min_patches": 2, "max_patches": 6, "background_color": (127, 127, 127),
        },
    ),
    "DeepseekVLHybridImageProcessor": (
        deepseek_vl_hybrid.long_edge_in_two_squares,
        {
            **_PADDED, "high_res_size": {"height": 1024, "width": 1024}, "high_res_resample": _BICUBIC,
            "high_res_image_mean": _CLIP["image_mean"], "high_res_image_std": _CLIP["image_std"],
        },
    ),
    "DeepseekVLImageProcessor": (rules.long_edge_in_square, _PADDED),
    "DeformableDetrImageProcessor": (detection_rules.padded_wholes, _BETWEEN_EDGES),
    "DetrImageProcessor": (detection_rules.padded_wholes, _BETWEEN_EDGES),
    "DeiTImageProcessor": (
        rules.plain,
        {
            **_PLAIN, **_HALF, "resample": _BICUBIC, "size": {"height": 256, "width": 256},
            "do_center_crop": True, "crop_size": {"height": 224, "width": 224},
        },
    ),
    "DonutImageProcessor": (
        donut.page,
        {**_PAGE, **_HALF, "size": {"height": 2560, "width": 1920}, "width_first": True},
    ),
    "DPTImageProcessor": (
        dpt.whole_multiples,
        {
            **_PLAIN, **_HALF, "resample": _BICUBIC, "size": {"height": 384, "width": 384},
            "ensure_multiple_of": 1, "keep_aspect_ratio": False,
        },
    ),
    "FuyuImageProcessor": (
        fuyu.patches_of_whole_lines,
        {
            **_PLAIN, **_HALF, "resample": _BILINEAR, "size": {"height": 1080, "width": 1920},
            "patch_size": {"height": 30, "width": 30}, "do_pad": True, "padding_value": 1.0,
        },
    ),
    "Gemma3ImageProcessor": (
        gemma3.pan_and_scan,
        {**_PLAIN, **_HALF, "resample": _BILINEAR, "size": {"height": 224, "width": 224}},
    ),
    "Gemma4ImageProcessor": (
        gemma4.placed_patches,
        {
            **_PLAIN, "do_normalize": False, "image_mean": (0.0, 0.0, 0.0), "image_std": (1.0, 1.0, 1.0),
            "resample": _BICUBIC, "size": {"height": 224, "width": 224}, "patch_size": 16, "merge_size": 1,
            "max_soft_tokens": 280, "pooling_kernel_size": 3,
        },
    ),
    "Gemma4UnifiedImageProcessor": (
        gemma4.placed_merged_patches,
        {
            **_PLAIN, "do_normalize": False, "image_mean": (0.0, 0.0, 0.0), "image_std": (1.0, 1.0, 1.0),
            "resample": _BICUBIC, "size": {"height": 224, "width": 224}, "patch_size": 16, "merge_size": 1,
            "max_soft_tokens": 280, "pooling_kernel_size": 3,
        },
    ),
    **dict.fromkeys(
        ("Glm46VImageProcessor", "Glm4vImageProcessor", "GlmgaImageProcessor"),
        (
            patch_rules.grid_of_frames,
            {
                **_PATCHES, "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000},
            },
        ),
    ),
    "EfficientNetImageProcessor": (
        efficientnet.divided_twice,
        {
            **_PLAIN, **_HALF, "resample": _BICUBIC, "size": {"height": 346, "width": 346},
            "crop_size": {"height": 289, "width": 289}, "rescale_offset": False, "include_top": True,
        },
    ),
    "Ernie4_5_VLMoeImageProcessor": (
        patch_rules.grid_of_patches,
        {
            **_PATCHES, "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 6177},
            "temporal_patch_size": 1,
        },
    ),
    "GLPNImageProcessor": (
        glpn.multiples_below,
        {
            **_PLAIN, **_HALF, "do_normalize": False, "resample": _BILINEAR,
            "size": {"height": 480, "width": 640}, "size_divisor": 32,
        },
    ),
    "GotOcr2ImageProcessor": (
        got_ocr2.tiles_of_one_canvas,
        {
            **_PLAIN, **_CLIP, "resample": _BICUBIC, "size": {"height": 384, "width": 384},
            "crop_to_patches": False, "min_patches": 1, "max_patches": 12,
        },
    ),
    "GraniteDoclingImageProcessor": (
        granite_docling.tiles_of_pages,
        {
            **_PLAIN, **_CLIP, "resample": _BICUBIC, "size": {"height": 512, "width": 512},
            "crop_to_patches": True, "min_patches": 1, "max_patches": 32, "fine_route": False,
            "dense_max_patches": 0, "dense_max_scale": 0.0, "dense_min_aspect": 0.0, "dense_max_aspect": 0.0,
        },
    ),
    "Idefics2ImageProcessor": (
        idefics2.wholes_or_parts,
        {
            **_PLAIN, **_HALF, "resample": _BILINEAR, "size": {"shortest_edge": 378, "longest_edge": 980},
            "default_to_square": False, "do_image_splitting": False, "do_pad": True,
        },
    ),
    "Idefics3ImageProcessor": (rules.tiles_and_whole, _IDEFICS3),
    "JanusImageProcessor": (rules.long_edge_in_square, _PADDED),
    "Kimi_K25ImageProcessor": (
        kimi_k25.padded_lines_of_patches,
        {
            **_PATCHES, **_HALF, "size": {"max_height": 512, "max_width": 512}, "max_patches": 16384,
        },
    ),
    "LevitImageProcessor": (
        rules.larger_and_cropped,
        {**_CROPPED, **_IMAGENET, "crop_pct": 224 / 256, "of_short_edges": True},
    ),
    "Lfm2VlImageProcessor": (
        lfm2.tiles_of_patches,
        {
            **_PLAIN, **_HALF, "resample": _BILINEAR, "size": {"height": 512, "width": 512}, "do_pad": True,
            "downsample_factor": 2, "do_image_splitting": True, "min_tiles": 2, "max_tiles": 10,
            "use_thumbnail": True, "min_image_tokens": 64, "max_image_tokens": 256, "encoder_patch_size": 16,
            "tile_size": 512, "max_pixels_tolerance": 2.0,
        },
    ),
    "Llama4ImageProcessor": (
        llama4.tiles_of_canvases_and_whole,
        {
            **_PLAIN, **_HALF, "resample": _BILINEAR, "size": {"height": 336, "width": 336}, "max_patches": 16,
            "resize_to_max_canvas": False,
        },
    ),
    "LlavaImageProcessor": (rules.square, {**_CROPPED, "do_pad": False}),
    "LlavaNextImageProcessor": (
        rules.tiles_of_resolutions,
        {
            **_CROPPED, "do_pad": True,
            "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
        },
    ),
    "LlavaOnevisionImageProcessor": (
        rules.tiles_of_resolutions,
        {
            **_PLAIN, **_CLIP, "resample": _BICUBIC, "size": {"height": 384, "width": 384}, "do_pad": True,
            "image_grid_pinpoints": [
                [384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)
            ],
        },
    ),
    **dict.fromkeys(
        ("MaskFormerImageProcessor", "Mask2FormerImageProcessor"),
        (
            detection_rules.padded_multiples_above,
            {**_BETWEEN_EDGES, "max_size": None, "size_divisor": 32},
        ),
    ),
    "MiniCPMOcrImageProcessor": (
        minicpm.whole_and_resized_slices,
        {
            **_PLAIN, **_HALF, "resample": _BICUBIC, "size": {"height": 448, "width": 448}, "patch_size": 14,
            "max_slice_nums": 9, "scale_resolution": 448, "slice_mode": True, "downsample_mode": "4x",
            "small_image_upsize": "always",
        },
    ),
    "MiniCPMV4_6ImageProcessor": (
        minicpm.whole_and_slices,
        {
            **_PLAIN, **_HALF, "resample": _BICUBIC, "size": {"height": 448, "width": 448}, "patch_size": 14,
            "max_slice_nums": 9, "scale_resolution": 448, "slice_mode": True, "downsample_mode": "16x",
        },
    ),
    "MiniMaxM3VLImageProcessor": (
        minimax_m3.grid_of_resized_patches,
        {
            **_PATCHES, "size": {"shortest_edge": 4 * 28 * 28, "longest_edge": 451_584},
        },
    ),
    "MobileViTImageProcessor": (
        mobilevit.blue_first,
        {
            **_CROPPED, "do_normalize": False, "crop_size": {"height": 256, "width": 256},
            "do_flip_channel_order": True,
        },
    ),
    **dict.fromkeys(
        ("MobileNetV1ImageProcessor", "MobileNetV2ImageProcessor"),
        (
            rules.plain,
            {**_CROPPED, **_HALF, "resample": _BILINEAR, "size": {"shortest_edge": 256}},
        ),
    ),
    "MllamaImageProcessor": (
        mllama.tiles_of_canvases,
        {
            **_PLAIN, **_HALF, "resample": _BILINEAR, "size": {"height": 224, "width": 224},
            "max_image_tiles": 4,
        },
    ),
    "Molmo2ImageProcessor": (
        molmo.whole_and_overlapping_crops,
        {
            **_PLAIN, **_HALF, "resample": _BILINEAR, "size": {"height": 378, "width": 378}, "patch_size": 14,
            "max_crops": 8, "overlap_margins": (4, 4), "pooling_size": (2, 2),
        },
    ),
    "MolmoImageProcessor": (
        molmo.whole_and_padded_crops,
        {
            **_PLAIN, **_CLIP, "resample": _BILINEAR, "size": {"height": 336, "width": 336}, "patch_size": 14,
            "max_crops": 12, "overlap_margins": (4, 4), "pooling_size": (2, 2),
        },
    ),
    "NemotronH_Omni_Reasoning_V3ImageProcessor": (
        radio.lines_of_float_patches,
        {
            **_PLAIN, **_CLIP, "resample": _BICUBIC, "size": {"height": 512, "width": 512}, "patch_size": 16,
            "merge_size": 1, "downsample_ratio": 0.5, "min_num_patches": 1024, "max_num_patches": 13312,
            "max_model_len": 16384,
        },
    ),
    "NougatImageProcessor": (
        donut.page_without_margin,
        {
            **_PAGE, **_IMAGENET,
            "size": {"height": 896, "width": 672}, "do_crop_margin": True,
        },
    ),
    "Ovis2ImageProcessor": (
        ovis2.whole_and_covering_tiles,
        {
            **_PLAIN, **_CLIP, "resample": _BICUBIC, "size": {"height": 384, "width": 384},
            "crop_to_patches": False, "min_patches": 1, "max_patches": 12, "use_covering_area_grid": True,
        },
    ),
    "OwlViTImageProcessor": (
        rules.plain,
        {
            **_PLAIN, **_CLIP, "resample": _BICUBIC, "size": {"height": 768, "width": 768}, "do_center_crop": False,
            "crop_size": {"height": 768, "width": 768},
        },
    ),
    "Owlv2ImageProcessor": (
        owlv2.squares,
        {**_PLAIN, **_CLIP, "resample": _BILINEAR, "size": {"height": 960, "width": 960}, "do_pad": True},
    ),
    "PPChart2TableImageProcessor": (
        rules.plain,
        {**_PLAIN, **_CLIP, "resample": _BICUBIC, "size": {"height": 1024, "width": 1024}},
    ),
    "PaddleOCRVLImageProcessor": (
        paddleocr_vl.lines_of_patches,
        {
            **_PATCHES, "size": {"shortest_edge": 384 * 384, "longest_edge": 1536 * 1536}, "temporal_patch_size": 1,
        },
    ),
    "PerceptionLMImageProcessor": (
        perception_lm.whole_and_filled_tiles,
        {
            **_PLAIN, **_HALF, "resample": _BICUBIC, "size": {"height": 448, "width": 448},
            "vision_input_type": "thumb+tile", "tile_size": 448, "max_num_tiles": 36,
        },
    ),
    "Phi4MultimodalImageProcessor": (
        phi4.whole_and_padded_tiles,
        {
            **_PLAIN, **_HALF, "resample": _BICUBIC, "size": {"height": 448, "width": 448}, "patch_size": 14,
            "dynamic_hd": 36,
        },
    ),
    "PixtralImageProcessor": (
        pixtral.whole_patches,
        {
            **_PLAIN, **_CLIP, "resample": _BICUBIC, "size": {"longest_edge": 1024},
            "patch_size": {"height": 16, "width": 16}, "do_pad": True,
        },
    ),
    "Qwen2VLImageProcessor": (
        patch_rules.grid_of_patches,
        {
            **_PATCHES, "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
        },
    ),
    "PoolFormerImageProcessor": (
        rules.larger_and_cropped, {**_CROPPED, **_IMAGENET, "crop_pct": 0.9},
    ),
    "PvtImageProcessor": (
        rules.plain,
        {**_PLAIN, **_IMAGENET, "resample": _BICUBIC, "size": {"height": 224, "width": 224}},
    ),
    "RTDetrImageProcessor": (
        detection_rules.padded_wholes,
        {
            **_BETWEEN_EDGES, "size": {"height": 640, "width": 640}, "max_size": None, "do_normalize": False,
            "do_pad": False,
        },
    ),
    "SamImageProcessor": (
        sam.padded_squares,
        {
            **_PLAIN, **_IMAGENET, "resample": _BILINEAR, "size": {"longest_edge": 1024}, "do_pad": True,
            "pad_size": {"height": 1024, "width": 1024},
        },
    ),
    "SegformerImageProcessor": (
        segformer.resized,
        {**_PLAIN, **_IMAGENET, "resample": _BILINEAR, "size": {"height": 512, "width": 512}},
    ),
    "SiglipImageProcessor": (
        rules.plain,
        {
            **_PLAIN, **_HALF, "resample": _BICUBIC, "size": {"height": 224, "width": 224},
            "default_to_square": False,
        },
    ),
    "SmolVLMImageProcessor": (rules.tiles_and_whole, _IDEFICS3),
    "Step3p7ImageProcessor": (
        step3p7.parts_and_whole,
        {
            **_PLAIN, **_CLIP, "resample": _BILINEAR, "size": {"height": 728, "width": 728}, "patch_size": 504,
            "max_image_size": 3024,
        },
    ),
    "Swin2SRImageProcessor": (
        swin2sr.reflected_windows,
        {**_PLAIN, **_HALF, "do_normalize": False, "do_pad": True, "size": {"height": 8, "width": 8}},
    ),
    "TimmWrapperImageProcessor": (
        timm_wrapper.scaled_and_cropped,
        {
            **_PLAIN, **_IMAGENET, "resample": _BICUBIC,
            "size": {"height": 224, "width": 224}, "crop_pct": 0.875, "crop_mode": "center",
        },
    ),
    "VideoLlama3ImageProcessor": (
        video_llama_3.grid_with_merge_sizes,
        {
            **_PATCHES, **_HALF, "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
            "temporal_patch_size": 1, "merge_size": 1,
        },
    ),
    "VideoLlavaImageProcessor": (rules.plain, _CROPPED),
    "ViTImageProcessor": (
        rules.plain,
        {**_PLAIN, **_HALF, "resample": _BILINEAR, "size": {"height": 224, "width": 224}},
    ),
    "VitPoseImageProcessor": (
        vitpose.people,
        {
            **_PLAIN, **_IMAGENET, "size": {"height": 256, "width": 192}, "do_affine_transform": True,
            "normalize_factor": 200.0,
        },
    ),
    "YolosImageProcessor": (detection_rules.padded_multiples, _BETWEEN_EDGES),
    "ZoeDepthImageProcessor": (
        zoedepth.reflected_multiples,
        {
            **_PLAIN, **_HALF, "resample": _BILINEAR, "size": {"height": 384, "width": 512}, "do_pad": True,
            "border_factor": 3, "ensure_multiple_of": 1 / 32, "keep_aspect_ratio": True,
        },
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ImageProcessor:
    """Image processor: how images become the arrays that a model takes.

    Attributes:
        name: transformers' class with the same results.
        settings: All of its settings, with sizes by name.
    """

    name: str
    settings: Mapping[str, Any]

    def __call__(
        self, images: Sequence[ImageSource], limits: ImageLimits = LIMITS
    ) -> dict[str, Any]:
        """Return the arrays of the images of one request, by the names of the model's inputs.

        Raises:
            MediaError: If there are no images, one cannot be read, or its shape is not supported by the model.
        """
        if not images:
            raise MediaError(
                "Cannot process no images: the list is empty. Expected at least one. Give a path or a Pillow image."
            )
        return self.arrays([read_image(image, limits) for image in images])

    def arrays(self, images: Sequence[Pixels]) -> dict[str, Any]:
        """Return the arrays of images that have been read; only the shapes of `blank` images count.

        Raises:
            MediaError: If the shape of an image is not supported by the model.
        """
        rule, _ = PROCESSORS[self.name]
        try:
            return rule(images, self.settings)
        except ZooError:
            raise
        except _IMPOSSIBLE as error:
            raise CheckpointError(
                f"Cannot process an image as {self.name} does: {type(error).__name__}: {error}. Expected settings that "
                "go together. Correct the processor's JSON."
            ) from error


def image_processor(
    document: Mapping[str, Any], default: str | None = None, **changes: Any
) -> ImageProcessor:
    """Return the processor that a JSON configures.

    Args:
        document: The content of `preprocessor_config.json` or `processor_config.json`.
        default: The kind to use if the document names none, as in old checkpoints, or a class of the checkpoint's
            code.
        **changes: Settings that the model's processor overrides, such as `crop_to_patches=True`.

    Raises:
        UnsupportedModelError: If this kind is not supported.
        CheckpointError: If a setting has an invalid value.
    """
    document = document.get("image_processor") or document
    name = document.get("image_processor_type") or document.get("feature_extractor_type") or default
    if name is None:
        raise CheckpointError(
            "Cannot preprocess images for this checkpoint: its processor names no `image_processor_type`. "
            f"Expected one of {', '.join(PROCESSORS)}. Add the name to preprocessor_config.json."
        )
    name = str(name).removesuffix("Pil").removesuffix("Fast")
    name = name.replace("FeatureExtractor", "ImageProcessor")
    if name not in PROCESSORS and default and document.get("auto_map"):
        name = default
    if name not in PROCESSORS:
        raise UnsupportedModelError(
            f"Images cannot be processed as {name!r} does. Expected one of {', '.join(PROCESSORS)}. Process them "
            "with transformers, and give the arrays."
        )
    _, defaults = PROCESSORS[name]
    given = {key: value for key, value in {**document, **changes}.items() if value is not None}
    given = {**{new: given[old] for old, new in _FORMER.items() if old in given}, **given}
    return ImageProcessor(name, standard({**defaults, **given}))


def load_image_processor(
    folder: Path, default: str | None = None, **changes: Any
) -> ImageProcessor:
    """Read the processor of a checkpoint's or a package's folder; see `image_processor`."""
    paths = {file: folder / file for file in (*FILES, _CONFIG)}
    there = {file: path for file, path in paths.items() if path.is_file()}
    return read_image_processor(there, default, **changes)


def read_image_processor(
    files: Mapping[str, Path], default: str | None = None, **changes: Any
) -> ImageProcessor:
    """Read the processor among a checkpoint's small files, by their names; see `image_processor`."""
    documents = {}
    for file in FILES:
        if path := files.get(file):
            documents[file] = read_json(path)
    # A recent transformers saves the image processor's settings in processor_config.json; older versions do not.
    settings = [
        document
        for file, document in documents.items()
        if file == FILES[-1] or "image_processor" in document
    ]
    if path := files.get(_CONFIG):
        config = read_json(path)
        config = read_config(path) if config.get("auto_map") else config
        by_timm, by_code = config.get("pretrained_cfg"), config.get("image_processor")
        if isinstance(by_code, dict):  # see `Recipe.alias`
            settings = [by_code]
        elif not settings and isinstance(by_timm, dict):
            settings = [timm_wrapper.settings_of_timm(by_timm)]
    if not settings:
        raise CheckpointError(
            "Cannot preprocess images for this checkpoint: it has no settings of a processor. Expected "
            f"{FILES[-1]}, or {FILES[1]} with `image_processor`. Get the whole checkpoint."
        )
    return image_processor(settings[0], default, **changes)


#: Former names of settings, in checkpoints of Nemotron and OWL-ViT.
_FORMER = {"norm_mean": "image_mean", "norm_std": "image_std", "rescale": "do_rescale"}
_SIZES = (
    {"height", "width"}, {"shortest_edge"}, {"shortest_edge", "longest_edge"}, {"longest_edge"},
    {"max_height", "max_width"},
)  # fmt: skip


def standard(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings in one form: sizes by name, and old names replaced."""
    square = settings["default_to_square"]
    size = settings["size"]
    if settings.get("width_first") and isinstance(size, list | tuple):
        size = size[::-1]
    if isinstance(size, Mapping):  # `min_pixels` and `max_pixels` are old names of Qwen2-VL's
        old = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
        named = {old.get(key, key): value for key, value in size.items() if value is not None}
        named |= {old[key]: settings[key] for key in old if key in settings}
        size = named
    for key, value, squared in (
        ("size", size, square),
        ("crop_size", settings.get("crop_size"), True),
        ("pad_size", settings.get("pad_size"), True),
        ("high_res_size", settings.get("high_res_size"), True),
        ("patch_size", settings.get("patch_size"), True),
    ):
        if value is not None and not (key == "patch_size" and "merge_size" in settings):
            settings[key] = _named_size(key, value, squared)
    for key in ("image_mean", "image_std"):
        values = settings[key]
        numbers = [values] if isinstance(values, int | float) else values
        if len(numbers) not in (1, 3) or not all(
            isinstance(number, int | float) for number in numbers
        ):
            raise CheckpointError(
                f"Cannot process images: `{key}` is {values!r}. Expected 3 numbers, of red, green and blue. Correct "
                "the processor's JSON."
            )
        settings[key] = tuple(numbers) * (3 // len(numbers))
    return settings


def _named_size(key: str, value: Any, square: bool) -> dict[str, int]:
    named = value
    if isinstance(value, int):
        named = {"height": value, "width": value} if square else {"shortest_edge": value}
    elif isinstance(value, list | tuple) and len(value) == 2:
        named = {"height": value[0], "width": value[1]}
    if isinstance(named, Mapping):
        named = {name: number for name, number in named.items() if number is not None}
        if set(named) in _SIZES and all(
            isinstance(number, int) and number > 0 for number in named.values()
        ):
            return named
    raise CheckpointError(
        f"Cannot process images: `{key}` is {value!r}. Expected a number of pixels, a pair of them, or height and "
        "width, shortest_edge, longest_edge or max_height and max_width by name. Correct the processor's JSON."
    )

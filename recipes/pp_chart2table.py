# SPDX-License-Identifier: Apache-2.0
"""PP-Chart2Table, `transformers.models.pp_chart2table`: GOT-OCR2 that reads charts."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .got_ocr2 import RECIPE as GOT_OCR2

RECIPE = replace(
    GOT_OCR2,
    model_type="pp_chart2table",
    special="GOT-OCR2, trained on charts.",
    tiny=(Tiny(config=GOT_OCR2.tiny[0].config),),
)

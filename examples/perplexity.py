# SPDX-License-Identifier: Apache-2.0
"""Perplexity: what a package makes of a text, beside Hugging Face's model in float32.

python examples/perplexity.py [MODEL FILE]   # default: examples/tiny-llama, on the text it was not trained on
"""

import sys
from pathlib import Path

import qeff_zoo
from qeff_zoo.pipeline import comparison
from qeff_zoo.validation import perplexity

tiny = Path(__file__).parent / "tiny-llama"
model_name, file = sys.argv[1:] or (tiny, tiny / "held_out.txt")

package = qeff_zoo.build(model_name, weights="int8", ctx_len=128, batch_size=4)
text = Path(file).read_text(encoding="utf-8")[:2000]
scoring = perplexity.prepare(package, text, window=128, stride=64, batch_size=4)
print(comparison.compare({"int8": package}, scoring))

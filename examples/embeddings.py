# SPDX-License-Identifier: Apache-2.0
"""Embeddings: pooling in the graph, and several sequence lengths, of which each text takes the shortest that holds it.

python examples/embeddings.py MODEL   # such as sentence-transformers/all-MiniLM-L6-v2
"""

import sys

import numpy as np
from transformers import AutoTokenizer

from qeff_zoo import QEFFAutoModel

(model_name,) = sys.argv[1:]
texts = ["the quick brown fox", "a lazy dog", "the fox is quick"]

model = QEFFAutoModel.from_pretrained(model_name, pooling="mean")
model.compile(seq_len=[16, 64], batch_size=1, num_cores=16)
tokenizer = AutoTokenizer.from_pretrained(model_name)
vectors = np.concatenate(
    [model.generate(tokenizer(text, return_tensors="pt"))["output"] for text in texts]
)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
print("cosine similarities:", *np.round(vectors @ vectors.T, 3), sep="\n")

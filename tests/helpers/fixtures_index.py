# SPDX-License-Identifier: Apache-2.0
"""What several tests of index and others use."""

from dataclasses import replace

from qeff_zoo.hub.entries import Entry

ENTRY = Entry(
    path="packages/ort-int4-pl128-cl4096-bs1/0123456789abcdef",
    manifest="a" * 64,
    model="org/tiny",
    model_type="llama",
    revision="b" * 40,
    license="apache-2.0",
    size=12_345,
    finished="2026-11-20T10:00:00Z",
    validated="checkpoint",
    signed=True,
    axes={"target": "ort", "weights": "int4", "ctx_len": 4096, "seq_lens": [32, 128], "on": True},
    needs={"onnxruntime": ">=1.31"},
    tested={"onnxruntime": "1.31.1"},
)


OTHER = replace(ENTRY, path="packages/ort-int4-pl128-cl8192-bs1/fedcba9876543210")

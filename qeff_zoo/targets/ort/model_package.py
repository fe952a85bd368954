# SPDX-License-Identifier: Apache-2.0
"""A package as ONNX Runtime's own model package, which `OrtApi::GetModelPackageApi` opens from C and C++.

In: a package's manifest. Out: model_package/manifest.json, which leads to the graphs that are there anyway. It has a
folder of its own because both formats call their first file manifest.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "model_package"


def write(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write model_package/manifest.json: a component for each program, with a variant for the CPU.

    Args:
        folder: Folder of the package.
        manifest: Without `files`.
    """
    components = {
        program["role"]: {
            "variants": {
                # No `device`: ONNX Runtime 1.31 finds none of the CPU's where its provider was appended by name.
                "cpu": {
                    "variant_directory": "..",
                    "ep": "CPUExecutionProvider",
                    "executor_info": {"ort": {"model_file": program["path"]}},
                }
            }
        }
        for program in manifest["programs"]
    }
    # "installed": paths may lead out of the folder.
    content = {"schema_version": "1.0", "layout": "installed", "components": components}
    (folder / FOLDER).mkdir()
    (folder / FOLDER / "manifest.json").write_text(
        json.dumps(content, indent=1) + "\n", encoding="utf-8"
    )

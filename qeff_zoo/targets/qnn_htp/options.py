# SPDX-License-Identifier: Apache-2.0
"""Options of a build for target `qnn-htp`."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from qeff_zoo.package.option import option

#: HTP versions of the systems on a chip that onnxruntime-qnn 2.7 supports, by Qualcomm's model number.
SOC_MODELS: Mapping[int, str] = MappingProxyType({43: "v73", 57: "v75", 69: "v79", 87: "v81"})


@dataclass(frozen=True, kw_only=True)
class HtpOptions:
    """Fields of `Request` for target `qnn-htp`."""

    soc_model: int | None = option(
        "target.soc_model",
        f"model number of the system on a chip: {', '.join(f'{soc} ({arch})' for soc, arch in SOC_MODELS.items())}"
        " (default: 43)",
        targets=("qnn-htp",),
        allowed=tuple(SOC_MODELS),
        default=43,
        short="soc",
    )

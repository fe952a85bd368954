# SPDX-License-Identifier: Apache-2.0
"""What can be chosen about a build for target `qnn-aic`: some flags of `qaic`, and a file in QEfficient's form."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from qeff_zoo.package.option import JsonText, option


@dataclass(frozen=True, kw_only=True)
class QnnAicOptions:
    """Fields of `Request` that are for target `qnn-aic` alone."""

    qnn_config: JsonText | None = option(
        "target.qnn_config",
        "JSON file of additional arguments for QNN's tools, in QEfficient's format",
        targets=("qnn-aic",),
    )


#: Key of the backend's file -> the choice that it says.
SPELLED: Mapping[str, str] = MappingProxyType(
    {
        "compiler_num_of_cores": "num_cores",
        "compiler_mxfp6_matmul_weights": "mxfp6_matmul",
        "compiler_mxint8_mdp_io": "allow_mxint8_mdp_io",
        "compiler_enable_depth_first": "aic_enable_depth_first",
        "compiler_max_out_channel_split": "mos",
        "compiler_stat_level": "stats_level",
        "compiler_stats_batch_size": "stats_batchsize",
    }
)

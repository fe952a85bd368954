# SPDX-License-Identifier: Apache-2.0
"""What a package of Cloud AI 100 was compiled for, as flags of vllm-qaic.

In: a package. Out: its sizes, devices and precision, which are fixed in its QPCs.
"""

from collections.abc import Mapping
from typing import Any

from qeff_zoo.errors import PackageError
from qeff_zoo.package import Package
from qeff_zoo.targets.qaic.options import SAMPLER, TOP_K_IDS

#: Choices of a sampler, as vllm-qaic calls them.
_SAMPLER = {name: name if name == "max_top_k_ids" else f"aic_{name}" for name in SAMPLER}
_SYMBOLS = ("batch_size", "full_batch_size", "seq_len", "ctx_len", "num_logits_to_keep")


class Compiled:
    """What a package was compiled for, in vllm-qaic's words.

    Args:
        package: Package of target `qaic` or `qnn-aic`.
        folders: Role -> folder of its QPC.
    """

    def __init__(self, package: Package, folders: Mapping[str, str]) -> None:
        self.package, self.folders = package, folders
        manifest = package.manifest
        # All programs of a package are compiled alike.
        self._flags = package.programs[0].flags
        every = [entry for program in package.programs for entry in program.specializations]
        symbols = [entry["symbols"] for entry in every]
        self._sizes = {
            name: sorted({int(entry[name]) for entry in symbols if name in entry})
            for name in _SYMBOLS
        }
        states = [state for program in manifest["programs"] for state in program["states"]]
        self.mxint8_kv_cache = any(state["dtype"] == "mxint8" for state in states)
        self.mxfp6 = bool(self._flags.get("mxfp6_matmul"))

    def largest(self, symbol: str) -> int:
        """Return the largest size that a specialization sets a symbol to."""
        if not self._sizes[symbol]:
            raise refused(self.package, f"sets no {symbol!r}; expected one. Build it again.")
        return self._sizes[symbol][-1]

    @property
    def seq_lens(self) -> list[int]:
        return self._sizes["seq_len"]

    @property
    def num_speculative_tokens(self) -> int:
        """Draft tokens that one decode call checks: it returns logits after each of them and of the token before."""
        return max(self._sizes["num_logits_to_keep"], default=1) - 1

    @property
    def slots(self) -> int:
        """Requests at a time."""
        if self._sizes["full_batch_size"]:
            return self._sizes["full_batch_size"][-1]
        if (batch := self.largest("batch_size")) > 1:
            raise refused(
                self.package,
                f"was compiled for batches of {batch} that begin together; vllm-qaic expects to begin requests one by "
                f"one. Build it with --full-batch-size {batch}.",
            )
        return 1

    def planned(self, part: str, field: str) -> Any:
        """Look a field of the plan up; None where it has none."""
        value = self.package.manifest["spec"].get(part)
        return value.get(field) if isinstance(value, Mapping) else None

    def devices(self, after: int = 0) -> list[int]:
        """Return the ids of as many devices as it was compiled for."""
        number = self._flags.get("num_devices", 1)
        if not isinstance(number, int) or number < 1:
            raise refused(
                self.package,
                f"was compiled for {number!r} devices; expected a number. Build it again.",
            )
        return list(range(after, after + number))

    def config(self, **changes: Any) -> dict[str, Any]:
        """Return the `override_qaic_config` of a process."""
        cores = {"num_cores": self._flags["num_cores"]} if "num_cores" in self._flags else {}
        return {"device_group": self.devices(), **cores, **self._sampler(), **changes}

    def _sampler(self) -> dict[str, int]:
        """Return the argument for sampling on devices, which vllm-qaic requires."""
        argument = {
            _SAMPLER[name]: int(self._flags[name]) for name in SAMPLER if self._flags.get(name)
        }
        return {"max_top_k_ids": TOP_K_IDS, **argument} if argument else {}

    def model(self) -> list[str]:
        """Return the model argument: the package has the config and tokenizer, and weights are not needed."""
        name = self.package.name  # as its builder chose it; the answer is for a terminal
        return [
            str(self.package.path),
            *(["--served-model-name", name] if name.isprintable() else []),
        ]

    def precision(self) -> list[str]:
        """Return the flags of weights and cache."""
        weights = ["--quantization", "mxfp6"] if self.mxfp6 else []
        return [*weights, *(["--kv-cache-dtype", "mxint8"] if self.mxint8_kv_cache else [])]

    def shapes(self) -> list[str]:
        """Return the flags of a decoder's sizes."""
        return [
            *("--max-model-len", str(self.largest("ctx_len"))),
            *("--max-num-seqs", str(self.slots)),
            *("--long-prefill-token-threshold", str(self.largest("seq_len"))),
        ]


def refused(package: Package, why: str) -> PackageError:
    """Explain why vllm-qaic cannot serve a package."""
    return PackageError(f"Package {str(package.path)!r} {why}")

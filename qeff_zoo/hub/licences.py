# SPDX-License-Identifier: Apache-2.0
"""Whether a package of a model may be shown to everyone.

In: a manifest. Out: a `Licence`, the verdict in words. The Hub is asked one thing only: whether the source is gated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub.hub_calls import hub_call
from qeff_zoo.package.manifest import source_in

# As the Hub names them, which is as SPDX does, in small letters, for all but a few families.
_REDISTRIBUTABLE = """
afl-3.0 apache-2.0 artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0 bigscience-openrail-m bsd bsd-2-clause
bsd-3-clause bsd-3-clause-clear bsl-1.0 cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0
cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m ecl-2.0 etalab-2.0 isc mit mpl-2.0
ms-pl ncsa odc-by openmdw-1.0 openrail openrail++ pddl postgresql unlicense wtfpl zlib
"""
# Some of these allow it too, under conditions that a person must look at.
_RESTRICTED = """
agpl-3.0 apple-amlr apple-ascl c-uda cc cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0
cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 deepfloyd-if-license epl-1.0 epl-2.0 eupl-1.1 eupl-1.2
fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 h-research intel-research lgpl lgpl-2.1 lgpl-3.0
lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c odbl ofl-1.1 osl-3.0 other unknown
"""

#: Licences under which everyone may have a copy of weights that were changed in form.
REDISTRIBUTABLE = frozenset(_REDISTRIBUTABLE.split())
#: All that the Hub knows by name.
KNOWN = REDISTRIBUTABLE | frozenset(_RESTRICTED.split())


@dataclass(frozen=True)
class Licence:
    """Whether a package may be published for everyone to see.

    Args:
        public: Whether it may.
        reason: Why, or why not, in words that end a sentence.
    """

    public: bool
    reason: str


def licence_of(manifest: Mapping[str, Any], *, ask: bool) -> Licence:
    """Judge what the source's licence allows.

    Args:
        manifest: Of the package, checked.
        ask: Ask the Hub whether the source is gated, if the licence does not forbid it anyway.
    """
    stated = manifest["license"]
    if stated is None:
        return Licence(False, "its source states no licence")
    if stated.lower() not in REDISTRIBUTABLE:
        return Licence(
            False,
            f"its source's licence {stated!r} is not known to allow everyone a copy",
        )
    model_id = source_in(manifest).get("model_id")
    if model_id is None or not ask:
        return Licence(True, f"its source's licence {stated!r} allows it")
    if closed := _closed(model_id):
        return Licence(False, closed)
    return Licence(True, f"its source's licence {stated!r} allows it, and {model_id} is not gated")


def _closed(model_id: str) -> str | None:
    """Say why a source on the Hub is not open to everyone; None if it is."""
    unknown = f"it is not known whether {model_id} is gated"
    from huggingface_hub import HfApi

    try:
        info = hub_call(f"ask about {model_id!r}", lambda: HfApi().model_info(model_id))
    except RemoteError as error:
        return f"{unknown}: {error}"
    if info.private:
        return f"{model_id} is private"
    if info.gated:
        return f"{model_id} is gated: whoever wants its weights must accept conditions first"
    return None

"""All custom resource definitions as text, for `kubectl apply` and for the chart."""

import yaml

from epochal.resources.crd import stream_crd
from epochal.resources.relay_crd import relay_crd

DEFINITIONS = {"streams": stream_crd, "relays": relay_crd}
"""The functions that return the definitions, by the plural of the kind."""


def crd_text(plural: str) -> str:
    """One definition as YAML text, as it is in the chart."""
    document = DEFINITIONS[plural]()
    kind = document["spec"]["names"]["kind"]
    return f"# Made by `epochal-operator crd` from the model of a {kind}; do not edit.\n" + yaml.safe_dump(
        document, sort_keys=False, width=120, allow_unicode=True
    )


def all_crds() -> str:
    """All definitions, as one YAML text of several documents."""
    return "---\n".join(map(crd_text, DEFINITIONS))

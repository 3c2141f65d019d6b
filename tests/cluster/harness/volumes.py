"""A provisioner of volumes: each claim of the class `standard` gets a directory, which is removed with it.

Apart from Kubernetes' own host paths, to whose directories only root can write: `local` volumes take on the group of a
pod (`fsGroup`), as disks of a cloud do. It looks at everything twice a second and keeps nothing in mind, so it may be
killed at any time.
"""

import json
import shutil
import ssl
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tests.cluster.harness.settings import NODE, VOLUMES, Layout

_INTERVAL = 0.5
_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
_MADE_BY = "pv.kubernetes.io/provisioned-by"
_CLAIMS, _ALL = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"


class Api:
    """The API server, as far as this needs it."""

    def __init__(self, layout: Layout) -> None:
        """Talk to the node's API server as the user `volumes`."""
        self._url = layout.url
        self._trust = ssl.create_default_context(cafile=str(layout.directory / "keys" / "ca.crt"))
        self._trust.load_cert_chain(*layout.key("volumes"))

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the document that answers it; HTTPError and other OSErrors are raised."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, content, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, context=self._trust, timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
            return document


def main(layout: Layout) -> None:
    """Make and remove volumes for as long as the process lives."""
    api = Api(layout)
    while True:
        try:
            tend(api, layout.directory / "volumes")
        except OSError as error:  # the API server is away
            print(f"tried again soon: {error}", flush=True)
        time.sleep(_INTERVAL)


def tend(api: Api, directory: Path) -> None:
    """Make what claims wait for, remove what none has any more."""
    for claim in api.call("GET", _CLAIMS)["items"]:
        annotations = claim["metadata"].get("annotations", {})
        if annotations.get(_PROVISIONER) == VOLUMES and "volumeName" not in claim["spec"]:
            _provide(api, claim, directory)
    for volume in api.call("GET", _ALL)["items"]:
        ours = volume["metadata"].get("annotations", {}).get(_MADE_BY) == VOLUMES
        spec = volume["spec"]
        if ours and volume["status"]["phase"] == "Released" and spec["persistentVolumeReclaimPolicy"] == "Delete":
            shutil.rmtree(spec["local"]["path"], ignore_errors=True)
            api.call("DELETE", f"{_ALL}/{volume['metadata']['name']}")


def _provide(api: Api, claim: dict[str, Any], directory: Path) -> None:
    name = f"pvc-{claim['metadata']['uid']}"
    path = directory / name
    path.mkdir(parents=True, exist_ok=True)
    try:
        api.call("POST", _ALL, _volume(name, claim, path))
        print(f"made {name} for {claim['metadata']['namespace']}/{claim['metadata']['name']}", flush=True)
    except HTTPError as error:
        if error.code != 409:  # it is there already, and about to be bound
            raise


def _volume(name: str, claim: dict[str, Any], path: Path) -> dict[str, Any]:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    wanted = {key: claim["metadata"][key] for key in ("name", "namespace", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {_MADE_BY: VOLUMES}},
        "spec": {
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "accessModes": claim["spec"]["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": claim["spec"]["storageClassName"],
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **wanted},
        },
    }


if __name__ == "__main__":
    main(Layout(Path(sys.argv[1]), int(sys.argv[2])))

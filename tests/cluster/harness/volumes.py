"""A provisioner of volumes: each claim of the class `standard` gets a directory, which is removed with it.

It makes `local` volumes and not host paths, to whose directories only root can write: `local` volumes take the group of
a pod (`fsGroup`), as a cloud's disks do. It reads everything twice a second and keeps no state, so it may be killed at
any time.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from tests.cluster.harness.looking import Api, ApiError, repeat
from tests.cluster.harness.settings import NODE, VOLUMES, Layout

_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
_MADE_BY = "pv.kubernetes.io/provisioned-by"
_CLAIMS, _ALL = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"


def tend(api: Api, directory: Path) -> None:
    """Make the volumes that claims wait for, and remove those that no claim has any more."""
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
    except ApiError as error:
        if error.code != 409:  # the volume is there already, and will be bound soon
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
    node = Layout(Path(sys.argv[1]), int(sys.argv[2]))
    repeat(lambda api: tend(api, node.directory / "volumes"), node)

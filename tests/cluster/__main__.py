"""`python -m tests.cluster up|down|build [--tier api|node]`, for `make cluster-up`, `cluster-down` and others."""

import argparse
import sys

from tests.cluster.harness import apiserver, building, node
from tests.cluster.harness.building import BuildError, UnfitError
from tests.cluster.harness.programs import NotReadyError
from tests.cluster.harness.removal import RemainsError


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster")
    parser.add_argument("action", choices=("up", "down", "build"))
    parser.add_argument("--tier", choices=("api", "node"), default="node", help="api: the API alone; node: all of it")
    parser.add_argument("--controllers", action="store_true", help="with tier api: the controller manager too")
    arguments = parser.parse_args()
    try:
        return _do(arguments.action, arguments.tier, arguments.controllers)
    except (UnfitError, BuildError, NotReadyError, RemainsError) as error:
        print(error, file=sys.stderr)
        return 1


def _do(action: str, tier: str, controllers: bool) -> int:
    if action == "build":
        building.kube()
        building.kubectl()
        if tier == "node":
            building.pause()
            building.coredns()
    elif action == "down":
        apiserver.down()
        node.down()
    else:
        server = node.up() if tier == "node" else apiserver.up(controllers=controllers)
        print(f"ready\nexport KUBECONFIG={server.kubeconfig}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

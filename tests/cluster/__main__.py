"""`python -m tests.cluster up|down|build [--tier api|node]`, for `make cluster-up`, `cluster-down` and others."""

import argparse
import sys

from tests.cluster.harness import apiserver, before, building, node, progress
from tests.cluster.harness.building import BuildError, UnfitError
from tests.cluster.harness.programs import NotReadyError
from tests.cluster.harness.progress import CommandError
from tests.cluster.harness.removal import RemainsError
from tests.version_before import NoHistoryError


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster")
    parser.add_argument("action", choices=("up", "down", "build"))
    parser.add_argument("--tier", choices=("api", "node"), default="node", help="api: the API alone; node: all of it")
    parser.add_argument("--controllers", action="store_true", help="with tier api: the controller manager too")
    parser.add_argument("--images", action="store_true", help="with build: our images too, beside the programs")
    parser.add_argument("--before", action="store_true", help="with build: the images of the version before, alone")
    arguments = parser.parse_args()
    try:
        return _do(arguments)
    except (UnfitError, BuildError, CommandError, NotReadyError, RemainsError) as error:
        print(error, file=sys.stderr)
        return 1


def _do(arguments: argparse.Namespace) -> int:
    action, tier = arguments.action, arguments.tier
    if action == "build" and arguments.before:
        try:
            before.built()
        except NoHistoryError as error:  # the test that needs them decides whether it can do without
            _say(str(error))
    elif action == "build" and arguments.images:
        progress.build((), tier, _say)
    elif action == "build":
        building.kube()
        building.kubectl()
        if tier == "node":
            building.pause()
            building.coredns()
    elif action == "down":
        apiserver.down()
        node.down()
    else:
        progress.build(None, tier, _say)
        server = node.up() if tier == "node" else apiserver.up(controllers=arguments.controllers)
        print(f"ready\nexport KUBECONFIG={server.kubeconfig}")
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

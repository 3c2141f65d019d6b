"""`python -m tests.cluster up|down|build [--tier api|node]`: what `make cluster-up` and `make cluster-down` run."""

import argparse
import sys

from tests.cluster.harness import apiserver, building


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster")
    parser.add_argument("action", choices=("up", "down", "build"))
    parser.add_argument("--tier", choices=("api", "node"), default="node", help="api: the API alone; node: all of it")
    parser.add_argument("--controllers", action="store_true", help="with tier api: the controller manager too")
    arguments = parser.parse_args()
    if arguments.action == "build":
        building.kube()
        building.kubectl()
    elif arguments.action == "down":
        apiserver.down()
    else:
        server = apiserver.up(controllers=arguments.controllers)
        print(f"ready\nexport KUBECONFIG={server.kubeconfig}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/bin/bash
# Spark runs this in an executor that is to leave (spark.decommission.enabled): it tells the executor, which is process 1
# as the entry point gave its place to it, and waits for it.
# spark.kubernetes.decommission.script=/opt/spark/decommission.sh
set -uo pipefail

kill -PWR 1
timeout 60 tail --pid=1 -f /dev/null

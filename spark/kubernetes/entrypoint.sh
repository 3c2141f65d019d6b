#!/bin/bash
# Starts what Spark asks for in a pod: `driver ...` or `executor`, by the environment that Spark sets; anything else runs
# as it is. The package of PySpark brings no such script; the names of the variables are Spark's (its images have a
# similar one). The process takes this shell's place, so that it gets SIGTERM itself.
set -euo pipefail

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
classpath=${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*
[ -z "${HADOOP_CONF_DIR:-}" ] || classpath=$HADOOP_CONF_DIR:$classpath
[ -z "${SPARK_CONF_DIR:-}" ] || classpath=$SPARK_CONF_DIR:$classpath
[ -z "${SPARK_EXTRA_CLASSPATH:-}" ] || classpath=$classpath:$SPARK_EXTRA_CLASSPATH
classpath=$classpath:$PWD # files that Spark sends there

case "${1:-}" in
driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client "$@"
    ;;
executor)
    shift
    options=()
    while IFS= read -r name; do
        options+=("${!name}")
    done < <(compgen -e | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n)
    exec "$java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "${@:-bash}"
    ;;
esac

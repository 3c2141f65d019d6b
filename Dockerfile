# The images of Epochal, one target each. At the root of the repository:
#
#   docker build --target catalog -t epochal-catalog .          also: publisher, operator, toolbox
#   docker build --target spark -t epochal-spark --build-arg BASE=... .
#
# `make images` builds all. Arguments:
#
#   BASE         the image to run on: any with Python 3.11 or newer; for Spark with Java 17 or newer too, so Spark has no default
#   BUILD_BASE   the image to build on: the same Python at the same path, with its venv module, and with a C compiler and
#                Python's headers where the protocol is compiled; BASE if only that is given
#   COMPILED     1 or 0: whether the protocol is compiled; by default in publisher and spark, which carry data
#   EXTRAS       what Spark's image can do; "spark tracing demo" adds the flights of the demo
#   VERSION, REVISION   labels
#
# All that the images can share comes first and knows no component. A builder that skips the stages which its target does
# not need (BuildKit; buildah 1.28 or newer) builds each stage once for all images.
ARG BASE
ARG BUILD_BASE=${BASE:-docker.io/library/python:3.13}
ARG COMPILED

# --- the versions that were tested, of what each component needs -----------------------------------------------------
FROM ${BUILD_BASE} AS locks
WORKDIR /src
COPY requirements.lock pyproject.toml ./
COPY tools/component_lock.py tools/
RUN python3 tools/component_lock.py build > /build.lock \
    && python3 tools/component_lock.py compiler > /compiler.lock \
    && python3 tools/component_lock.py catalog > /catalog.lock \
    && python3 tools/component_lock.py publisher > /publisher.lock \
    && python3 tools/component_lock.py operator > /operator.lock \
    && python3 tools/component_lock.py core tracing > /toolbox.lock

FROM locks AS spark-lock
ARG EXTRAS="spark tracing"
RUN python3 tools/component_lock.py $EXTRAS > /spark.lock

# --- what builds. The secrets are for builds that use a mirror: no layer keeps them ----------------------------------
FROM ${BUILD_BASE} AS builder
COPY --from=locks /build.lock /
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca \
    python3 -m venv /opt/build \
    && /opt/build/bin/python -m pip --quiet install --upgrade --require-hashes --only-binary :all: -r /build.lock
COPY tools/fill-image /usr/local/bin/

FROM builder AS compiler
COPY --from=locks /compiler.lock /
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca \
    /opt/build/bin/python -m pip --quiet install --require-hashes --only-binary :all: -r /compiler.lock

# --- what we wrote, pure (wheel-0) and compiled (wheel-1): built again when the code changes --------------------------
FROM scratch AS sources
COPY pyproject.toml README.md LICENSE /
COPY tools/compile_protocol.py /tools/
COPY core /core
COPY services /services
COPY operator /operator
COPY spark /spark

FROM builder AS wheel-0
COPY --from=sources / /src
RUN /opt/build/bin/python -m pip --quiet wheel --no-deps --no-build-isolation --wheel-dir /wheel /src

FROM compiler AS wheel-1
COPY --from=sources / /src
RUN --mount=type=cache,target=/src/.cache/compiled \
    EPOCHAL_COMPILED=1 \
    /opt/build/bin/python -m pip --quiet wheel --no-deps --no-build-isolation --wheel-dir /wheel /src

FROM wheel-${COMPILED:-0} AS wheel
FROM wheel-${COMPILED:-1} AS data-wheel

# --- what runs, without anything of ours -----------------------------------------------------------------------------
FROM ${BASE:-docker.io/library/python:3.13-slim} AS runtime
RUN echo 'epochal:x:10001:10001:Epochal:/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'epochal:x:10001:' >> /etc/group
ENV PATH=/opt/epochal/bin:/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
LABEL org.opencontainers.image.licenses="Apache-2.0" org.opencontainers.image.vendor="The Epochal authors"

# Each component from here on: what others wrote, built again when its lock changes; what we wrote; what runs.

# --- the catalog -----------------------------------------------------------------------------------------------------
FROM builder AS catalog-dependencies
COPY --from=locks /catalog.lock /
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca \
    --mount=type=cache,target=/root/.cache/pip \
    fill-image dependencies /catalog.lock --only-binary :all:

FROM catalog-dependencies AS catalog-application
COPY --from=wheel /wheel /wheel
RUN fill-image application epochal-catalog epochal_catalog

FROM runtime AS catalog
COPY --from=catalog-dependencies /opt/venv /opt/venv
COPY --from=catalog-application /opt/epochal /opt/epochal
ARG VERSION=dev
ARG REVISION=unknown
COPY tools/sbom.py tools/fill-image /tmp/
RUN /tmp/fill-image sbom epochal-catalog "$VERSION" && epochal-catalog --help > /dev/null
LABEL org.opencontainers.image.title="epochal-catalog" \
    org.opencontainers.image.description="Epochal's catalog: streams, segments, publishers, and where to find them" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"
USER 10001:10001
WORKDIR /tmp
EXPOSE 8700
ENTRYPOINT ["epochal-catalog"]
CMD ["serve"]

# --- the publisher ---------------------------------------------------------------------------------------------------
FROM builder AS publisher-dependencies
COPY --from=locks /publisher.lock /
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca \
    --mount=type=cache,target=/root/.cache/pip \
    fill-image dependencies /publisher.lock --only-binary :all:

FROM publisher-dependencies AS publisher-application
COPY --from=data-wheel /wheel /wheel
RUN fill-image application epochal-publisher epochal_publisher

FROM runtime AS publisher
COPY --from=publisher-dependencies /opt/venv /opt/venv
COPY --from=publisher-application /opt/epochal /opt/epochal
ARG VERSION=dev
ARG REVISION=unknown
COPY tools/sbom.py tools/fill-image /tmp/
RUN /tmp/fill-image sbom epochal-publisher "$VERSION" && epochal-publisher --help > /dev/null
LABEL org.opencontainers.image.title="epochal-publisher" \
    org.opencontainers.image.description="Epochal's publisher: owns segments of a stream" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"
USER 10001:10001
WORKDIR /tmp
EXPOSE 8701 8702 8703 8704
ENTRYPOINT ["epochal-publisher"]
CMD ["serve"]

# --- the operator ----------------------------------------------------------------------------------------------------
FROM builder AS operator-dependencies
COPY --from=locks /operator.lock /
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca \
    --mount=type=cache,target=/root/.cache/pip \
    fill-image dependencies /operator.lock --only-binary :all:

FROM operator-dependencies AS operator-application
COPY --from=wheel /wheel /wheel
RUN fill-image application epochal-operator epochal_operator

FROM runtime AS operator
COPY --from=operator-dependencies /opt/venv /opt/venv
COPY --from=operator-application /opt/epochal /opt/epochal
ARG VERSION=dev
ARG REVISION=unknown
COPY tools/sbom.py tools/fill-image /tmp/
RUN /tmp/fill-image sbom epochal-operator "$VERSION" && epochal-operator --help > /dev/null
LABEL org.opencontainers.image.title="epochal-operator" \
    org.opencontainers.image.description="Epochal's operator: makes Stream objects into publishers" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"
USER 10001:10001
WORKDIR /tmp
EXPOSE 8705 8706
ENTRYPOINT ["epochal-operator"]
CMD ["run"]

# --- the toolbox: the command `epochal` and a shell, for people and for `helm test` ----------------------------------
FROM builder AS toolbox-dependencies
COPY --from=locks /toolbox.lock /
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca \
    --mount=type=cache,target=/root/.cache/pip \
    fill-image dependencies /toolbox.lock --only-binary :all:

FROM toolbox-dependencies AS toolbox-application
COPY --from=wheel /wheel /wheel
RUN fill-image application epochal

FROM runtime AS toolbox
COPY --from=toolbox-dependencies /opt/venv /opt/venv
COPY --from=toolbox-application /opt/epochal /opt/epochal
ARG VERSION=dev
ARG REVISION=unknown
COPY tools/sbom.py tools/fill-image /tmp/
RUN /tmp/fill-image sbom epochal-toolbox "$VERSION" && epochal --help > /dev/null
LABEL org.opencontainers.image.title="epochal-toolbox" \
    org.opencontainers.image.description="Epochal's command line" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["epochal"]
CMD ["--help"]

# --- Spark with the data source `epochal`, for drivers and executors on Kubernetes -----------------------------------
FROM runtime AS spark-runtime
RUN java --version > /dev/null || { echo 'the target spark needs a BASE with Java 17 or newer' >&2; exit 1; }

# PySpark is source only. Its wheel is unpacked at once, so it is not compressed.
FROM builder AS spark-dependencies
COPY --from=spark-lock /spark.lock /
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca \
    --mount=type=cache,target=/root/.cache/pip \
    printf '[bdist_wheel]\ncompression = stored\n' > /tmp/build.cfg \
    && DIST_EXTRA_CONFIG=/tmp/build.cfg PYTHONPATH=$(echo /opt/build/lib/python3*/site-packages) \
        fill-image dependencies /spark.lock --ignore-installed --no-build-isolation

FROM spark-dependencies AS spark-application
COPY --from=data-wheel /wheel /wheel
RUN fill-image application epochal epochal_spark

FROM spark-runtime AS spark
COPY --from=spark-dependencies /opt/venv /opt/venv
COPY --from=spark-application /opt/epochal /opt/epochal
COPY spark/kubernetes/entrypoint.sh spark/kubernetes/decommission.sh /opt/spark/
COPY spark/jobs /opt/spark/jobs
COPY examples/demo /opt/spark/examples/demo
RUN ln -s /opt/venv/lib/python3*/site-packages/pyspark /opt/spark/home && mkdir -m 1777 /opt/spark/work
ENV SPARK_HOME=/opt/spark/home \
    PYSPARK_PYTHON=/opt/venv/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/venv/bin/python
ARG VERSION=dev
ARG REVISION=unknown
COPY tools/sbom.py tools/fill-image /tmp/
RUN /tmp/fill-image sbom epochal-spark "$VERSION" && /opt/venv/bin/python -c 'import epochal_spark'
LABEL org.opencontainers.image.title="epochal-spark" \
    org.opencontainers.image.description="Spark with Epochal's data source, for drivers and executors on Kubernetes" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"
USER 10001:10001
WORKDIR /opt/spark/work
ENTRYPOINT ["/opt/spark/entrypoint.sh"]

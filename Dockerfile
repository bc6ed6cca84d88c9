# docker build --tag loopguard .
#
# A build that can be repeated names the base by its digest, and itself by its revision:
#
#   docker build --tag loopguard \
#     --build-arg PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:... \
#     --build-arg VERSION=0.1.0 --build-arg REVISION="$(git rev-parse HEAD)" .
#
# The default is a tag, which its publisher moves at every security fix: right for trying it out,
# wrong for what is deployed. No digest stands here, because one that is written down ages silently.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# `postgres,otel` sends traces as well.
ARG EXTRAS=postgres
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY config config
COPY loopguard loopguard
RUN pip wheel --wheel-dir /wheels ".[${EXTRAS}]"
RUN python -m venv --without-pip /opt/loopguard \
    && pip --python /opt/loopguard install --no-index --find-links /wheels "loopguard[${EXTRAS}]"
RUN mkdir --parents /state/loopguard

# Nothing is run in this stage, and nothing that is started here needs a shell.
FROM ${PYTHON_IMAGE}
ARG PYTHON_IMAGE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="loopguard" \
      org.opencontainers.image.description="A reverse proxy that cuts looping model replies mid-stream and asks again" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
COPY --from=build /opt/loopguard /opt/loopguard
# A new volume takes its owner from what is there.
COPY --from=build --chown=10001:10001 /state/loopguard /var/lib/loopguard

# Callers reach a container from outside it. The admin listener stays on loopback, for the check below.
ENV LOOPGUARD_SERVER__HOST=0.0.0.0
# Where the ledger is, unless LOOPGUARD_LEDGER__URL names a PostgreSQL. Nothing else is written.
ENV STATE_DIRECTORY=/var/lib/loopguard
ENV PATH=/opt/loopguard/bin:$PATH PYTHONDONTWRITEBYTECODE=1
EXPOSE 8080
WORKDIR /var/lib/loopguard
VOLUME /var/lib/loopguard
# By number: Kubernetes can then see that it is not root.
USER 10001:10001
# Of loopguard's own: it drains, and ends with status 0.
STOPSIGNAL SIGTERM
# Reads the same variables as what it asks. A container that is started with `--config FILE` and
# another admin port in the file is given it here as well (--health-cmd), or the port as a variable.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["loopguard", "healthcheck"]
ENTRYPOINT ["loopguard"]
CMD ["serve"]

# Pin the base for a build that can be repeated:
# docker build --build-arg BASE=python:3.11-slim-bookworm@sha256:... -t loopguard .
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY config config
COPY loopguard loopguard
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[postgres]'
RUN python -m venv --without-pip /opt/loopguard \
    && pip --python /opt/loopguard install --no-cache-dir --no-index --find-links /wheels 'loopguard[postgres]'

FROM ${BASE}
LABEL org.opencontainers.image.title="loopguard" \
      org.opencontainers.image.description="A reverse proxy that cuts looping model replies mid-stream and asks again" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --system --gid 10001 loopguard \
    && useradd --system --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin loopguard \
    && install --directory --owner=loopguard --group=loopguard /var/lib/loopguard
COPY --from=build /opt/loopguard /opt/loopguard

# Callers reach a container from outside it. The admin listener stays on loopback, for the check below.
ENV LOOPGUARD_SERVER__HOST=0.0.0.0
# Where the ledger is, unless LOOPGUARD_LEDGER__URL names a PostgreSQL.
ENV STATE_DIRECTORY=/var/lib/loopguard
EXPOSE 8080
WORKDIR /var/lib/loopguard
VOLUME /var/lib/loopguard
# By number: Kubernetes can then see that it is not root.
USER 10001:10001
STOPSIGNAL SIGTERM
# An admin port that is moved is moved by its variable, which the check reads too.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["/opt/loopguard/bin/python", "-c", "\
import http.client, os; \
admin = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('LOOPGUARD_SERVER__ADMIN_PORT', 8081)), timeout=2); \
admin.request('GET', '/healthz'); \
raise SystemExit(admin.getresponse().status != 200)"]
ENTRYPOINT ["/opt/loopguard/bin/loopguard"]
CMD ["serve"]

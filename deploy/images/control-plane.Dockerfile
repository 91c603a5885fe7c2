# syntax=docker/dockerfile:1.7
# The control plane: `switchgear`. Build from the repository root:
#
#   docker build -f deploy/images/control-plane.Dockerfile -t switchgear/control-plane:1.0.0rc1 .
#
# Tags can move: in production pin the digest you tested (NAME:TAG@sha256:...).
FROM python:3.11.14-slim-bookworm AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements.lock ./
RUN python -m venv /opt/venv
COPY pyproject.toml README.md LICENSE ./
COPY command_line ./command_line
COPY policies ./policies
COPY engine ./engine
COPY xds_server ./xds_server
COPY istio ./istio
COPY chaos ./chaos
COPY envoy ./envoy
# Constraints pin versions, for the build too, without installing the packages that only tests need.
RUN PIP_CONSTRAINT=/src/requirements.lock /opt/venv/bin/pip install --no-compile '.[otel]' \
    && /opt/venv/bin/python -m compileall -q -j 0 /opt/venv/lib

FROM python:3.11.14-slim-bookworm
LABEL org.opencontainers.image.title="switchgear" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    MALLOC_ARENA_MAX=2 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Numeric, so that Kubernetes can verify runAsNonRoot.
USER 65532:65532
WORKDIR /tmp
EXPOSE 18000 18001
# For Docker; Kubernetes uses its own probes. The port is the default of `switchgear serve --admin`.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:18001/healthz', timeout=4)"]
ENTRYPOINT ["switchgear"]
CMD ["--help"]

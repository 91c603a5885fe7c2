# syntax=docker/dockerfile:1.7
# The harness: `switchgear-chaos`, with a real Envoy. From the root of the repository:
#
#   docker build -f deploy/images/chaos.Dockerfile -t switchgear/chaos:0.1.0 .
#
# A tag can be moved. For production put the digest that you have tried behind it (NAME:TAG@sha256:...).
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
# As constraints the lock says versions and adds nothing, to the build as well.
RUN PIP_CONSTRAINT=/src/requirements.lock /opt/venv/bin/pip install '.[envoy,report]' \
    && /opt/venv/bin/python -m compileall -q /opt/venv/lib

FROM python:3.11.14-slim-bookworm
LABEL org.opencontainers.image.title="switchgear-chaos" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
WORKDIR /tmp
# It runs a rehearsal and ends: there is nothing to ask for its health.
HEALTHCHECK NONE
ENTRYPOINT ["switchgear-chaos"]
CMD ["--help"]

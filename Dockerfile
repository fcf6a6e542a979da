# The node in a container. Targets: cpu (ONNX Runtime on the CPU) and gpu (TensorRT, PyTorch on CUDA).
#
#   docker build --target cpu --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu -t chex-node:cpu .
#   docker run --read-only --tmpfs /tmp -v chex-node:/var/lib/chex-node -v "$PWD/node.toml:/etc/chex-node/node.toml:ro" \
#     -p 11112:11112 -p 8080:8080 chex-node:cpu
#
# BASE_IMAGE   Debian with Python 3.11 to 3.13 and pip
# TORCH_INDEX  a package index with CPU builds of torch; without it the cpu image holds gigabytes of CUDA
# VERSION, REVISION  for the labels
#
# The default base image is a tag, which may be another image tomorrow, and pip takes what the index has under a version.
# `make digests` looks up what they are now: then build with BASE_IMAGE from deploy/image/digests.env; the hashes of the
# packages beside it are used by themselves.
#
# In the container http.port must stay 8080, for the health check, and listener.host and http.host be 0.0.0.0.

ARG BASE_IMAGE=python:3.11-slim-bookworm


# One virtual environment without pip; pip installs into it from outside, so neither it nor its cache comes along.
# An editable install: the program is not there yet, and chex-node will run it where it is copied to.
FROM ${BASE_IMAGE} AS environment
ARG TORCH_INDEX=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PIP_EXTRA_INDEX_URL=${TORCH_INDEX}
WORKDIR /opt/chex-node
RUN python3 -m venv --without-pip /opt/venv
COPY LICENSE README.md constraints.txt pyproject.toml ./
COPY models/program.py models/
COPY deploy/image deploy/image

FROM environment AS environment-cpu
RUN sh deploy/image/install.sh cpu /opt/venv

FROM environment AS environment-gpu
RUN sh deploy/image/install.sh gpu /opt/venv


# The program with the graphs of the demonstration model, made and proven by the libraries that will run them.
FROM environment-cpu AS program-cpu
COPY . .
RUN /opt/venv/bin/python -m export.build --model models/weights/phantom \
    && /opt/venv/bin/python -m compileall -q node models export language deploy

FROM environment-gpu AS program-gpu
COPY . .
RUN /opt/venv/bin/python -m export.build --model models/weights/phantom --target onnx,tensorrt \
    && /opt/venv/bin/python -m compileall -q node models export language deploy


# What runs: the base image, the environment and the program, all owned by root. Only storage.directory and /tmp are
# written to. The user's number is fixed, so that a volume fits every later image.
FROM ${BASE_IMAGE} AS runtime
ARG VERSION=1.0.0
ARG REVISION=
LABEL org.opencontainers.image.title="ChEX Node" \
      org.opencontainers.image.description="A clinical inference node for chest X-rays. For research use." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 chex \
    && useradd --uid 10001 --gid chex --home-dir /tmp --no-create-home --shell /usr/sbin/nologin chex \
    && install -d -m 700 -o chex -g chex /var/lib/chex-node
ENV HOME=/tmp \
    ORT_DISABLE_TELEMETRY=1 \
    PATH=/opt/venv/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /opt/chex-node
USER 10001:10001
EXPOSE 11112 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/ready', timeout=4)"]
ENTRYPOINT ["python", "-m", "node"]
CMD ["serve", "/etc/chex-node/node.toml"]


FROM runtime AS gpu
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=program-gpu /opt/venv /opt/venv
COPY --from=program-gpu /opt/chex-node /opt/chex-node

FROM runtime AS cpu
COPY --from=program-cpu /opt/venv /opt/venv
COPY --from=program-cpu /opt/chex-node /opt/chex-node

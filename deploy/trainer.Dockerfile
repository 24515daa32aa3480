# The trainer's side of examples/grpo: rollout generators, ranks of the trainer, and the command `dataplane`. Run from
# the repository:
#
#     digest=$(docker buildx imagetools inspect python:3.11-slim-bookworm --format '{{.Manifest.Digest}}')
#     docker build -f deploy/trainer.Dockerfile --build-arg PYTHON_DIGEST="$digest" -t rl-dataplane-trainer:0.1.0 .
#     docker run --read-only --tmpfs /tmp rl-dataplane-trainer:0.1.0   # the whole example in one container
#
# Without the digest of the base image, the build ends at once. Packages are pinned and checked by hash, except torch:
# its version is pinned, its hash depends on its index. For GPUs: --build-arg
# TORCH_INDEX=https://download.pytorch.org/whl/cu130. For your own trainer image, install torch and, after it, this
# package.

ARG PYTHON_DIGEST
FROM python:3.11-slim-bookworm@${PYTHON_DIGEST} AS build
# For the client's row kernels, which pad batches. Without a compiler, NumPy copies the rows.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/build && python -m venv /opt/venv
WORKDIR /source
COPY deploy/image deploy/image
# Every package but torch by hash, as wheels, for building one would fetch more; then torch from its own index, which
# adds the packages that only CUDA needs.
ARG PIP_NO_CACHE_DIR=1
ARG PIP_ONLY_BINARY=:all:
RUN /opt/build/bin/pip install --no-deps --require-hashes --requirement deploy/image/build-requirements.txt \
    && /opt/venv/bin/pip install --no-deps --require-hashes --requirement deploy/image/trainer-requirements.txt
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN /opt/venv/bin/pip install --index-url "$TORCH_INDEX" "$TORCH"
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY proto proto
COPY client client
COPY dataplane_server dataplane_server
COPY trainer_adapter trainer_adapter
COPY integrations integrations
RUN /opt/build/bin/python -m build --no-isolation --wheel --outdir /opt/wheels \
    && /opt/venv/bin/pip install --no-deps /opt/wheels/*.whl \
    && /opt/venv/bin/pip check \
    && /opt/venv/bin/pip uninstall --yes pip

FROM python:3.11-slim-bookworm@${PYTHON_DIGEST} AS trainer
# torch looks up the name of its user.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin trainer
COPY --from=build /opt/venv /opt/venv
COPY examples/grpo /opt/grpo

ARG REVISION=unknown
LABEL org.opencontainers.image.title="RL Data Plane trainer example" \
      org.opencontainers.image.description="Rollout generators and trainer of the GRPO example, clients of the RL Data Plane server" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="$REVISION"

# Libraries keep caches in HOME. With a read-only root they can write only to /tmp.
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /opt/grpo

# Not the server's user. The pod adds the group 65532, which owns the server's socket.
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/venv/bin/python"]
CMD ["run.py", "--out", "/tmp/grpo"]

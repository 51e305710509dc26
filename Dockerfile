# bisect-env as a command, and as a Dask worker image. Another base, for example one with CUDA:
#   docker build --build-arg BASE=nvidia/cuda:12.8.1-base-ubuntu24.04 -t bisect-env .
ARG BASE=python:3.12-slim
FROM ${BASE}

# gdb for stacks of hung and crashed trials; a compiler for source distributions under trial.
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv python3-pip gdb gcc g++ libc6-dev git make ca-certificates \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/bisect-env
COPY pyproject.toml requirements.lock Makefile README.md ./
COPY bisect_env ./bisect_env
RUN python3 -m venv .venv \
    && .venv/bin/pip install --no-cache-dir --require-hashes -r requirements.lock \
    && .venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

# Trials run whatever a matrix names: not as root.
RUN useradd --create-home trials && mkdir /study && chown trials /study
USER trials
WORKDIR /study
ENV PATH=/opt/bisect-env/.venv/bin:$PATH \
    BISECT_ENV_DB=/study/results.sqlite
ENTRYPOINT ["bisect-env"]
CMD ["--help"]

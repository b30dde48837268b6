# A server or a site of a federation (docs/deployment.md): the same image for both; state and data lie in volumes.
#   docker build -t fedgraft .
#   docker run --rm fedgraft fedgraft doctor
#   docker run --rm -v "$PWD/site:/home/fedgraft/site" -w /home/fedgraft/site fedgraft fedgraft deploy check a.toml --server HOST:8000
#   the same with `flower-superlink ...` (server) or `flower-supernode ...` (site) and the options of docs/deployment.md
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/fedgraft
COPY pyproject.toml setup.py constraints.txt README.md LICENSE MANIFEST.in ./
COPY src src
# the constraints pin torch; of that version the index for CPUs has a build without the gigabytes of GPU packages
ARG TORCH=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --extra-index-url "$TORCH" --constraint constraints.txt '.[flower,tables]' && fedgraft doctor
RUN useradd --create-home fedgraft
USER fedgraft
WORKDIR /home/fedgraft
CMD ["fedgraft", "--help"]

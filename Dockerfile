# A server or a site of a federation (docs/deployment.md): the same image for both; state and data lie in volumes.
#   docker build -t fedgraft .
#   docker run --rm fedgraft fedgraft doctor
#   docker run --rm -v "$PWD/federation:/home/fedgraft/work" -p 8000:8000 fedgraft fedgraft deploy server
#   docker run --rm -v "$PWD/site:/home/fedgraft/work" fedgraft fedgraft deploy site a.toml
# The user in the image has the number 1000: on Linux the folders have to be its own, or add --user "$(id -u):$(id -g)".
FROM python:3.11-slim
# g++ compiles the kernels; nginx is the gate in front of a server
RUN apt-get update && apt-get install -y --no-install-recommends g++ nginx-light && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/fedgraft
COPY pyproject.toml setup.py constraints.txt README.md LICENSE MANIFEST.in ./
COPY src src
# the constraints pin torch; of that version PyTorch's own index for CPUs has a build without the gigabytes of GPU packages:
# --build-arg TORCH=URL, as pytorch.org names it, adds that index
ARG TORCH=
RUN pip install --no-cache-dir ${TORCH:+--extra-index-url "$TORCH"} --constraint constraints.txt '.[flower,tables,privacy]' && fedgraft doctor
RUN useradd --create-home --uid 1000 fedgraft && mkdir /home/fedgraft/work && chown fedgraft: /home/fedgraft/work
USER fedgraft
WORKDIR /home/fedgraft/work
CMD ["fedgraft", "--help"]

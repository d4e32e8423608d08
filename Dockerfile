# The server in a container: docker run --gpus all -p 7997:7997 -v cotenant:/data cotenant
FROM python:3.13-slim AS requirements
COPY pyproject.toml /
RUN python -c "import tomllib; project = tomllib.load(open('/pyproject.toml', 'rb'))['project']; \
print(*project['dependencies'], sep='\n')" > /requirements.txt

FROM python:3.13-slim

ENV HF_HOME=/data \
    COTENANT_HOST=0.0.0.0 \
    COTENANT_PORT=7997 \
    PYTHONUNBUFFERED=1

# On a CPU with AMX, a kernel is compiled when the first model is loaded.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app

# The dependencies, several GB, are a layer of their own that only a change to their list makes again.
COPY --from=requirements /requirements.txt ./
RUN pip install --no-cache-dir --requirement requirements.txt \
    && python -c "import sentence_transformers, colpali_engine, torchvision"

COPY pyproject.toml README.md LICENSE model_registry.yaml ./
COPY examples/models ./examples/models
COPY runtime ./runtime
COPY scripts/random_page_model.py ./scripts/
RUN pip install --no-cache-dir --no-deps .

# Models land in /data, which a volume keeps.
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin cotenant \
    && install --directory --owner=cotenant --group=cotenant /data
USER 10001
# The page-image model of the default registry, with random weights.
RUN python -P scripts/random_page_model.py
VOLUME /data

EXPOSE 7997

# Alive, not ready: a server that still loads its models is healthy. It is asked past any proxy that is set.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=4 \
  CMD ["python", "-c", "import os, urllib.request as r; \
r.build_opener(r.ProxyHandler({})).open(f'http://127.0.0.1:{os.environ[\"COTENANT_PORT\"]}/health', timeout=4)"]

ENTRYPOINT ["cotenant"]
CMD ["serve", "--registry", "model_registry.yaml"]

# One image for the API server and for workers; docs/how-to/deploy.md describes it.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /opt/holdfast \
    && /opt/holdfast/bin/pip install --no-cache-dir -c constraints.txt pip \
    && /opt/holdfast/bin/pip wheel --no-cache-dir --no-deps --build-constraint constraints.txt -w /dist . \
    && /opt/holdfast/bin/pip install --no-cache-dir -c constraints.txt \
        "$(echo /dist/holdfast-*.whl)[ag-ui,credentials,mongo,postgres,s3,server]"

FROM python:3.13-slim
LABEL org.opencontainers.image.title="Holdfast" \
      org.opencontainers.image.description="Durable sessions for AI agents: API server and worker" \
      org.opencontainers.image.licenses="Apache-2.0"
# The root file system may be read-only. /tmp must be writable; /var/lib/holdfast is for SQLite and media on disk only.
RUN useradd --uid 10001 --home-dir /var/lib/holdfast --create-home --shell /usr/sbin/nologin holdfast
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOLDFAST_HOST=0.0.0.0 \
    HOLDFAST_PORT=8350 \
    HOLDFAST_STORE=sqlite:////var/lib/holdfast/store.db
WORKDIR /app
USER 10001:10001
EXPOSE 8350
# A worker answers here as well if it is started with `--metrics-port 8350`.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['HOLDFAST_PORT']), timeout=4); c.request('GET', '/health'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["holdfast"]
CMD ["serve", "--role", "api"]

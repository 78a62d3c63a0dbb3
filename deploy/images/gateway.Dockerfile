# The gateway's image: no ML library. Build from the repository's root:
#   docker build -f deploy/images/gateway.Dockerfile -t tidegate-gateway .
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY schemas schemas
COPY store store
COPY gateway gateway
COPY workers workers
COPY tidegate tidegate
RUN python -m venv /opt/tidegate \
 && /opt/tidegate/bin/pip install --no-cache-dir -c constraints.txt '.[gateway,telemetry,s3]'

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home tidegate
COPY --from=build /opt/tidegate /opt/tidegate
ENV PATH=/opt/tidegate/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
EXPOSE 8000 8001
# In exec form: SIGTERM must reach the process that drains, not a shell before it.
ENTRYPOINT ["python", "-m", "gateway"]

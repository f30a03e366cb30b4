# syntax=docker/dockerfile:1
# Built from a clone: docker build -t holtmq/holtmq .
# Settings come as HOLT_<SECTION>_<KEY>, or in a file named by HOLT_CONFIG.

FROM python:3.13-slim AS build
# arrow: rows for Spark and other readers, 240 MB; backup: buckets.
ARG EXTRAS=postgres,otel,backup,arrow
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/holtmq \
    && /opt/holtmq/bin/pip install --no-cache-dir --no-compile ".[${EXTRAS}]" \
    && /opt/holtmq/bin/pip uninstall --yes pip

FROM python:3.13-slim
LABEL org.opencontainers.image.title="HoltMQ" \
      org.opencontainers.image.description="AMQP 0-9-1 work queues, partitioned queues over HTTP, one journal" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 holtmq \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/holtmq --shell /usr/sbin/nologin holtmq \
    && install --directory --owner holtmq --group holtmq --mode 0700 /var/lib/holtmq
COPY --from=build /opt/holtmq /opt/holtmq
ENV PATH=/opt/holtmq/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOLT_DATA_DIR=/var/lib/holtmq \
    HOLT_AMQP_HOST=0.0.0.0 \
    HOLT_HTTP_HOST=0.0.0.0 \
    HOLT_LOG_FORMAT=json
WORKDIR /var/lib/holtmq
USER 10001:10001
VOLUME ["/var/lib/holtmq"]
EXPOSE 5672 5671 6632 6633
# A standby is healthy, too; /ready tells whether clients shall come here.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --start-interval=1s --retries=3 \
    CMD ["holt", "health", "--timeout", "4"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["holt"]
CMD ["serve"]

"""The settings of both listeners, and of what AMQP clients meet there.

Owns: the sections amqp, interceptors and http. Must not touch: files and the environment.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from holtmq import __version__
from holtmq.config import values
from holtmq.config.about import KIB, MIB, About, port_setting
from holtmq.config.choices import Intercept, TlsVerify


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """The TLS settings of a listener."""

    tls_cert: Annotated[
        Path | None, About("Certificate chain (PEM). Setting it opens the TLS port.", values.OPTIONAL_PATH)
    ] = None
    tls_key: Annotated[Path | None, About("Private key of the certificate (PEM).", values.OPTIONAL_PATH)] = (
        None
    )
    tls_ca: Annotated[
        Path | None, About("Authorities that sign client certificates (PEM).", values.OPTIONAL_PATH)
    ] = None
    tls_verify: Annotated[
        TlsVerify, About("Whether clients present a certificate.", values.choice(TlsVerify))
    ] = TlsVerify.NONE


class Amqp(Tls, frozen=True, kw_only=True):
    """The AMQP 0-9-1 listener."""

    host: Annotated[tuple[str, ...], About("Addresses to listen on.", values.TEXTS)] = ("127.0.0.1", "::1")
    port: Annotated[int, port_setting("Port for plain connections.")] = 5672
    tls_port: Annotated[int, port_setting("Port for TLS connections, open when amqp.tls_cert is set.")] = 5671
    plain: Annotated[bool, About("Open the port without TLS, too.", values.BOOL)] = True
    heartbeat: Annotated[
        int, About("Heartbeat offered to clients; 0 switches it off.", values.WHOLE_SECONDS, 0, 65535)
    ] = 60
    frame_max: Annotated[int, About("Largest frame offered to clients.", values.SIZE, 4 * KIB, 16 * MIB)] = (
        128 * KIB
    )
    channel_max: Annotated[int, About("Most channels on one connection.", values.INT, 1, 65535)] = 2047
    max_priority: Annotated[
        int,
        About("Highest x-max-priority a queue may ask for.", values.INT, 1, 255, ("HOLT_MAX_PRIORITY",)),
    ] = 10
    cancel_requeue: Annotated[
        bool,
        About("Cancelling a consumer requeues what it has not acked; off: as RabbitMQ does.", values.BOOL),
    ] = True
    channel_flow: Annotated[
        bool,
        About("Obey a client's channel.flow; off: refuse it with 540, as RabbitMQ does.", values.BOOL),
    ] = True
    consumer_timeout: Annotated[
        float,
        About(
            "Time a consumer has to ack a delivery before its channel is closed; 0 switches it off.",
            values.SECONDS,
            0,
            315_360_000,
        ),
    ] = 1800.0
    product: Annotated[str, About("Product name in the server properties.", values.TEXT)] = "HoltMQ"
    product_version: Annotated[
        str, About("Version in the server properties.", values.TEXT, default_note="the version of HoltMQ")
    ] = __version__
    max_connections: Annotated[int, About("Most connections at a time.", values.INT, 1)] = 10_000
    handshake_timeout: Annotated[
        float, About("Time a client has to open its connection.", values.SECONDS, 0.1, 3600)
    ] = 10.0
    max_message_bytes: Annotated[
        int,
        About(
            "Largest message body accepted. Other clients wait while it is handled: 1.5 ms for each MiB.",
            values.SIZE,
            1,
            512 * MIB,
        ),
    ] = 16 * MIB


class Interceptors(msgspec.Struct, frozen=True, kw_only=True):
    """What is added to messages published over AMQP: keep leaves a value that the publisher has set."""

    timestamp: Annotated[
        Intercept, About("Time of arrival: timestamp and header timestamp_in_ms.", values.choice(Intercept))
    ] = Intercept.OFF
    routing_node: Annotated[
        Intercept, About("Name of the node: header x-routed-by.", values.choice(Intercept))
    ] = Intercept.OFF
    client_id: Annotated[
        Intercept,
        About(
            "Name of the connection, or of its user: header x-client-id.",
            values.choice(Intercept),
        ),
    ] = Intercept.OFF


class Http(Tls, frozen=True, kw_only=True):
    """The HTTP listener: partitioned queues, management, health."""

    host: Annotated[tuple[str, ...], About("Addresses to listen on.", values.TEXTS)] = ("127.0.0.1", "::1")
    port: Annotated[int, port_setting("Port for HTTP.")] = 6632
    tls_port: Annotated[int, port_setting("Port for HTTPS, open when http.tls_cert is set.")] = 6633
    plain: Annotated[bool, About("Open the port without TLS, too.", values.BOOL)] = True
    anonymous: Annotated[
        str,
        About(
            "User of requests without credentials, wherever that user may log in from; none: 401.",
            values.TEXT,
            default_note="guest, who can come from loopback alone; none when auth.jwt_enabled",
        ),
    ] = ""
    cors_origins: Annotated[
        tuple[str, ...],
        About("Origins whose web pages may use the API, as in https://ops.example.org:8443.", values.TEXTS),
    ] = ()
    names: Annotated[
        tuple[str, ...],
        About(
            "Host names under which requests without credentials are taken, besides this machine's own.",
            values.TEXTS,
        ),
    ] = ()
    body_memory_bytes: Annotated[
        int,
        About(
            "Memory for the larger request bodies of all connections; who finds none free waits for it.",
            values.SIZE,
            MIB,
        ),
    ] = 256 * MIB
    max_body_bytes: Annotated[
        int,
        About(
            "Largest request body accepted. Other clients wait while it is handled: 2 to 3 ms for each MiB.",
            values.SIZE,
            KIB,
            2048 * MIB,
        ),
    ] = 16 * MIB
    max_long_body_bytes: Annotated[
        int,
        About(
            "Largest body of definitions and of rows (Arrow), which are handled in steps.",
            values.SIZE,
            KIB,
            2048 * MIB,
        ),
    ] = 64 * MIB
    max_batch: Annotated[int, About("Most messages in one push, pop or ack.", values.INT, 1)] = 10_000
    max_wait_ms: Annotated[
        int, About("Longest time a waiting pop is held open.", values.MILLISECONDS, 0, 3_600_000)
    ] = 300_000

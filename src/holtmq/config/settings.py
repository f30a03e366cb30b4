"""All settings: name, type, default, bounds and one line of help.

Owns: the typed, frozen sections that are passed down through the program. The documentation, the flags of
``holt serve`` and ``holt config`` are generated from this file.
Must not touch: files and the environment; ``load`` reads them.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from holtmq import __version__
from holtmq.config import values
from holtmq.config.values import Kind, Secret

KIB = 1024
MIB = 1024 * KIB


class SyncMode(StrEnum):
    ALWAYS = "always"
    NEVER = "never"


class TlsVerify(StrEnum):
    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


class Profile(StrEnum):
    HOLT = "holt"
    RABBITMQ = "rabbitmq"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class Intercept(StrEnum):
    OFF = "off"
    KEEP = "keep"
    OVERWRITE = "overwrite"


class JwtAlgorithm(StrEnum):
    HS256 = "HS256"
    RS256 = "RS256"
    ES256 = "ES256"
    ES384 = "ES384"
    EDDSA = "EdDSA"
    AUTO = "auto"


class SubscriptionDefault(StrEnum):
    ALL = "all"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class About:
    """Metadata of one setting besides its type and default."""

    help: str
    kind: Kind
    low: float | None = None
    high: float | None = None
    aliases: tuple[str, ...] = ()  # other environment variables that set it
    default_note: str = ""  # shown in place of a default that differs from version to version


def _port(text: str) -> About:
    return About(f"{text} 0 takes any free port.", values.INT, 0, 65535)


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """Where the node keeps what it must not lose."""

    dir: Annotated[Path, About("Folder of the journal.", values.PATH)] = Path("./holt-data")
    memory: Annotated[
        bool, About("Keep everything in memory: no files, all is lost at stop.", values.BOOL)
    ] = False


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """How the journal writes."""

    segment_bytes: Annotated[
        int, About("Size at which a new segment file begins.", values.SIZE, 64 * KIB, 4096 * MIB)
    ] = 64 * MIB
    sync: Annotated[
        SyncMode,
        About(
            "When a commit is synced to disk. UNSAFE if never: a power cut loses confirmed messages.",
            values.choice(SyncMode),
        ),
    ] = SyncMode.ALWAYS
    checkpoint_bytes: Annotated[
        int,
        About("Bytes written between checkpoints; bounds the time a restart takes.", values.SIZE, 64 * KIB),
    ] = 256 * MIB
    scrub_bytes_per_second: Annotated[
        int,
        About(
            "How fast stored data is read in the background, to find damage early; 0: never.", values.SIZE, 0
        ),
    ] = 1 * MIB
    replica: Annotated[
        Secret,
        About(
            "PostgreSQL that keeps the journal too and decides which node owns it: postgresql://user@host/db.",
            values.SECRET,
        ),
    ] = Secret("")
    replica_name: Annotated[
        str, About("Name of this broker's log: several brokers can share a database.", values.TEXT)
    ] = "holtmq"
    replica_node: Annotated[
        str, About("Name of this node in the cluster; when empty, its host name and AMQP port.", values.TEXT)
    ] = ""
    replica_standby: Annotated[
        bool, About("Leave a log that has no owner to other nodes first (--standby).", values.BOOL)
    ] = False
    takeover_after: Annotated[
        float,
        About("How long the owner shows no sign of life before a standby takes over.", values.SECONDS, 0.5),
    ] = 5.0
    replica_min_standbys: Annotated[
        int,
        About("Confirm nothing while PostgreSQL has fewer synchronous standbys than this.", values.INT, 0, 9),
    ] = 0


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
    port: Annotated[int, _port("Port for plain connections.")] = 5672
    tls_port: Annotated[int, _port("Port for TLS connections, open when amqp.tls_cert is set.")] = 5671
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
    max_message_bytes: Annotated[int, About("Largest message body accepted.", values.SIZE, 1, 512 * MIB)] = (
        128 * MIB
    )


def _as_rabbitmq(help_text: str) -> About:
    return About(help_text, values.BOOL)


class Compatibility(msgspec.Struct, frozen=True, kw_only=True):
    """Where HoltMQ behaves unlike RabbitMQ, and true selects RabbitMQ's behaviour: see docs/amqp.md."""

    drop_highest_priority: Annotated[
        bool, _as_rabbitmq("A full priority queue drops its highest priority first, not its lowest.")
    ] = False
    accept_zero_priority: Annotated[bool, _as_rabbitmq("Accept x-max-priority 0; it has no effect.")] = False
    refuse_classic_delivery_limit: Annotated[
        bool, _as_rabbitmq("Refuse x-delivery-limit on a classic queue with 406.")
    ] = False
    refuse_quorum_priorities: Annotated[
        bool, _as_rabbitmq("Refuse x-max-priority on a quorum queue with 406.")
    ] = False
    refuse_global_prefetch: Annotated[
        bool, _as_rabbitmq("Refuse a channel-wide prefetch on quorum queues and streams with 540.")
    ] = False
    refuse_queue_mode: Annotated[
        bool, _as_rabbitmq("Refuse x-queue-mode on a quorum queue or a stream with 406.")
    ] = False
    refuse_server_names: Annotated[
        bool, _as_rabbitmq("Refuse a quorum queue or a stream without a name with 406.")
    ] = False
    stream_misuse_closes_connection: Annotated[
        bool, _as_rabbitmq("basic.get and queue.purge on a stream close the connection with 540.")
    ] = False
    refuse_group_nack: Annotated[
        bool, _as_rabbitmq("Refuse basic.nack and basic.reject on a stream also from a consumer group.")
    ] = False
    refuse_unbounded_stream_consumers: Annotated[
        bool, _as_rabbitmq("Refuse consumers of a stream that have no_ack or no prefetch.")
    ] = False
    transient_stays_transient: Annotated[
        bool,
        _as_rabbitmq("A transient message to a quorum queue is still lost by other queues at a restart."),
    ] = False
    silent_handshake_errors: Annotated[
        bool, _as_rabbitmq("Errors before connection.open close the socket without connection.close.")
    ] = False
    unreadable_names_close_connection: Annotated[
        bool, _as_rabbitmq("Names and binding keys that are not UTF-8 close the connection with 501.")
    ] = False
    consumer_timeout_closes_channel: Annotated[
        bool, _as_rabbitmq("A delivery not acked in time closes its channel, on every type of queue.")
    ] = False


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
    port: Annotated[int, _port("Port for HTTP.")] = 6632
    tls_port: Annotated[int, _port("Port for HTTPS, open when http.tls_cert is set.")] = 6633
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
    max_body_bytes: Annotated[int, About("Largest request body accepted.", values.SIZE, KIB, 2048 * MIB)] = (
        64 * MIB
    )
    max_batch: Annotated[int, About("Most messages in one push, pop or ack.", values.INT, 1)] = 10_000
    max_wait_ms: Annotated[
        int, About("Longest time a waiting pop is held open.", values.MILLISECONDS, 0, 3_600_000)
    ] = 300_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When publishers are made to wait."""

    memory_high_watermark: Annotated[
        float,
        About(
            "Memory use that blocks publishers: a fraction of the machine's, or a size.",
            values.FRACTION_OR_SIZE,
        ),
    ] = 0.6
    disk_free_min_bytes: Annotated[
        int, About("Free disk space below which publishers are blocked.", values.SIZE, 0)
    ] = 50_000_000
    queue_memory: Annotated[
        float,
        About(
            "Memory for messages that wait in work queues, all together; what is more goes to disk: "
            "a fraction of the machine's, or a size.",
            values.FRACTION_OR_SIZE,
        ),
    ] = 268_435_456.0

    def queue_memory_bytes(self, total: int) -> int:
        """Memory for waiting messages on a machine with ``total`` bytes: at most half the alarm threshold."""
        wanted = int(total * self.queue_memory) if self.queue_memory <= 1 else int(self.queue_memory)
        return min(wanted, self.memory_bytes(total) // 2)

    def memory_bytes(self, total: int) -> int:
        """The memory alarm's threshold on a machine with ``total`` bytes."""
        mark = self.memory_high_watermark
        return int(total * mark) if mark <= 1 else int(mark)


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """What is written to standard error."""

    level: Annotated[LogLevel, About("Least serious entry that is written.", values.choice(LogLevel))] = (
        LogLevel.INFO
    )
    format: Annotated[
        LogFormat, About("Text for people, or one JSON object a line.", values.choice(LogFormat))
    ] = LogFormat.TEXT


class Auth(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens: over HTTP, and as passwords over AMQP."""

    jwt_enabled: Annotated[
        bool,
        About(
            "Require a login or a token on HTTP, accept tokens on AMQP.",
            values.BOOL,
            aliases=("JWT_ENABLED",),
        ),
    ] = False
    jwt_algorithm: Annotated[
        JwtAlgorithm,
        About(
            "Accepted signature; auto takes any that has a key configured.",
            values.choice(JwtAlgorithm),
            aliases=("JWT_ALGORITHM",),
        ),
    ] = JwtAlgorithm.HS256
    jwt_secret: Annotated[
        Secret, About("Shared secret for HS256.", values.SECRET, aliases=("JWT_SECRET",))
    ] = Secret()
    jwt_public_key: Annotated[
        str,
        About(
            "Public key (PEM text) for RS256, ES256, ES384 and EdDSA.",
            values.TEXT,
            aliases=("JWT_PUBLIC_KEY",),
        ),
    ] = ""
    jwt_jwks_url: Annotated[
        str, About("Where to fetch public keys, looked up by kid.", values.TEXT, aliases=("JWT_JWKS_URL",))
    ] = ""
    jwt_jwks_refresh: Annotated[
        float,
        About(
            "Age at which fetched keys are fetched again.",
            values.SECONDS,
            1,
            aliases=("JWT_JWKS_REFRESH_INTERVAL",),
        ),
    ] = 3600.0
    jwt_issuer: Annotated[
        str, About("Required iss claim; empty takes any.", values.TEXT, aliases=("JWT_ISSUER",))
    ] = ""
    jwt_audience: Annotated[
        str, About("Required aud claim; empty takes any.", values.TEXT, aliases=("JWT_AUDIENCE",))
    ] = ""
    jwt_clock_skew: Annotated[
        float,
        About("Difference allowed between clocks.", values.SECONDS, 0, 3600, aliases=("JWT_CLOCK_SKEW",)),
    ] = 30.0
    jwt_require_exp: Annotated[
        bool, About("Refuse tokens that never expire; off: warn once for each subject.", values.BOOL)
    ] = False
    jwt_role_admin: Annotated[
        str, About("Role that may do everything.", values.TEXT, aliases=("JWT_ROLE_ADMIN",))
    ] = "admin"
    jwt_role_read_write: Annotated[
        str, About("Role that may push, pop and ack.", values.TEXT, aliases=("JWT_ROLE_READ_WRITE",))
    ] = "read-write"
    jwt_role_read_only: Annotated[
        str, About("Role that may look.", values.TEXT, aliases=("JWT_ROLE_READ_ONLY",))
    ] = "read-only"
    oauth2_resource_server: Annotated[
        str,
        About("Prefix of scopes that mean this broker, as in rabbitmq.read:vhost/queue.", values.TEXT),
    ] = "rabbitmq"
    oauth2_scope_claims: Annotated[
        tuple[str, ...],
        About("Claims that hold scopes; a dot enters a table: realm_access.roles.", values.TEXTS),
    ] = ("scope", "scp")
    oauth2_name_claims: Annotated[
        tuple[str, ...], About("Claims that name the user; the first one found counts.", values.TEXTS)
    ] = ("sub", "client_id")
    oauth2_scope_aliases: Annotated[
        tuple[str, ...],
        About("Other names for scopes: developer=rabbitmq.read:*/* rabbitmq.tag:management.", values.TEXTS),
    ] = ()
    jwt_skip_paths: Annotated[
        tuple[str, ...],
        About(
            "Paths open without a token; /* at the end means all below.",
            values.TEXTS,
            aliases=("JWT_SKIP_PATHS",),
        ),
    ] = ("/health", "/metrics", "/metrics/prometheus", "/", "/assets/*")


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """Partitioned queues."""

    retention_interval_ms: Annotated[
        int,
        About("Time between retention runs.", values.MILLISECONDS, 10, aliases=("RETENTION_INTERVAL",)),
    ] = 2_000
    eviction_interval_ms: Annotated[
        int,
        About(
            "Time between eviction runs (maxWaitTimeSeconds).",
            values.MILLISECONDS,
            10,
            aliases=("EVICTION_INTERVAL",),
        ),
    ] = 2_000
    encryption_key: Annotated[
        Secret,
        About(
            "Key of queues with encryptionEnabled: 64 hexadecimal digits.",
            values.SECRET,
            aliases=("QUEEN_ENCRYPTION_KEY",),
        ),
    ] = Secret()
    default_subscription_mode: Annotated[
        SubscriptionDefault,
        About(
            "Where a new consumer group starts when it does not say.",
            values.choice(SubscriptionDefault, {"": "all", "from_beginning": "all", "new-only": "new"}),
            aliases=("DEFAULT_SUBSCRIPTION_MODE",),
        ),
    ] = SubscriptionDefault.ALL
    partition_cleanup_days: Annotated[
        int,
        About(
            "Days after which an empty, idle partition is deleted; 0 keeps all.",
            values.INT,
            0,
            aliases=("PARTITION_CLEANUP_DAYS",),
        ),
    ] = 30
    dedup_window_seconds: Annotated[
        int, About("How long a transactionId is remembered.", values.WHOLE_SECONDS, 0)
    ] = 3600


class Subscriptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where consumer groups start."""

    lookback: Annotated[
        float, About("How far before its first pop a group in mode new starts.", values.SECONDS, 0)
    ] = 4.0


class Tracing(msgspec.Struct, frozen=True, kw_only=True):
    """Spans for OpenTelemetry; where they go is set by the standard OTEL_ variables."""

    enabled: Annotated[
        bool, About("Make spans of messages that carry a trace context. Needs holtmq[otel].", values.BOOL)
    ] = False


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration of one node."""

    profile: Annotated[
        Profile,
        About(
            "rabbitmq selects RabbitMQ's side of every difference in docs/amqp.md; explicit settings win.",
            values.choice(Profile),
        ),
    ] = Profile.HOLT
    data: Data = Data()
    journal: Journal = Journal()
    amqp: Amqp = Amqp()
    compatibility: Compatibility = Compatibility()
    interceptors: Interceptors = Interceptors()
    http: Http = Http()
    limits: Limits = Limits()
    log: Log = Log()
    auth: Auth = Auth()
    queue: Queue = Queue()
    subscriptions: Subscriptions = Subscriptions()
    tracing: Tracing = Tracing()

"""All settings: name, type, default, bounds and one line of help.

Owns: the typed, frozen sections that are passed down through the program. The documentation, the flags of
``holt serve`` and ``holt config`` are generated from them. The sections of the listeners are in
``listener_settings.py``, those that choose RabbitMQ's behaviour in ``compatibility.py``. Must not touch:
files and the environment; ``load`` reads them.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from holtmq.config import values
from holtmq.config.about import KIB, MIB, About
from holtmq.config.choices import JwtAlgorithm, LogFormat, LogLevel, Profile, SubscriptionDefault, SyncMode
from holtmq.config.compatibility import Compatibility
from holtmq.config.listener_settings import Amqp, Http, Interceptors
from holtmq.config.values import Secret


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
    replica_busy_poll: Annotated[
        float,
        About(
            "How long the event loop polls for PostgreSQL's answer to a small commit instead of sleeping: "
            "shorter waits for one confirm at a time, for CPU time. 0: it sleeps.",
            values.SECONDS,
            0,
            0.01,
        ),
    ] = 0.001


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

    dedup_memory: Annotated[
        float,
        About(
            "Memory for the transaction ids that partitioned queues remember, all together; above it the "
            "queues with the most ids forget the oldest early: a fraction of the machine's, or a size.",
            values.FRACTION_OR_SIZE,
        ),
    ] = 1_073_741_824.0

    def dedup_memory_bytes(self, total: int) -> int:
        """Memory for ids on a machine with ``total`` bytes: at most a quarter of the alarm threshold."""
        wanted = int(total * self.dedup_memory) if self.dedup_memory <= 1 else int(self.dedup_memory)
        return min(wanted, self.memory_bytes(total) // 4)

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

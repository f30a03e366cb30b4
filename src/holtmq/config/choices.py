"""Settings that take one of a few words.

Owns: the words. Must not touch: what they mean to the program.
"""

from enum import StrEnum


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

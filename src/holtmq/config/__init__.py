"""The configuration of a node: parsed once at start, then handed down as a frozen ``Config``.

Owns: the public names. No other part of the program reads settings from the environment.
"""

from holtmq.config.load import ConfigError, Loaded, Problem, load
from holtmq.config.settings import (
    Amqp,
    Auth,
    Compatibility,
    Config,
    Data,
    Http,
    Intercept,
    Interceptors,
    Journal,
    JwtAlgorithm,
    Limits,
    Log,
    LogFormat,
    LogLevel,
    Profile,
    Queue,
    SubscriptionDefault,
    Subscriptions,
    SyncMode,
    Tls,
    TlsVerify,
)
from holtmq.config.values import Secret

__all__ = [
    "Amqp",
    "Auth",
    "Compatibility",
    "Config",
    "ConfigError",
    "Data",
    "Http",
    "Intercept",
    "Interceptors",
    "Journal",
    "JwtAlgorithm",
    "Limits",
    "Loaded",
    "Log",
    "LogFormat",
    "LogLevel",
    "Problem",
    "Profile",
    "Queue",
    "Secret",
    "SubscriptionDefault",
    "Subscriptions",
    "SyncMode",
    "Tls",
    "TlsVerify",
    "load",
]

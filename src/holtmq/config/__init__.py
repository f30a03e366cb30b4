"""The configuration of a node: parsed once at start, then handed down as a frozen ``Config``.

Owns: the public names. No other part of the program reads settings from the environment.
"""

from holtmq.config.choices import (
    Intercept,
    JwtAlgorithm,
    LogFormat,
    LogLevel,
    Profile,
    SubscriptionDefault,
    SyncMode,
    TlsVerify,
)
from holtmq.config.compatibility import Compatibility
from holtmq.config.listener_settings import Amqp, Http, Interceptors, Tls
from holtmq.config.load import ConfigError, Loaded, Problem, load
from holtmq.config.settings import Auth, Config, Data, Journal, Limits, Log, Queue, Subscriptions
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

"""Checks of settings that are valid alone but contradict each other, and of formats no type can check.

Owns: those rules. Must not touch: files and the environment; a file that is named here need not exist yet.
"""

import re
from collections.abc import Iterator

from holtmq.config.choices import JwtAlgorithm, TlsVerify
from holtmq.config.listener_settings import Tls
from holtmq.config.settings import Auth, Config

SHORTEST_SECRET = 16  # bytes; RFC 7518 requires 32, and the node warns below that


def contradictions(config: Config) -> Iterator[tuple[str, str]]:
    """Pairs of a setting's name and what is wrong with it."""
    yield from _tls_contradictions("amqp", config.amqp, config.amqp.port, config.amqp.tls_port)
    yield from _tls_contradictions("http", config.http, config.http.port, config.http.tls_port)
    if config.amqp.port == config.http.port != 0:
        yield "http.port", "http.port and amqp.port are the same"
    for section, plain, tls in (
        ("amqp", config.amqp.plain, config.amqp.tls_cert),
        ("http", config.http.plain, config.http.tls_cert),
    ):
        if not plain and tls is None:
            yield (
                f"{section}.plain",
                f"{section}.plain is off without {section}.tls_cert: nothing would listen",
            )
    for origin in config.http.cors_origins:
        if not re.fullmatch(r"https?://[^/\s*]+", origin):
            text = (
                f"http.cors_origins names {origin!r}: an origin is http(s)://host[:port], without path or *"
            )
            yield "http.cors_origins", text
    for section, hosts in (("amqp", config.amqp.host), ("http", config.http.host)):
        if not hosts:
            yield f"{section}.host", f"{section}.host names no address to listen on"
    yield from _token_contradictions(config.auth)
    if config.journal.replica and config.data.memory:
        yield (
            "journal.replica",
            "journal.replica is set, and data.memory keeps nothing that could be replicated",
        )
    if config.journal.replica and not config.journal.replica_name:
        yield "journal.replica_name", "journal.replica_name is empty: the log needs a name"
    key = config.queue.encryption_key
    if key and not re.fullmatch(r"[0-9a-fA-F]{64}", key):
        yield "queue.encryption_key", "queue.encryption_key must be 64 hexadecimal digits"


def _tls_contradictions(section: str, tls: Tls, port: int, tls_port: int) -> Iterator[tuple[str, str]]:
    if tls.tls_cert is not None and tls.tls_key is None:
        yield f"{section}.tls_cert", f"{section}.tls_cert is set without {section}.tls_key"
    if tls.tls_key is not None and tls.tls_cert is None:
        yield f"{section}.tls_key", f"{section}.tls_key is set without {section}.tls_cert"
    if tls.tls_verify is not TlsVerify.NONE and tls.tls_ca is None:
        text = f"{section}.tls_verify needs {section}.tls_ca to check certificates against"
        yield f"{section}.tls_verify", text
    if tls.tls_cert is not None and port == tls_port != 0:
        yield f"{section}.tls_port", f"{section}.tls_port and {section}.port are the same"


def _token_contradictions(auth: Auth) -> Iterator[tuple[str, str]]:
    if not auth.jwt_enabled:
        return
    has_public_key = bool(auth.jwt_public_key or auth.jwt_jwks_url)
    algorithm = auth.jwt_algorithm
    if algorithm is JwtAlgorithm.HS256 and not auth.jwt_secret:
        yield "auth.jwt_enabled", "HS256 tokens need auth.jwt_secret"
    elif algorithm not in (JwtAlgorithm.HS256, JwtAlgorithm.AUTO) and not has_public_key:
        yield "auth.jwt_enabled", f"{algorithm} tokens need auth.jwt_public_key or auth.jwt_jwks_url"
    elif algorithm is JwtAlgorithm.AUTO and not has_public_key and not auth.jwt_secret:
        yield "auth.jwt_enabled", "tokens need auth.jwt_secret, auth.jwt_public_key or auth.jwt_jwks_url"
    uses_secret = algorithm in (JwtAlgorithm.HS256, JwtAlgorithm.AUTO)
    if uses_secret and 0 < len(auth.jwt_secret.encode()) < SHORTEST_SECRET:
        text = (
            f"auth.jwt_secret has fewer than {SHORTEST_SECRET} bytes: HS256 tokens could be forged by trying"
        )
        yield "auth.jwt_secret", text
    for line in auth.oauth2_scope_aliases:
        if not re.fullmatch(r"[^=]*\S[^=]*=.*\S.*", line):
            text = f"auth.oauth2_scope_aliases has {line!r}: the form is alias=scope scope"
            yield "auth.oauth2_scope_aliases", text
    if not auth.oauth2_resource_server:
        yield "auth.oauth2_resource_server", "auth.oauth2_resource_server is empty: scopes need a prefix"
    url = auth.jwt_jwks_url
    if url and not url.startswith(("https://", "http://")):
        yield "auth.jwt_jwks_url", "auth.jwt_jwks_url must begin with https:// or http://"

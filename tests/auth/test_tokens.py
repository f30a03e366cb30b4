"""Tokens: signatures with real keys, claims, roles, and key sets that change."""

import base64
import hashlib
import hmac
import json
from http.client import BadStatusLine, IncompleteRead
from typing import Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holtmq.auth.roles import Bearer, Role, TokenRefused
from holtmq.auth.token_keys import BadKey
from holtmq.auth.tokens import TokenVerifier
from holtmq.config import Auth, JwtAlgorithm, Secret

NOW: Final = 1_800_000_000.0
SECRET: Final = "a secret of more than thirty-two bytes"
RSA_KEY: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA_KEY: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ED_KEY: Final = ed25519.Ed25519PrivateKey.generate()
PrivateKey = rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def pem(key: PrivateKey | ec.EllipticCurvePrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def token(
    key: PrivateKey | str = SECRET, algorithm: str = "HS256", kid: str | None = None, **claims: object
) -> str:
    return jwt.encode(
        {"role": "admin", **claims}, key, algorithm=algorithm, headers={"kid": kid} if kid else None
    )


def hs256(**settings: object) -> TokenVerifier:
    return TokenVerifier(Auth(**{"jwt_secret": Secret(SECRET), **settings}))  # type: ignore[arg-type]


def refusal(verifier: TokenVerifier, authorization: str | None, now: float = NOW) -> str:
    with pytest.raises(TokenRefused) as caught:
        verifier.verify(authorization, now)
    return str(caught.value)


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "BEARER  {}", "{}"])
def test_the_scheme_is_case_insensitive_and_may_be_left_out(form: str) -> None:
    identity = hs256().verify(form.format(token(sub="ann")), NOW)

    assert identity == Bearer("ann", Role.ADMIN, identity.expires_at)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic Z3Vlc3Q6Z3Vlc3Q=", "Bearer a b"])
def test_without_a_token_authentication_is_required(header: str | None) -> None:
    assert refusal(hs256(), header) == "Authentication required"


@pytest.mark.parametrize("garbage", ["x", "a.b.c", "..", "é.é.é", "x" * 20_000, "W10.W10.W10"])
def test_garbage_is_a_refusal_and_nothing_else(garbage: str) -> None:
    assert refusal(hs256(), f"Bearer {garbage}") in {"Invalid token format", "Unsupported token algorithm"}


def test_a_payload_that_is_not_an_object_is_refused() -> None:
    signed = jwt.PyJWS().encode(b"[1]", SECRET, algorithm="HS256")

    assert refusal(hs256(), signed) == "Invalid token format"


def test_a_wrong_or_altered_signature_is_refused() -> None:
    head, _, signature = token().split(".")
    forged = base64.urlsafe_b64encode(b'{"role":"admin","sub":"root"}').rstrip(b"=").decode()

    assert refusal(hs256(), token("another secret of thirty-two bytes!")) == "Invalid token signature"
    assert refusal(hs256(), f"{head}.{forged}.{signature}") == "Invalid token signature"


def test_an_unsigned_token_is_refused() -> None:
    unsigned = jwt.encode({"role": "admin"}, "", algorithm="none")

    assert refusal(hs256(), unsigned) == "Unsupported token algorithm"


@pytest.mark.parametrize(
    ("algorithm", "key"), [("RS256", RSA_KEY), ("EdDSA", ED_KEY)], ids=["RS256", "EdDSA"]
)
@pytest.mark.parametrize("escaped", [False, True], ids=["pem", "pem with \\n written out"])
def test_public_key_signatures_are_checked(algorithm: str, key: PrivateKey, escaped: bool) -> None:
    text = pem(key).replace("\n", "\\n") if escaped else pem(key)
    verifier = TokenVerifier(Auth(jwt_algorithm=JwtAlgorithm(algorithm), jwt_public_key=text))

    assert verifier.verify(token(key, algorithm), NOW).role is Role.ADMIN
    assert refusal(verifier, token()) == "Unsupported token algorithm"
    if key is RSA_KEY:
        assert refusal(verifier, token(OTHER_RSA_KEY, "RS256")) == "Invalid token signature"


def test_a_public_key_never_serves_as_a_shared_secret() -> None:
    settings = Auth(jwt_algorithm=JwtAlgorithm.AUTO, jwt_public_key=pem(RSA_KEY), jwt_secret=Secret(SECRET))
    verifier = TokenVerifier(settings)
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
    body = base64.urlsafe_b64encode(b'{"role":"admin"}').rstrip(b"=")
    mac = hmac.new(pem(RSA_KEY).encode(), header + b"." + body, hashlib.sha256).digest()
    forged = b".".join([header, body, base64.urlsafe_b64encode(mac).rstrip(b"=")]).decode()

    assert refusal(verifier, forged) == "Invalid token signature"


def test_auto_takes_whatever_is_configured_and_nothing_else() -> None:
    both = TokenVerifier(
        Auth(jwt_algorithm=JwtAlgorithm.AUTO, jwt_secret=Secret(SECRET), jwt_public_key=pem(ED_KEY))
    )
    key_only = TokenVerifier(Auth(jwt_algorithm=JwtAlgorithm.AUTO, jwt_public_key=pem(ED_KEY)))

    assert both.verify(token(), NOW).role is Role.ADMIN
    assert both.verify(token(ED_KEY, "EdDSA"), NOW).role is Role.ADMIN
    assert refusal(both, token(RSA_KEY, "RS256")) == "Unsupported token algorithm"
    assert refusal(key_only, token()) == "Unsupported token algorithm"


@pytest.mark.parametrize(
    "text", ["no key", pem(ec.generate_private_key(ec.SECP521R1()))], ids=["no key", "EC"]
)
def test_a_key_that_cannot_be_used_is_refused_at_start(text: str) -> None:
    with pytest.raises(BadKey, match=r"auth\.jwt_public_key"):
        TokenVerifier(Auth(jwt_algorithm=JwtAlgorithm.RS256, jwt_public_key=text))


def test_expiry_and_start_allow_for_the_clock_skew_and_no_more() -> None:
    verifier = hs256(jwt_clock_skew=30.0)
    expiring, starting = token(exp=NOW), token(nbf=NOW)

    assert verifier.verify(expiring, NOW + 29).role is Role.ADMIN
    assert refusal(verifier, expiring, NOW + 30) == "Token has expired"
    assert verifier.verify(starting, NOW - 30).role is Role.ADMIN
    assert refusal(verifier, starting, NOW - 31) == "Token is not yet valid"


def test_a_token_that_was_good_a_moment_ago_still_expires() -> None:
    verifier, expiring = hs256(), token(exp=NOW + 100)

    assert verifier.verify(expiring, NOW).role is Role.ADMIN
    assert refusal(verifier, expiring, NOW + 1000) == "Token has expired"
    assert refusal(verifier, expiring, NOW + 1000) == "Token has expired"


@pytest.mark.parametrize("moment", ["soon", True, None, float("nan"), [1]])
def test_a_time_that_is_no_time_is_refused(moment: object) -> None:
    for claim in ("exp", "nbf"):
        signed = jwt.PyJWS().encode(json.dumps({"role": "admin", claim: moment}).encode(), SECRET, "HS256")

        assert refusal(hs256(), signed) == "Invalid token claims"


@pytest.mark.parametrize(
    ("claim", "moment", "text"),
    [
        ("exp", 10**400, "Invalid token claims"),
        ("nbf", -(10**400), "Invalid token claims"),
        ("nbf", 10**400, "Invalid token claims"),
        ("exp", 2**70, None),
        ("nbf", 2**70, "Token is not yet valid"),
    ],
    ids=range(5),
)
def test_a_time_may_be_far_away_but_not_beyond_numbers(claim: str, moment: int, text: str | None) -> None:
    body = json.dumps({"role": "admin", claim: moment}).encode()
    signed = jwt.PyJWS().encode(body, SECRET, "HS256")

    if text is None:
        assert hs256().verify(signed, NOW).role is Role.ADMIN
    else:
        assert refusal(hs256(), signed) == text


@pytest.mark.parametrize("end", ["2e12", "1e306", "1.7e308", "1" + "0" * 308, "253402300800"])
def test_an_end_after_the_year_9999_is_none(end: str) -> None:
    """A timer for 1e306 could not be set: the AMQP client was never answered."""
    signed = jwt.PyJWS().encode(b'{"role": "admin", "exp": %s}' % end.encode(), SECRET, "HS256")

    assert hs256().verify(signed, NOW).expires_at is None
    assert refusal(hs256(jwt_require_exp=True), signed) == "Token has no expiry (exp)"


@pytest.mark.parametrize("secret", [pem(RSA_KEY), "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC"])
def test_a_public_key_as_the_shared_secret_is_refused_at_start(secret: str) -> None:
    with pytest.raises(BadKey, match=r"auth\.jwt_secret"):
        hs256(jwt_secret=Secret(secret))


@pytest.mark.parametrize("algorithm", [["HS256"], {"HS256": 1}, None, 1, True])
def test_an_algorithm_that_is_no_text_is_refused(algorithm: object) -> None:
    """One request without a login was answered with 500, over AMQP with nothing at all."""
    head = base64.urlsafe_b64encode(json.dumps({"alg": algorithm}).encode()).rstrip(b"=").decode()

    assert refusal(hs256(), f"{head}.e30.e30") == "Unsupported token algorithm"


@pytest.mark.parametrize("claim", ["sub", "scope", "role"])
def test_claims_that_are_not_unicode_are_refused(claim: str) -> None:
    signed = jwt.PyJWS().encode(
        b'{"role":"admin","%s":"rabbitmq.read:*/\\ud800"}' % claim.encode(), SECRET, "HS256"
    )

    assert refusal(hs256(), signed) == "Invalid token claims"


def test_issuer_and_audience_are_checked_when_configured() -> None:
    verifier = hs256(jwt_issuer="us", jwt_audience="holt")

    assert verifier.verify(token(iss="us", aud="holt"), NOW).role is Role.ADMIN
    assert verifier.verify(token(iss="us", aud=["other", "holt"]), NOW).role is Role.ADMIN
    for issuer in ({}, {"iss": "them"}, {"iss": ["us"]}):
        assert refusal(verifier, jwt_of({"aud": "holt", **issuer})) == "Invalid token issuer"
    for audience in ({}, {"aud": "hol"}, {"aud": ["other"]}, {"aud": 3}):
        assert refusal(verifier, jwt_of({"iss": "us", **audience})) == "Invalid token audience"
    assert hs256().verify(jwt_of({"iss": "anyone", "aud": "anything"}), NOW).role is Role.ADMIN


def jwt_of(claims: dict[str, object]) -> str:
    return jwt.PyJWS().encode(json.dumps({"role": "admin", **claims}).encode(), SECRET, algorithm="HS256")


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({"role": "admin"}, Role.ADMIN),
        ({"role": "read-write"}, Role.READ_WRITE),
        ({"role": "read-only"}, Role.READ_ONLY),
        ({"role": "", "roles": ["read-only", "read-write", "else"]}, Role.READ_WRITE),
        ({"role": "read-only", "roles": ["admin"]}, Role.ADMIN),
        ({"role": "Admin"}, None),
        ({"role": 7, "roles": {"admin": True}}, None),
        ({"role": "else", "roles": [None, 3]}, None),
    ],
)
def test_the_highest_known_role_counts(claims: dict[str, object], role: Role | None) -> None:
    assert hs256().verify(jwt_of(claims), NOW).role is role


def test_role_names_can_be_configured() -> None:
    verifier = hs256(jwt_role_admin="boss")

    assert verifier.verify(token(role="boss"), NOW).role is Role.ADMIN
    assert verifier.verify(token(role="admin"), NOW).role is None


def test_a_token_without_an_end_is_warned_about_once_a_subject(caplog: pytest.LogCaptureFixture) -> None:
    verifier = hs256()

    for subject in ("ann", "ann", "bob"):
        verifier.verify(jwt_of({"sub": subject, "jti": str(len(caplog.records))}), NOW)
    verifier.verify(jwt_of({"sub": "carl", "exp": NOW + 60}), NOW)

    assert [record.subject for record in caplog.records] == ["ann", "bob"]  # type: ignore[attr-defined]


def test_a_token_without_an_end_is_refused_where_an_end_is_required() -> None:
    verifier = hs256(jwt_require_exp=True)

    with pytest.raises(TokenRefused, match="no expiry"):
        verifier.verify(jwt_of({"sub": "ann"}), NOW)
    assert verifier.verify(jwt_of({"sub": "ann", "exp": NOW + 60}), NOW).subject == "ann"


@pytest.mark.parametrize(
    ("claims", "subject"), [({}, None), ({"sub": ""}, None), ({"sub": 3}, None), ({"sub": "a"}, "a")]
)
def test_an_empty_or_odd_subject_is_none(claims: dict[str, object], subject: str | None) -> None:
    assert hs256().verify(jwt_of(claims), NOW).subject == subject


def test_open_paths_need_no_token_and_others_do() -> None:
    verifier = hs256()

    assert all(
        verifier.is_open(path)
        for path in ("/", "/health", "/metrics", "/metrics/prometheus", "/assets/a/b.js")
    )
    assert not any(verifier.is_open(path) for path in ("/api/v1/push", "/healthy", "/health/", "/assets", ""))


class Issuer:
    """A key set that can change and fail; counts how often it is asked."""

    def __init__(self, **keys: PrivateKey) -> None:
        self.keys = keys
        self.fetches = 0
        self.document: bytes | None = None
        self.broken = False
        self.trouble: Exception | bytes | None = None

    def fetch(self, url: str) -> bytes:
        self.fetches += 1
        if self.broken:
            raise OSError("unreachable")
        if isinstance(self.trouble, Exception):
            raise self.trouble
        if self.trouble is not None:
            return self.trouble
        return self.document if self.document is not None else json.dumps({"keys": self.jwks()}).encode()

    def jwks(self) -> list[dict[str, object]]:
        return [self._jwk(kid, key) for kid, key in self.keys.items()]

    @staticmethod
    def _jwk(kid: str, key: PrivateKey) -> dict[str, object]:
        if isinstance(key, rsa.RSAPrivateKey):
            shown = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        else:
            shown = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
        return {**shown, "kid": kid, "use": "sig"}

    def verifier(self, **settings: object) -> TokenVerifier:
        auth = Auth(jwt_algorithm=JwtAlgorithm.AUTO, jwt_jwks_url="https://issuer.example/keys", **settings)  # type: ignore[arg-type]
        return TokenVerifier(auth, self.fetch)


async def refused(verifier: TokenVerifier, authorization: str, now: float) -> str:
    with pytest.raises(TokenRefused) as caught:
        await verifier.authenticate(authorization, now)
    return str(caught.value)


async def test_keys_are_fetched_once_and_found_by_their_id() -> None:
    issuer = Issuer(r=RSA_KEY, e=ED_KEY)
    verifier = issuer.verifier()

    for signed in (
        token(RSA_KEY, "RS256", "r"),
        token(ED_KEY, "EdDSA", "e"),
        token(RSA_KEY, "RS256", "r", sub="x"),
    ):
        assert (await verifier.authenticate(signed, NOW)).role is Role.ADMIN

    assert issuer.fetches == 1
    assert await refused(verifier, token(OTHER_RSA_KEY, "RS256", "r"), NOW) == "Invalid token signature"


async def test_a_token_without_a_key_id_is_checked_with_the_only_fitting_key() -> None:
    one, two = Issuer(r=RSA_KEY, e=ED_KEY).verifier(), Issuer(r=RSA_KEY, s=OTHER_RSA_KEY).verifier()

    assert (await one.authenticate(token(RSA_KEY, "RS256"), NOW)).role is Role.ADMIN
    assert await refused(two, token(RSA_KEY, "RS256"), NOW) == "Unknown token key"


async def test_an_unknown_key_id_fetches_again_but_not_more_than_every_ten_seconds() -> None:
    issuer = Issuer(old=RSA_KEY)
    verifier = issuer.verifier()
    await verifier.authenticate(token(RSA_KEY, "RS256", "old"), NOW)

    issuer.keys["new"] = OTHER_RSA_KEY
    rotated = token(OTHER_RSA_KEY, "RS256", "new")
    assert await refused(verifier, rotated, NOW + 9) == "Unknown token key"
    assert (await verifier.authenticate(rotated, NOW + 10)).role is Role.ADMIN
    for number in range(50):
        assert (
            await refused(verifier, token(RSA_KEY, "RS256", f"made-up-{number}"), NOW + 11)
            == "Unknown token key"
        )

    assert issuer.fetches == 2


async def test_old_keys_are_fetched_again_and_a_withdrawn_one_stops_working() -> None:
    issuer = Issuer(a=RSA_KEY)
    verifier = issuer.verifier(jwt_jwks_refresh=3600.0)
    signed = token(RSA_KEY, "RS256", "a")
    await verifier.authenticate(signed, NOW)

    issuer.keys = {"b": OTHER_RSA_KEY}

    assert (await verifier.authenticate(signed, NOW + 3599)).role is Role.ADMIN
    assert await refused(verifier, signed, NOW + 3600) == "Unknown token key"


@pytest.mark.parametrize("document", [b"not json", b"[]", b'{"keys": 3}'])
async def test_an_issuer_in_trouble_leaves_the_keys_in_use(document: bytes) -> None:
    issuer = Issuer(a=RSA_KEY)
    verifier = issuer.verifier()
    signed = token(RSA_KEY, "RS256", "a")
    await verifier.authenticate(signed, NOW)

    issuer.document = document
    assert (await verifier.authenticate(signed, NOW + 4000)).role is Role.ADMIN
    issuer.broken = True
    assert (await verifier.authenticate(signed, NOW + 8000)).role is Role.ADMIN

    assert issuer.fetches == 3


@pytest.mark.parametrize(
    "trouble",
    [
        BadStatusLine("no HTTP"),
        IncompleteRead(b"cut off"),
        b"[" * 100_000,
        b'{"keys": [{"kty": "RSA", "alg": "none"}]}',
    ],
    ids=["no HTTP", "cut off", "nested deeply", "no algorithm"],
)
async def test_an_answer_that_cannot_be_read_leaves_the_keys_in_use(trouble: Exception | bytes) -> None:
    """Each token was an internal error, and an AMQP client was never answered."""
    issuer = Issuer(a=RSA_KEY)
    verifier = issuer.verifier()
    signed = token(RSA_KEY, "RS256", "a")
    await verifier.authenticate(signed, NOW)

    issuer.trouble = trouble

    assert (await verifier.authenticate(signed, NOW + 4000)).role is Role.ADMIN
    assert await refused(verifier, token(ED_KEY, "EdDSA", "b"), NOW + 8000) == "Unknown token key"


def test_an_address_of_keys_that_is_none_is_refused_at_start() -> None:
    with pytest.raises(BadKey, match=r"auth\.jwt_jwks_url is no address"):
        TokenVerifier(Auth(jwt_jwks_url="http://[::1/keys"))


async def test_keys_for_other_purposes_or_of_other_kinds_are_passed_over() -> None:
    issuer = Issuer(a=RSA_KEY)
    (usable,) = issuer.jwks()
    odd = [
        {"kty": "EC", "kid": "a"},
        {**usable, "use": "enc"},
        {**usable, "alg": "RS512"},
        {"kty": "RSA", "kid": "a"},
        {},
    ]
    issuer.document = json.dumps({"keys": [*odd, usable]}).encode()

    assert (await issuer.verifier().authenticate(token(RSA_KEY, "RS256", "a"), NOW)).role is Role.ADMIN


async def test_a_fixed_key_is_used_when_the_issuer_has_none_that_fits() -> None:
    issuer = Issuer(a=RSA_KEY)
    verifier = issuer.verifier(jwt_public_key=pem(ED_KEY))

    assert (await verifier.authenticate(token(ED_KEY, "EdDSA", "z"), NOW)).role is Role.ADMIN

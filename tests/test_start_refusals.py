"""What cannot start says why in one line."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holtmq.auth.topic_permissions import TopicPermission
from holtmq.config import Auth, Config, Data, JwtAlgorithm, Secret
from holtmq.heap import FreedMemory
from holtmq.process import _serve
from holtmq.start_checks import warn
from holtmq.testing import TestBroker
from holtmq.testing.faulty_node import FaultyNode

PUBLIC = (
    ed25519.Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    .decode()
)


@pytest.mark.parametrize(
    ("auth", "reason"),
    [
        (Auth(jwt_enabled=True, jwt_algorithm=JwtAlgorithm.RS256, jwt_public_key="no key"), "jwt_public_key"),
        (Auth(jwt_enabled=True, jwt_secret=Secret(PUBLIC)), "jwt_secret is a public key"),
    ],
    ids=["no key", "a public key as secret"],
)
async def test_keys_that_cannot_be_used(auth: Auth, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """The broker ended with a traceback, or answered each token with 500."""
    status = await _serve(Config(auth=auth, data=Data(memory=True)), FreedMemory(0))

    assert status == 1
    (said,) = [record for record in caplog.records if record.message == "cannot start"]
    assert reason in vars(said)["reason"]


def test_a_topic_permission_that_cannot_be_used_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def check(node: FaultyNode) -> None:
        node.broker.topic_permissions.put(TopicPermission("guest", "/", "topics", "^(?=a)", ".*"))
        warn(node.config, node.broker)

    with TestBroker() as broker:
        broker.call(check)

    (said,) = [record for record in caplog.records if record.message == "pattern matches nothing"]
    assert vars(said)["pattern"] == "^(?=a)"

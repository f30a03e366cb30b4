"""The fast path for acks of messages just popped: a batch with other acks in it gets an answer for each."""

import pytest
from http_support import Api, Json


@pytest.fixture
def popped(api: Api) -> Json:
    """The ack of a message that was just popped."""
    api.push("q", "a")
    (message,) = api.pop("q")
    return {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("stranger", [{"partitionId": ""}, {"partitionId": "no number"}, {"leaseId": None}])
def test_an_ack_of_nothing_beside_a_clean_one_has_its_own_answer(
    api: Api, popped: Json, place: int, stranger: Json
) -> None:
    acks = [popped]
    acks.insert(place, {"partitionId": "", **stranger, "transactionId": "x"})

    answers = api.post("/api/v1/ack/batch", {"acknowledgments": acks}).json()

    assert [answer["index"] for answer in answers] == [0, 1]
    assert [answer["transactionId"] for answer in answers] == [ack["transactionId"] for ack in acks]
    assert [answer["success"] for answer in answers] == [ack is popped for ack in acks]
    assert api.pop("q") == []

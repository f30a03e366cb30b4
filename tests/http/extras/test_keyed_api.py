"""One keyed row by its path, as people write it with curl."""

import pytest
from http_support import Api, Json

_ROW = "/api/v1/kv/ns/a/b"


def test_a_row_is_put_read_and_deleted_by_its_path(api: Api) -> None:
    put = api.http.put(_ROW, json={"value": {"n": 1}, "ttlSeconds": 60}).json()

    got = api.get(_ROW)
    missed = api.get("/api/v1/kv/ns/none")

    assert (put["op"], put["applied"], put["key"]) == ("put", True, "a/b")
    assert (got.json()["found"], got.json()["value"]) == (True, {"n": 1})
    assert got.json()["expiresAt"] is not None
    assert got.headers["etag"] == f'"{put["version"]}"'
    assert (missed.status_code, missed.json()["found"]) == (200, False)
    assert "etag" not in missed.headers
    assert api.delete(_ROW).json()["applied"] is True
    assert api.http.request("DELETE", _ROW, json={}).json()["reason"] == "absent"


def test_a_row_that_is_to_stay_says_so(api: Api) -> None:
    api.http.put(_ROW, json={"value": None, "forever": True})

    row = api.get(_ROW).json()

    assert (row["found"], row["value"], row["expiresAt"]) == (True, None, None)


def test_a_put_or_delete_by_path_may_name_the_version_it_expects(api: Api) -> None:
    first = api.http.put(_ROW, json={"value": 1, "forever": True}).json()["version"]
    second = api.http.put(_ROW, json={"value": 2, "forever": True, "expect": first}).json()

    stale = api.http.put(_ROW, json={"value": 3, "forever": True, "expect": first}).json()
    kept = api.http.request("DELETE", _ROW, json={"expect": first}).json()
    required = api.http.request("DELETE", _ROW, json={"expect": first, "required": True}).json()

    assert second["applied"] is True
    assert (stale["applied"], stale["reason"], stale["version"]) == (False, "version", second["version"])
    assert (kept["applied"], kept["reason"]) == (False, "version")
    assert (required["reason"], required["kvReason"], required["value"]) == ("kv_precondition", "version", 2)
    assert api.get(_ROW).json()["value"] == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"value": 1}, "kv_expiry_not_specified"),
        ({"value": 1, "ttlSeconds": 1, "forever": True}, "kv_expiry_not_specified"),
        ({"value": 1, "forever": True, "key": "other"}, "kv_field_in_path"),
        (1, "json"),
    ],
)
def test_a_bad_put_by_path_is_refused_by_a_word(api: Api, body: Json, reason: str) -> None:
    answer = api.http.put(_ROW, json=body)

    assert (answer.status_code, answer.json()["error"]) == (400, "kv_bad_request")
    assert answer.json()["reason"] == reason
    assert api.get(_ROW).json()["found"] is False


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ({"op": "getPrefix", "prefix": ""}, "kv_prefix_required"),
        ({"op": "put", "key": "k", "value": 1}, "kv_expiry_not_specified"),
        ({"op": "incr", "key": "k", "delta": 1, "forever": True, "expect": 1}, "expect"),
    ],
)
def test_a_bad_operation_is_refused_by_a_word(api: Api, operation: Json, reason: str) -> None:
    answer = api.post("/api/v1/kv", [{"ns": "ns", **operation}])

    assert (answer.status_code, answer.json()["reason"]) == (400, reason)


@pytest.mark.parametrize(
    ("value", "delta"),
    [("1e308", "1e308"), ("-1e308", "-1e308"), ("9" * 400, "0.5"), ("9" * 4_300, "1")],
    ids=["no float", "no float below zero", "too large for a float", "more digits than Python writes"],
)
def test_a_counter_stops_before_what_no_number_holds(api: Api, value: str, delta: str) -> None:
    api.http.put(_ROW, content=f'{{"value": {value}, "forever": true}}')

    incr = f'[{{"op": "incr", "ns": "ns", "key": "a/b", "delta": {delta}, "forever": true}}]'
    answer = api.http.post("/api/v1/kv", content=incr)

    assert answer.status_code == 200
    assert b'"applied":false,"reason":"limit"' in answer.content
    assert f'"value":{value},'.encode() in api.get(_ROW).content


def test_a_call_reads_at_most_so_many_rows_by_their_keys(api: Api) -> None:
    ask = {"op": "getMany", "ns": "ns", "keys": ["k"] * 2_501}

    refused = api.post("/api/v1/kv", [ask, ask])
    taken = api.post("/api/v1/kv", [ask])

    assert (refused.status_code, refused.json()["reason"]) == (413, "keys")
    assert "5002 keys, more than 5000" in refused.json()["detail"]
    assert taken.json()["results"][0]["missing"] == ["k"]

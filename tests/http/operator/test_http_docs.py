"""The API describes every route it serves, and nothing else."""

import re

from http_support import Api

from holtmq.http.routes import ENDPOINTS


def test_the_document_has_every_route_with_its_parameters(api: Api) -> None:
    document = api.get("/openapi.json").json()

    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    served = {(endpoint.method, re.sub(r":\w+\}", "}", endpoint.path)) for endpoint in ENDPOINTS}
    assert described == served
    pop = document["paths"]["/api/v1/pop/queue/{queue}"]["get"]
    assert {"queue", "batch", "wait", "consumerGroup"} <= {row["name"] for row in pop["parameters"]}
    push = document["paths"]["/api/v1/push"]["post"]
    assert push["requestBody"]["content"]["application/json"]["schema"]
    names = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))


def test_every_reference_in_the_document_leads_somewhere(api: Api) -> None:
    answer = api.get("/openapi.json")
    schemas = answer.json()["components"]["schemas"]

    for name in re.findall(r'"#/components/schemas/([^"]+)"', answer.text):
        assert name in schemas


def test_the_page_needs_nothing_from_elsewhere(api: Api) -> None:
    answer = api.get("/docs")

    assert answer.headers["content-type"].startswith("text/html")
    assert "http://" not in answer.text
    assert "https://" not in answer.text
    assert "/openapi.json" in answer.text

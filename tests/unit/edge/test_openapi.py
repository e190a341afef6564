"""The OpenAPI document says what the routes and the error table say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from iop_fast.edge.openapi import ELSEWHERE, document
from iop_fast.edge.routes import MODELS_PATH, SURFACES
from iop_fast.errors import Failure

PAGE: dict[str, Any] = json.loads(json.dumps(document("127.0.0.1:8080")))


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref":
                yield item
            else:
                yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_route_is_there_and_nothing_else() -> None:
    models = MODELS_PATH.decode()
    assert set(PAGE["paths"]) == {path.decode() for path in SURFACES} | {models, f"{models}/{{model}}"}
    names = [way["operationId"] for path in PAGE["paths"].values() for way in path.values()]
    assert len(names) == len(set(names))
    assert "createMessagesCountTokens" in names
    assert PAGE["servers"] == [{"url": "http://127.0.0.1:8080"}]


def test_every_reference_leads_somewhere() -> None:
    for reference in references(PAGE):
        place = PAGE
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
        assert place


def test_every_failure_stands_where_it_can_happen() -> None:
    chat = PAGE["paths"]["/v1/chat/completions"]["post"]["responses"]
    for failure in set(Failure) - ELSEWHERE:
        assert failure.value.code in chat[str(failure.value.status)]["description"]
    listed = PAGE["paths"]["/v1/models"]["get"]["responses"]
    assert "429" not in listed
    assert "401" in listed
    assert "404" in PAGE["paths"]["/v1/models/{model}"]["get"]["responses"]
    message = PAGE["paths"]["/v1/messages"]["post"]["responses"]["429"]["content"]["application/json"]["schema"]
    assert message["anyOf"][0] == {"$ref": "#/components/schemas/AnthropicError"}

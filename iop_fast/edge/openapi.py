"""The OpenAPI document of the HTTP surface, made from the routes and the error table (spec.openapis.org/oas/v3.1.0).

It says what the gateway itself demands and answers. What a request may hold beyond `model` is the provider's business:
it is passed through as it came, so the schemas here leave it open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import iop_fast
from iop_fast.edge.answers import EVENT_STREAM, anthropic_type
from iop_fast.edge.routes import MODELS_PATH, SURFACES, Dialect, Surface
from iop_fast.errors import Failure

JSON_TYPE = "application/json"
FORM_TYPE = "multipart/form-data"

# What a path may answer beyond what any request may meet; every failure stands in one of these.
WITH_MODEL_ONLY = frozenset(
    {
        Failure.QUEUE_FULL,
        Failure.QUEUE_TIMEOUT,
        Failure.UNSUPPORTED_BY_MODEL,
        Failure.INVALID_REQUEST,
        Failure.REQUEST_TOO_LARGE,
        Failure.UNSUPPORTED_ENCODING,
        Failure.UNSUPPORTED_MEDIA_TYPE,
        Failure.MISSING_PROVIDER_AUTHORIZATION,
        Failure.UPSTREAM_ERROR,
        Failure.UPSTREAM_TIMEOUT,
        Failure.UNAVAILABLE,
        Failure.MODEL_NOT_FOUND,
    }
)
# Of paths and methods that the document does not have, so no operation of it answers them.
ELSEWHERE = frozenset({Failure.NOT_FOUND, Failure.METHOD_NOT_ALLOWED, Failure.METHOD_NOT_IMPLEMENTED})
ANYWHERE = frozenset(Failure) - WITH_MODEL_ONLY - ELSEWHERE

HEADERS: Mapping[str, str] = {
    "x-request-id": "Id of this request in the gateway's log and in the provider's request.",
    "x-iop-provider": "The provider that got the request, also where it failed.",
    "x-iop-node": "The Node that it stands on.",
    "x-iop-queue-ms": "Milliseconds that the request waited for a slot.",
    "x-iop-clamped": "Fields that were lowered to the model's ceiling.",
    "x-iop-reason": "Of the gateway's own errors: why; a provider's error has none.",
}


def document(address: str) -> dict[str, Any]:
    """Build the document of a gateway that listens on `address` ("host:port")."""
    paths: dict[str, Any] = {surface.path.decode(): {"post": operation(surface)} for surface in SURFACES.values()}
    models = MODELS_PATH.decode()
    paths[models] = {"get": read_operation("listModels", "Every configured model.", "ModelList", ANYWHERE)}
    one = read_operation("getModel", "One model.", "Model", ANYWHERE | {Failure.MODEL_NOT_FOUND})
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    paths[f"{models}/{{model}}"] = {"get": {**one, "parameters": [name]}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "iop_fast",
            "version": iop_fast.__version__,
            "description": "One OpenAI-compatible endpoint in front of a mixed fleet of model servers.",
        },
        "servers": [{"url": f"http://{address}"}],
        "security": [{}, {"bearer": []}, {"apiKey": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "headers": {name: {"description": text, "schema": {"type": "string"}} for name, text in HEADERS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def operation(surface: Surface) -> dict[str, Any]:
    """Describe one tunnelled API."""
    content: dict[str, Any] = {JSON_TYPE: {}, EVENT_STREAM.decode(): {}}
    asked = {FORM_TYPE: {"schema": ref("Upload")}} if surface.is_form else {JSON_TYPE: {"schema": ref("Request")}}
    words = surface.path.decode().removeprefix("/v1/").replace("_", "/").split("/")
    return {
        "operationId": "create" + "".join(word.capitalize() for word in words),
        "summary": f"Tunnelled to a provider of the model; only `model` is replaced ({surface.path.decode()}).",
        "requestBody": {"required": True, "content": asked},
        "responses": {
            "200": {"description": "The provider's answer, byte for byte.", "headers": headers(), "content": content},
            **failures(WITH_MODEL_ONLY | ANYWHERE, surface.dialect, is_tunnelled=True),
            "default": {"description": "An error answer of the provider's own, as it came.", "headers": headers()},
        },
    }


def read_operation(name: str, summary: str, schema: str, possible: frozenset[Failure]) -> dict[str, Any]:
    """Describe a page that the gateway answers by itself."""
    content = {JSON_TYPE: {"schema": ref(schema)}}
    good = {"description": summary, "headers": headers("x-request-id"), "content": content}
    return {
        "operationId": name,
        "summary": summary,
        "responses": {"200": good, **failures(possible, Dialect.OPENAI)},
    }


def failures(possible: frozenset[Failure], dialect: Dialect, *, is_tunnelled: bool = False) -> dict[str, Any]:
    """Describe error answers by status, each with the codes that it may have. Where a provider answers, it may use the
    same statuses for errors of its own, which pass as they came: those have no `x-iop-reason`."""
    by_status: dict[int, list[Failure]] = {}
    for failure in Failure:
        if failure in possible:
            by_status.setdefault(failure.value.status, []).append(failure)
    schema = ref("AnthropicError" if dialect is Dialect.ANTHROPIC else "Error")
    content: dict[str, Any] = {JSON_TYPE: {"schema": schema}}
    if is_tunnelled:
        content = {JSON_TYPE: {"schema": {"anyOf": [schema, ref("ProviderError")]}}, "*/*": {}}
    return {
        str(status): {
            "description": "; ".join(f"{failure.value.code}: {failure.value.when}" for failure in rows),
            "headers": headers(*(() if is_tunnelled else ("x-request-id", "x-iop-reason"))),
            "content": content,
        }
        for status, rows in sorted(by_status.items())
    }


def headers(*names: str) -> dict[str, Any]:
    """Refer to the fields that an answer may have; all of them when none is named."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names or HEADERS}


def ref(name: str) -> dict[str, str]:
    """Refer to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


SCHEMAS: Mapping[str, Any] = {
    "Request": {
        "type": "object",
        "required": ["model"],
        "properties": {
            "model": {"type": "string", "maxLength": 1024, "description": "A model of /v1/models."},
            "stream": {"type": ["boolean", "null"]},
            "messages": {"type": "array"},
        },
    },
    "Upload": {
        "type": "object",
        "required": ["model"],
        "properties": {
            "model": {
                "type": "string",
                "maxLength": 1024,
                "pattern": r"^[^\u0000-\u001f\u007f]*$",
                "description": "A model of /v1/models.",
            },
            "file": {"type": "string", "contentMediaType": "application/octet-stream"},
            "stream": {"enum": ["true", "false"]},
        },
        "propertyNames": {"pattern": r"^[A-Za-z0-9_.:\[\]-]{1,64}$"},
    },
    "Model": {
        "type": "object",
        "required": ["id", "object", "created", "owned_by", "iop"],
        "properties": {
            "id": {"type": "string"},
            "object": {"const": "model"},
            "created": {"type": "integer"},
            "owned_by": {"type": "string"},
            "max_model_len": {"type": "integer", "description": "Context window in tokens."},
            "iop": {
                "type": "object",
                "required": ["live_candidates", "long_slots"],
                "properties": {
                    "live_candidates": {"type": "integer", "description": "Providers that could serve it now."},
                    "long_slots": {"type": "integer", "description": "Their slots for long requests."},
                },
            },
        },
    },
    "ModelList": {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": ref("Model")}},
    },
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"enum": sorted({failure.value.type for failure in Failure})},
                    "param": {"type": ["string", "null"]},
                    "code": {"enum": sorted({failure.value.code for failure in Failure})},
                },
            }
        },
    },
    "ProviderError": {"description": "An error of the provider's own, as it came."},
    "AnthropicError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {
                    "type": {"enum": sorted({anthropic_type(failure) for failure in Failure})},
                    "message": {"type": "string"},
                },
            },
        },
    },
}

"""The OpenAPI document of the admin listener (spec.openapis.org/oas/v3.1.0), for tools that operators build on it.

Schemas of pages about requests are made from `event_shapes`; a report of a refresh and the snapshot are open objects,
whose fields `iop status --json` and docs/admin.md show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

import iop_fast
from iop_fast.edge.event_shapes import ExplainPage, QueuePart, RunsPage, Snapshot
from iop_fast.edge.views import LIMIT_DEFAULT, LIMIT_MAX
from iop_fast.logs import LEVELS

JSON_TYPE = "application/json"

SHAPES: Mapping[str, Any] = {
    "Queue": QueuePart,
    "Runs": RunsPage,
    "Explanation": ExplainPage,
    "Snapshot": Snapshot,
}

LIMIT = {
    "name": "limit",
    "in": "query",
    "schema": {"type": "integer", "minimum": 0, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
}


def admin_document() -> dict[str, Any]:
    """Build the document."""
    schemas: dict[str, Any] = {"Error": ERROR, "Open": {"type": "object"}, "Level": LEVEL}
    for name, shape in SHAPES.items():
        schema = TypeAdapter(shape).json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[name] = schema
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "iop_fast, admin listener",
            "version": iop_fast.__version__,
            "description": "For programs on the Edge's own machine; a guard refuses what comes from elsewhere (403).",
        },
        "paths": PATHS,
        "components": {"schemas": schemas},
    }


def answers(summary: str, schema: str, media_type: str = JSON_TYPE, *more: str) -> dict[str, Any]:
    """Describe an operation: its good answer, and statuses with an error's form."""
    content = {media_type: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": content},
            **{status: failure() for status in (*more, "403")},
        },
    }


def failure() -> dict[str, Any]:
    """Describe an error answer."""
    content = {JSON_TYPE: {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": "`error.code` and `error.message` say why.", "content": content}


def parameter(name: str, text: str, kind: str = "string", required: bool = False) -> dict[str, Any]:
    """Describe a parameter of the query."""
    return {"name": name, "in": "query", "description": text, "required": required, "schema": {"type": kind}}


def body(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Describe what is posted."""
    return {"required": True, "content": {JSON_TYPE: {"schema": schema}}}


ERROR: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        }
    },
}

LEVEL: Mapping[str, Any] = {
    "type": "object",
    "required": ["logger", "level", "is_own"],
    "properties": {"logger": {"type": "string"}, "level": {"enum": list(LEVELS)}, "is_own": {"type": "boolean"}},
}

REFRESH_REQUEST = {
    "type": "object",
    "required": ["mode"],
    "additionalProperties": False,
    "properties": {"mode": {"enum": ["dry_run", "apply"]}, "config": {"type": "string"}},
}

LEVEL_REQUEST = {
    "type": "object",
    "required": ["level"],
    "additionalProperties": False,
    "properties": {"logger": {"type": "string"}, "level": {"enum": [*LEVELS, "default"]}},
}

VERBOSE = parameter("verbose", "Name every check.")

PATHS: Mapping[str, Mapping[str, Any]] = {
    "/livez": {"get": answers("The event loop answers.", "Open")},
    "/readyz": {"get": {**answers("Whether requests should be sent here.", "Open"), "parameters": [VERBOSE]}},
    "/status": {"get": answers("The snapshot: Nodes, providers, counters, usage.", "Open")},
    "/queue": {"get": {**answers("Who waits, in order, and why.", "Queue", JSON_TYPE, "400"), "parameters": [LIMIT]}},
    "/runs": {"get": {**answers("What runs where.", "Runs", JSON_TYPE, "400"), "parameters": [LIMIT]}},
    "/explain": {
        "get": {
            **answers("What would become of a request now.", "Explanation", JSON_TYPE, "400", "404"),
            "parameters": [
                parameter("model", "A model of the configuration.", required=True),
                parameter("tokens", "Estimated tokens of the request.", "integer"),
                parameter("api", "The path that it comes by; /v1/chat/completions unless it is said."),
                parameter("needs", "Features that it needs, by comma: tools, images, audio, json_schema."),
                LIMIT,
            ],
        }
    },
    "/events": {"get": answers("Parts of the snapshot as they change.", "Snapshot", "text/event-stream", "503")},
    "/metrics": {"get": answers("Metrics for Prometheus.", "Open", "text/plain", "503")},
    "/logs": {
        "get": answers("The level of each logger.", "Open"),
        "post": {
            **answers("Set the level of a logger, until a restart.", "Level", JSON_TYPE, "400", "404", "413"),
            "requestBody": body(LEVEL_REQUEST),
        },
    },
    "/refresh": {
        "post": {
            **answers("Take the file over, or say what that would do.", "Open", JSON_TYPE, "400", "413", "503"),
            "requestBody": body(REFRESH_REQUEST),
        }
    },
    "/refresh/history": {"get": answers("The last reports, the newest first.", "Open")},
    "/openapi.json": {"get": answers("The document of the OpenAI-compatible listener.", "Open")},
    "/openapi-admin.json": {"get": answers("This document.", "Open")},
}

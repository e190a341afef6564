"""Tool schemas of the usual sizes, written for this test, to hold the estimate of schemas to real tokenizers."""

from __future__ import annotations

from typing import Any


def _function(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _function(
        "get_weather",
        "Get the current weather for a place. Temperatures are in degrees Celsius unless asked otherwise.",
        {
            "place": {"type": "string", "description": "City and country, for example Busan, South Korea"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 10},
        },
        ["place"],
    ),
    _function(
        "search_files",
        "Search the files of the workspace with a regular expression and return the matching lines.",
        {
            "pattern": {"type": "string", "description": "The regular expression"},
            "glob": {"type": "string", "description": "Only files whose path matches, such as src/**/*.py"},
            "case_sensitive": {"type": "boolean", "default": False},
            "context_lines": {"type": "integer", "description": "Lines shown before and after each match"},
        },
        ["pattern"],
    ),
    _function(
        "create_order",
        "Create an order for a customer. Fails when an article is not in stock.",
        {
            "customer_id": {"type": "string"},
            "lines": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "sku": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
                        "quantity": {"type": "integer", "minimum": 1},
                    },
                    "required": ["sku", "quantity"],
                },
            },
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        ["customer_id", "lines"],
    ),
]

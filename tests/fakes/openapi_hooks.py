"""What schemathesis cannot know: which models a fleet has, whose an error is. It loads this, as SCHEMATHESIS_HOOKS."""

from __future__ import annotations

from typing import Any

import schemathesis

from iop_fast.errors import Failure

REASONS = {failure.reason: failure for failure in Failure}


@schemathesis.check
def own_errors_are_whole(context: Any, response: Any, case: Any) -> None:
    """An error of the gateway's own names its reason, and has that reason's status and error object."""
    [reason] = response.headers.get("x-iop-reason", [""])
    if response.status_code < 400 or response.status_code == 409:
        assert not reason
        return
    row = REASONS[reason].value
    assert response.status_code == row.status
    error = response.json()["error"]
    if "/v1/messages" in case.path:
        assert set(error) == {"type", "message"}
    else:
        assert (error["code"], error["type"]) == (row.code, row.type)
    assert error["message"]


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Ask for a model that exists in most requests, so that they reach a provider."""
    model = body.get("model") if isinstance(body, dict) else None
    if isinstance(model, str) and len(model) < 64 and len(model) % 4 != 3 and (not model or model.isprintable()):
        return {**body, "model": "m"}
    return body


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """As above, for the page of one model."""
    if path_parameters and len(str(path_parameters.get("model", ""))) % 2:
        return {**path_parameters, "model": "m"}
    return path_parameters

"""The Edge against its own OpenAPI document, by schemathesis: real processes, a provider behind them, seeded requests.

Whatever it sends, good and bad, no answer is a 5xx, and each has a status, a content type, fields and a body that the
document names for it. Schema-valid requests are taken, others are not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fakes.openai_backend import Exchange
from tests.integration.served import Served

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = 20
LIMIT_S = 100


async def provider(exchange: Exchange) -> None:
    """A provider that takes anything, answers in both of the forms that there are, and has errors of its own."""
    kind = sum(exchange.request.body) % 5
    if kind == 0:
        await exchange.respond(b"their words", 409, b"text/plain")
    elif kind == 1:
        await exchange.respond(b"data: [DONE]\n\n", content_type=b"text/event-stream")
    else:
        await exchange.respond(b"{}")


def test_answers_are_those_of_the_document(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.backend.script = provider
        port, admin = served.fleet.http_port, served.fleet.admin_port
        command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"http://127.0.0.1:{admin}/openapi.json"]
        command += ["--url", f"http://127.0.0.1:{port}", "--max-examples", str(EXAMPLES), "--generation-deterministic"]
        command += ["--request-timeout", "10", "--no-color", "--warnings", "off", "--output-truncate", "false"]
        settings = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.fakes.openapi_hooks", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path, env=settings)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(served.backend.requests) > EXAMPLES, "few requests reached the provider"
        assert served.status()["counters"]["requests"]["internal"] == 0

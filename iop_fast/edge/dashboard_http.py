"""`GET /` of the admin listener: the page of an operator, whose figures come from `/events` and `/explain`.

The files stand in `dashboard/` beside this module, as they are served: plain HTML, CSS and JavaScript modules. They are
read when the listener starts, so that a page never mixes two versions; none of them holds anything that is not the same
for everybody. The page sends GET alone, and its policy lets it load from, and speak to, its own origin alone; no text
that it is sent can become markup or code (trusted types). The guard of the listener stands before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

FOLDER = Path(__file__).parent / "dashboard"
PAGE = "index.html"
PREFIX = "/dashboard/"

TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def read_files() -> dict[str, bytes]:
    """Return every file of the page by its name."""
    return {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}


def add_dashboard(app: web.Application) -> None:
    """Serve the page and its files."""
    files = read_files()

    async def get_page(request: web.Request) -> web.Response:
        return file_answer(PAGE, files[PAGE])

    async def get_file(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name == PAGE or name not in files:
            raise web.HTTPNotFound
        return file_answer(name, files[name])

    app.router.add_get("/", get_page)
    app.router.add_get(PREFIX + "{name}", get_file)


def file_answer(name: str, body: bytes) -> web.Response:
    """Answer with a file."""
    return web.Response(body=body, headers={**HEADERS, "content-type": TYPES[Path(name).suffix]})

"""Tracing as a program switches it on."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from iop_fast.config.schema import Tracing

if TYPE_CHECKING:
    from iop_fast.tracing.export import SpanExport

unix_ns = time.time_ns


def open_export(setting: Tracing, default_name: str, instance_id: str, stack: AsyncExitStack) -> SpanExport | None:
    """Begin to send spans where the configuration asks for them; `stack` ends it. None, and nothing is imported, while
    tracing is off."""
    if not setting.enabled:
        return None
    from iop_fast.tracing.export import SpanExport

    export = SpanExport(setting.endpoint, setting.service_name or default_name, instance_id)
    stack.push_async_callback(export.close)
    return export

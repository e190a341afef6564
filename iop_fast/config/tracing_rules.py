"""The rule about tracing: what is switched on has to be installed."""

from __future__ import annotations

from importlib.util import find_spec

from iop_fast.config.tree import MapNode, Remark
from iop_fast.config.view import Spot, truth

NEEDED = "opentelemetry.exporter.otlp.proto.http"


def check_tracing(root: MapNode) -> list[Remark]:
    """Refuse `tracing.enabled` where the extra is missing. Nothing of it is looked for while tracing is off."""
    section = Spot(root, ()).section("tracing")
    if section is None or not truth(section.get("enabled"), False) or is_installed():
        return []
    message = "OpenTelemetry is not installed here, expected false, or the extra: pip install 'iop_fast[otel]'"
    return [section.remark("enabled", message)]


def is_installed() -> bool:
    """True when the extra otel is there. It imports the packages above it, which are empty."""
    try:
        return find_spec(NEEDED) is not None
    except ModuleNotFoundError:
        return False

"""The section `tracing` of both files."""

from __future__ import annotations

import pytest

from iop_fast.config import tracing_rules
from iop_fast.config.loader import load_edge_text, load_node_text

from .files import FLEET, NODE, findings, lines, node_findings

ON = "tracing: {enabled: true}\n"


def test_it_is_off_unless_it_is_switched_on() -> None:
    for tracing in (load_edge_text(FLEET, "f").config.tracing, load_node_text(NODE, "f").config.tracing):
        assert (tracing.enabled, tracing.endpoint) == (False, "http://127.0.0.1:4318/v1/traces")
        assert (tracing.sample_ratio, tracing.service_name) == (1.0, None)


def test_every_key_may_be_given() -> None:
    text = "tracing: {enabled: true, endpoint: 'https://c.example/v1/traces', sample_ratio: 0.1, service_name: gw}\n"
    tracing = load_edge_text(FLEET + text, "f").config.tracing
    assert (tracing.endpoint, tracing.sample_ratio) == ("https://c.example/v1/traces", 0.1)
    assert tracing.service_name == "gw"
    assert load_node_text(NODE + text.replace("0.1", "1"), "f").config.tracing.sample_ratio == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("{sample_ratio: 1.5}", "tracing.sample_ratio: "),
        ("{sample_ratio: -0.1}", "tracing.sample_ratio: "),
        (
            "{endpoint: 'http://u:p@h'}",
            "tracing.endpoint: expected no user or password in the URL: OTEL_",
        ),
        ("{endpoint: 'h:4318'}", "tracing.endpoint: expected http://host"),
        ("{ratio: 1}", "tracing.ratio: unknown key"),
    ],
)
def test_what_is_wrong_is_found(given: str, expected: str) -> None:
    for found in (findings(f"{FLEET}tracing: {given}\n"), node_findings(f"{NODE}tracing: {given}\n")):
        [line] = lines(found)
        assert line.startswith(expected)


def test_what_is_switched_on_has_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(findings(FLEET + ON)) == []
    monkeypatch.setattr(tracing_rules, "NEEDED", "opentelemetry_is_not_here.exporter")
    expected = [
        "tracing.enabled: OpenTelemetry is not installed here, expected false, or the extra: "
        "pip install 'iop_fast[otel]'"
    ]
    assert lines(findings(FLEET + ON)) == expected
    assert lines(node_findings(NODE + ON)) == expected
    monkeypatch.setattr(tracing_rules, "NEEDED", "opentelemetry_is_not_here")
    assert lines(findings(FLEET + ON)) == expected


def test_nothing_is_looked_for_while_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked() -> bool:
        raise AssertionError("looked for OpenTelemetry")

    monkeypatch.setattr(tracing_rules, "is_installed", looked)
    assert lines(findings(FLEET)) == lines(findings(FLEET + "tracing: {enabled: false}\n")) == []

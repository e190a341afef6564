"""Write deploy/grafana/iop.json, the dashboard of Edges and Nodes, from the table of panels below.

    python -m scripts.gen_dashboard [--check]

A panel is a title, a unit, and queries with their legends; the layout follows from their order. Metrics are those of
docs/metrics.md; a test holds both the names and the file.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from scripts.generated import ROOT, write_or_check

FILE = ROOT / "deploy" / "grafana" / "iop.json"
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT, STAT_HEIGHT = 24, 8, 4

# What the variables at the top of the page leave over.
EDGE = 'job="iop-edge", instance=~"$edge"'
MODEL = f'{EDGE}, model=~"$model"'
PROVIDER = f'{EDGE}, node=~"$node", provider=~"$provider"'
NODE = f'{EDGE}, node=~"$node"'
RATE = "[$__rate_interval]"


class Panel(NamedTuple):
    """One panel. `queries` are pairs of expression and legend; `width` is in columns of 24."""

    title: str
    text: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    is_stacked: bool = False


class Row(NamedTuple):
    """A heading and its panels."""

    title: str
    panels: tuple[Panel, ...]


def quantile(share: float, name: str, labels: str, by: str = "") -> str:
    """A quantile of a histogram, by more labels than `le`."""
    grouped = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, sum by ({grouped}) (rate({name}_bucket{{{labels}}}{RATE})))"


def mean(name: str, labels: str, by: str) -> str:
    """The mean of a summary."""
    return f"sum by ({by}) (rate({name}_sum{{{labels}}}{RATE})) / sum by ({by}) (rate({name}_count{{{labels}}}{RATE}))"


def rate(name: str, labels: str, by: str) -> str:
    """Events a second."""
    return f"sum by ({by}) (rate({name}{{{labels}}}{RATE}))"


ROWS = (
    Row(
        "At a glance",
        (
            Panel(
                "Nodes ready", "Of all configured.", ((f"sum(iop_node_up{{{EDGE}}})", "ready"),), kind="stat", width=4
            ),
            Panel(
                "Running", "Requests on Nodes.", ((f"sum(iop_link_runs{{{EDGE}}})", "running"),), kind="stat", width=4
            ),
            Panel(
                "Waiting",
                "Requests in the queue.",
                ((f"sum(iop_queue_waiting{{{EDGE}}})", "waiting"),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Requests",
                "That ended, a second.",
                ((f"sum(rate(iop_requests_total{{{EDGE}}}{RATE}))", "requests"),),
                unit="reqps",
                kind="stat",
                width=4,
            ),
            Panel(
                "Answered",
                "Share of the requests that ended well or whose client left.",
                (
                    (
                        f'sum(rate(iop_requests_total{{{EDGE}, outcome=~"ok|client_gone"}}{RATE}))'
                        f" / sum(rate(iop_requests_total{{{EDGE}}}{RATE}))",
                        "answered",
                    ),
                ),
                unit="percentunit",
                kind="stat",
                width=4,
            ),
            Panel(
                "Revision", "In force.", ((f"max(iop_config_revision{{{EDGE}}})", "revision"),), kind="stat", width=4
            ),
        ),
    ),
    Row(
        "Requests",
        (
            Panel(
                "By outcome",
                "What became of requests; docs/errors.md explains each word.",
                ((rate("iop_requests_total", MODEL, "outcome"), "{{outcome}}"),),
                unit="reqps",
                is_stacked=True,
            ),
            Panel(
                "By model",
                "",
                ((rate("iop_requests_total", MODEL, "model"), "{{model}}"),),
                unit="reqps",
                is_stacked=True,
            ),
            Panel(
                "Duration",
                "From a request's head to its end.",
                tuple(
                    (quantile(share, "iop_request_duration_seconds", MODEL), f"p{share * 100:.0f}")
                    for share in (0.5, 0.95, 0.99)
                ),
                unit="s",
            ),
            Panel(
                "Time to the first byte, p95",
                "From a request's head to the head of its provider's answer: waiting and provider.",
                ((quantile(0.95, "iop_request_time_to_first_byte_seconds", MODEL, "model"), "{{model}}"),),
                unit="s",
            ),
            Panel(
                "Waited, p95",
                "For a slot, those included that never got one.",
                ((quantile(0.95, "iop_request_queue_seconds", MODEL, "model, class"), "{{model}} {{class}}"),),
                unit="s",
            ),
            Panel(
                "Overhead",
                "What the Edge itself adds.",
                tuple(
                    (quantile(share, "iop_request_overhead_seconds", EDGE), f"p{share * 100:.0f}")
                    for share in (0.5, 0.99)
                ),
                unit="s",
            ),
        ),
    ),
    Row(
        "Queue",
        (
            Panel(
                "Waiting",
                "By model and context class, and the limit (provider_pool.max_queue).",
                (
                    (f"sum by (model, class) (iop_model_waiting{{{MODEL}}})", "{{model}} {{class}}"),
                    (f"max(iop_queue_limit{{{EDGE}}})", "limit"),
                ),
            ),
            Panel(
                "The oldest",
                "How long it has waited, and how long a request may (0: without limit).",
                (
                    (f"max(iop_queue_oldest_age_seconds{{{EDGE}}})", "oldest"),
                    (f"max(iop_queue_timeout_seconds{{{EDGE}}})", "timeout"),
                ),
                unit="s",
            ),
            Panel(
                "Left admission",
                "Granted, refused, or gone while they waited.",
                ((rate("iop_admission_total", MODEL, "outcome"), "{{outcome}}"),),
                unit="reqps",
            ),
        ),
    ),
    Row(
        "Providers",
        (
            Panel(
                "Running and slots",
                "Slots of a provider whose Node is offline count as 0.",
                (
                    (f"sum by (provider) (iop_provider_in_flight{{{PROVIDER}}})", "{{provider}} runs"),
                    (f"sum by (provider) (iop_provider_capacity{{{PROVIDER}}})", "{{provider}} may"),
                ),
            ),
            Panel(
                "Takes requests",
                "1 while its Node is ready, and it is enabled and healthy.",
                ((f"min by (provider) (iop_provider_up{{{PROVIDER}}})", "{{provider}}"),),
                kind="state-timeline",
            ),
            Panel(
                "Pressure",
                "Waiting requests that the provider could serve.",
                ((f"sum by (provider) (iop_provider_queued{{{PROVIDER}}})", "{{provider}}"),),
            ),
            Panel(
                "First byte after the grant, mean",
                "What the provider itself takes to begin.",
                ((mean("iop_provider_time_to_first_byte_seconds", PROVIDER, "provider"), "{{provider}}"),),
                unit="s",
            ),
            Panel(
                "Slot held, mean",
                "",
                ((mean("iop_provider_lease_seconds", PROVIDER, "provider"), "{{provider}}"),),
                unit="s",
            ),
            Panel(
                "Failed there",
                "Requests that ended upstream_error or upstream_timeout.",
                (
                    (
                        rate(
                            "iop_requests_total",
                            f'{PROVIDER}, outcome=~"upstream_error|upstream_timeout"',
                            "provider, outcome",
                        ),
                        "{{provider}} {{outcome}}",
                    ),
                ),
                unit="reqps",
            ),
        ),
    ),
    Row(
        "Nodes",
        (
            Panel(
                "Ready",
                "1 while a session of the Node takes requests.",
                ((f"min by (node) (iop_node_up{{{NODE}}})", "{{node}}"),),
                kind="state-timeline",
            ),
            Panel(
                "Silence",
                "edge.link.silence_ms of it end a session.",
                ((f"max by (node) (iop_node_silence_seconds{{{NODE}}})", "{{node}}"),),
                unit="s",
            ),
            Panel(
                "Sessions",
                "What happened to them.",
                ((rate("iop_link_events_total", EDGE, "event"), "{{event}}"),),
                unit="cps",
            ),
            Panel(
                "Traffic",
                "Bytes on links.",
                ((rate("iop_link_bytes_total", NODE, "node, direction"), "{{node}} {{direction}}"),),
                unit="Bps",
            ),
            Panel(
                "Frames a message",
                "How well frames share messages: the more the cheaper.",
                (
                    (
                        f"{rate('iop_link_frames_total', NODE, 'direction')}"
                        f" / {rate('iop_link_messages_total', NODE, 'direction')}",
                        "{{direction}}",
                    ),
                ),
            ),
            Panel(
                "Behind",
                "Revisions between a Node's configuration and the one that it says it runs.",
                (
                    (
                        f"max by (node) (iop_node_payload_revision{{{NODE}}}"
                        f" - iop_node_observed_payload_revision{{{NODE}}} and iop_node_up{{{NODE}}} == 1)",
                        "{{node}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Usage",
        (
            Panel(
                "Tokens by principal",
                "As providers reported them, a second.",
                ((rate("iop_tokens_total", EDGE, "principal, kind"), "{{principal}} {{kind}}"),),
            ),
            Panel(
                "Booked",
                "Complete, partial (the answer was cut), unknown (nothing was reported).",
                ((rate("iop_usage_requests_total", EDGE, "state"), "{{state}}"),),
                unit="reqps",
                is_stacked=True,
            ),
            Panel(
                "Estimate over report",
                "Prompt tokens as the Edge estimates them, over those that were reported: 1 is right.",
                (
                    (
                        f"{rate('iop_estimated_prompt_tokens_total', MODEL, 'model')}"
                        f" / {rate('iop_reported_prompt_tokens_total', MODEL, 'model')}",
                        "{{model}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Programs",
        (
            Panel(
                "Lag of the event loop, p99",
                "",
                ((quantile(0.99, "iop_loop_lag_seconds", 'job=~"iop-edge|iop-node"', "instance"), "{{instance}}"),),
                unit="s",
            ),
            Panel(
                "Processor",
                "Seconds of one core a second.",
                ((f'rate(process_cpu_seconds_total{{job=~"iop-edge|iop-node"}}{RATE})', "{{instance}}"),),
            ),
            Panel(
                "Memory",
                "",
                (('process_resident_memory_bytes{job=~"iop-edge|iop-node"}', "{{instance}}"),),
                unit="bytes",
            ),
            Panel("Client connections", "", ((f"iop_http_connections{{{EDGE}}}", "{{instance}}"),)),
            Panel(
                "Request bodies in memory",
                "",
                (
                    (f"iop_http_buffered_bytes{{{EDGE}}}", "{{instance}}"),
                    (f"iop_http_buffered_bytes_limit{{{EDGE}}}", "limit"),
                ),
                unit="bytes",
            ),
            Panel(
                "What should stay 0",
                "Faults of the gateway, and log lines that were lost.",
                (
                    (f"sum by (kind) (increase(iop_faults_total{{{EDGE}}}[$__range]))", "{{kind}}"),
                    (f"sum by (log) (increase(iop_log_lines_dropped_total{{{EDGE}}}[$__range]))", "dropped {{log}}"),
                    (f"sum by (log) (increase(iop_log_lines_failed_total{{{EDGE}}}[$__range]))", "failed {{log}}"),
                ),
            ),
        ),
    ),
)

VARIABLES = (
    ("edge", "Edge", 'label_values(iop_build_info{program="edge"}, instance)'),
    ("model", "Model", 'label_values(iop_model_live_candidates{instance=~"$edge"}, model)'),
    ("node", "Node", 'label_values(iop_node_up{instance=~"$edge"}, node)'),
    ("provider", "Provider", 'label_values(iop_provider_up{instance=~"$edge", node=~"$node"}, provider)'),
)


def dashboard() -> dict[str, Any]:
    """The whole page."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        panels.append(heading(row.title, len(panels) + 1, top))
        top, left = top + 1, 0
        height = STAT_HEIGHT if row.panels[0].kind == "stat" else HEIGHT
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left = top + height, 0
            panels.append(rendered(panel, len(panels) + 1, {"x": left, "y": top, "w": panel.width, "h": height}))
            left += panel.width
        top += height
    return {
        "title": "iop: Edges and Nodes",
        "uid": "iop-edges-nodes",
        "description": "Written by scripts/gen_dashboard.py.",
        "tags": ["iop"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [refreshes()]},
        "templating": {"list": [source_variable(), *(variable(*one) for one in VARIABLES)]},
        "panels": panels,
    }


def heading(title: str, number: int, top: int) -> dict[str, Any]:
    """A row."""
    place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "gridPos": place, "collapsed": False, "panels": []}


def rendered(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    """A panel."""
    custom: dict[str, Any] = {"fillOpacity": 10, "showPoints": "never"}
    if panel.is_stacked:
        custom |= {"fillOpacity": 40, "stacking": {"mode": "normal", "group": "A"}}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        defaults["custom"] = custom
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "gridPos": place,
        "datasource": SOURCE,
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options(panel.kind),
    }


def options(kind: str) -> dict[str, Any]:
    """What a kind of panel is told beside its data."""
    if kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area", "textMode": "value"}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    return {"legend": legend} if kind == "state-timeline" else {"legend": legend, "tooltip": {"mode": "multi"}}


def refreshes() -> dict[str, Any]:
    """A mark where a configuration was taken over."""
    query = f"changes(iop_config_revision{{{EDGE}}}[$__interval]) > 0"
    return {
        "name": "Refreshes",
        "enable": True,
        "iconColor": "blue",
        "datasource": SOURCE,
        "expr": query,
        "titleFormat": "revision",
    }


def source_variable() -> dict[str, Any]:
    """Which Prometheus."""
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """A choice of label values, all of them at first."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def text() -> str:
    """The file as it should be."""
    return json.dumps(dashboard(), indent=1) + "\n"


def main(arguments: list[str]) -> int:
    """Write or check it."""
    return write_or_check({FILE: text()}, arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

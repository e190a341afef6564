"""Alert rules and dashboard ask for metrics and labels that exist, and every alert is tested and explained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scripts import gen_dashboard

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = gen_dashboard.dashboard()

# What Prometheus and its client library add to every series, or make by themselves.
OF_PROMETHEUS = {"up": set(), "process_open_fds": set(), "process_max_fds": set()}
OF_PROMETHEUS |= {"process_cpu_seconds_total": set(), "process_resident_memory_bytes": set()}
EVERYWHERE = {"job", "instance"}

NAME = r"\b(?:iop_[a-z0-9_]+|process_[a-z_]+|up)\b"


def documented() -> dict[str, set[str]]:
    """Names of docs/metrics.md, as series are called, with their labels."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    made: dict[str, set[str]] = {}
    for name, kind, labels in rows:
        found = set(re.findall(r"`(\w+)`", labels))
        if kind in ("histogram", "summary"):
            made |= {f"{name}_sum": found, f"{name}_count": found}
        if kind == "histogram":
            made[f"{name}_bucket"] = {*found, "le"}
        if kind in ("counter", "gauge"):
            made[name] = found
    return made


METRICS = {**documented(), **OF_PROMETHEUS}


def queries() -> Iterator[tuple[str, str]]:
    """Every query with where it stands."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for one in DASHBOARD["templating"]["list"]:
        if one["type"] == "query":
            yield one["name"], one["query"]["query"]
    yield "annotations", DASHBOARD["annotations"]["list"][0]["expr"]


@pytest.mark.parametrize(("place", "query"), list(queries()), ids=lambda value: value[:40])
def test_a_query_asks_for_metrics_and_labels_that_exist(place: str, query: str) -> None:
    # A label may be called like a metric's beginning: matchers and groupings are looked at apart.
    bare = re.sub(r"\b(?:by|on) \([^)]*\)", "", re.sub(r"\{[^}]*\}", "", query))
    names = set(re.findall(NAME, bare))
    assert names, query
    assert names <= METRICS.keys(), f"{place} asks for {names - METRICS.keys()}"
    for name, matchers in re.findall(rf"({NAME})\{{([^}}]*)\}}", query):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert labels <= METRICS[name] | EVERYWHERE, f"{place}: {name} has no {labels - METRICS[name] - EVERYWHERE}"
    known = EVERYWHERE.union(*(METRICS[name] for name in names))
    for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
        labels = set(re.findall(r"\w+", grouping))
        assert labels <= known, f"{place} groups by {labels - known}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_text_names_labels_that_its_query_leaves(rule: dict[str, str]) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule)))
    groupings = re.findall(r"\bsum by \(([^)]*)\)", rule["expr"])
    names = set(re.findall(NAME, re.sub(r"\{[^}]*\}", "", rule["expr"]))) & METRICS.keys()
    left = set(re.findall(r"\w+", groupings[0])) if groupings else EVERYWHERE.union(*(METRICS[name] for name in names))
    assert named <= left


def test_every_alert_has_a_test_that_sees_it_fire_and_one_that_does_not() -> None:
    tests = yaml.safe_load((FOLDER / "alerts.test.yaml").read_text())["tests"]
    entries = [entry for test in tests for entry in test["alert_rule_test"]]
    names = {rule["alert"] for rule in RULES}
    assert {entry["alertname"] for entry in entries if entry.get("exp_alerts")} == names
    assert {entry["alertname"] for entry in entries if not entry.get("exp_alerts")} == names


def test_every_alert_is_explained_where_it_says() -> None:
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in RULES], "the order is that of the rules"
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_the_jobs_are_those_that_are_scraped() -> None:
    scraped = yaml.safe_load((FOLDER / "scrape.yaml").read_text())["scrape_configs"]
    jobs = {one["job_name"] for one in scraped}
    asked = {job for _, query in queries() for job in re.findall(r'job="([\w-]+)"', query)}
    assert asked <= jobs == {"iop-edge", "iop-node"}


def test_the_dashboard_is_fresh() -> None:
    assert gen_dashboard.main(["--check"]) == 0


def test_no_two_panels_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells = {(column, row) for column in columns for row in rows}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= gen_dashboard.WIDTH
        taken |= cells

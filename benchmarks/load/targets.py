"""What the figures shall be, and how they stand to it: one line for each, from the results of one run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.load.figures import is_bench_bound, ratio

Scenarios = Mapping[str, Mapping[str, Any]]
"""Scenarios by name as they stand in the JSON: {"subjects": {subject: {figure: value}}, ...}."""


def figure(scenarios: Scenarios, scenario: str, subject: str, name: str) -> float | None:
    """One figure, or None where the run has none."""
    value = scenarios.get(scenario, {}).get("subjects", {}).get(subject, {}).get(name)
    return None if value is None else float(value)


@dataclass(frozen=True)
class Target:
    """A figure and its bound; without one it is only printed."""

    name: str
    value: Callable[[Scenarios], float | None]
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_bound(self) -> bool:
        """Whether it has a bound."""
        return self.at_most is not None or self.at_least is not None

    @property
    def bound(self) -> str:
        """The bound for people."""
        if self.at_most is not None:
            return f"<={self.at_most:g}"
        return "-" if self.at_least is None else f">={self.at_least:g}"

    def is_met(self, value: float) -> bool | None:
        """Whether a value keeps the bound; None without one."""
        if self.at_most is not None:
            return value <= self.at_most
        return None if self.at_least is None else value >= self.at_least


def cpu_ratio(scenario: str, base: str, role: str = "gateway") -> Callable[[Scenarios], float | None]:
    """The Edge's CPU (`gateway`), or the Edge's and the Node's (`sum`), beside another gateway's."""
    return lambda run: ratio(
        figure(run, scenario, "edge", f"cpu_us_{role}"), figure(run, scenario, base, "cpu_us_gateway")
    )


def figure_ratio(scenario: str, name: str, base: str, subject: str = "edge") -> Callable[[Scenarios], float | None]:
    """One figure beside the same one of another subject."""
    return lambda run: ratio(figure(run, scenario, subject, name), figure(run, scenario, base, name))


def added(scenario: str, name: str, base: str = "direct") -> Callable[[Scenarios], float | None]:
    """How much larger a figure is than without the gateway."""

    def value(run: Scenarios) -> float | None:
        edge, other = figure(run, scenario, "edge", name), figure(run, scenario, base, name)
        return None if edge is None or other is None else edge - other

    return value


def own(scenario: str, name: str, subject: str = "edge") -> Callable[[Scenarios], float | None]:
    """A figure as it is."""
    return lambda run: figure(run, scenario, subject, name)


def megabytes(name: str) -> Callable[[Scenarios], float | None]:
    """A figure of the memory scenario in MB instead of MiB."""

    def value(run: Scenarios) -> float | None:
        mebibytes = figure(run, "memory", "edge", name)
        return None if mebibytes is None else mebibytes * 2**20 / 1e6

    return value


def errors(run: Scenarios) -> float | None:
    """Answers that were not what they should be and connections that were lost, over all scenarios of the Edge."""
    found = [
        slot["errors"]
        for scenario in run.values()
        for name, slot in scenario.get("subjects", {}).items()
        if name.startswith("edge") and "errors" in slot
    ]
    return sum(found) if found else None


def against(scenario: str, at_most: float | None) -> list[Target]:
    """CPU beside HAProxy: the target against the one that does the same work, the others printed."""
    same = "haproxy-same-work"
    return [
        Target(f"{scenario}-cpu-edge/{same}", cpu_ratio(scenario, same), at_most),
        Target(f"{scenario}-cpu-edge+node/{same}", cpu_ratio(scenario, same, "sum")),
        Target(f"{scenario}-cpu-edge/haproxy-bare", cpu_ratio(scenario, "haproxy-bare")),
    ]


TARGETS = [
    *against("closed-32", 1.2),
    *against("closed-128", 1.0),
    *against("closed-512", None),
    *against("offered-1000", None),
    *against("offered-4000", None),
    Target("closed-32-cpu-edge/litellm", cpu_ratio("closed-32", "litellm"), 0.01),
    Target("closed-32-cpu-edge+node/litellm", cpu_ratio("closed-32", "litellm", "sum")),
    Target("closed-32-cpu-edge/portkey", cpu_ratio("closed-32", "portkey"), 0.05),
    Target("closed-32-cpu-edge+node/portkey", cpu_ratio("closed-32", "portkey", "sum")),
    Target("closed-32-cpu-edge+node/edge-grpcio", figure_ratio("closed-32", "cpu_us_sum", "edge-grpcio")),
    Target("closed-1-added-p50-ms", added("closed-1", "p50_ms")),
    Target("calm-1-added-p50-ms", added("calm-1", "p50_ms"), 0.7),
    Target("calm-1000-p99-edge/nginx", figure_ratio("calm-1000", "p99_ms", "nginx"), 1.0),
    Target("calm-common-p99-edge/nginx", figure_ratio("calm-common", "p99_ms", "nginx"), 1.0),
    Target("calm-common-p99-edge/litellm", figure_ratio("calm-common", "p99_ms", "litellm"), 1.0),
    *against("streams-64", 1.4),
    *against("streams-256", 0.9),
    Target("streams-256-cpu-edge+node/edge-grpcio", figure_ratio("streams-256", "cpu_us_sum", "edge-grpcio")),
    Target("streams-64-added-gap-p99-ms", added("streams-64", "p99_ms"), 5.0),
    Target("streams-256-added-gap-p99-ms", added("streams-256", "p99_ms"), 5.0),
    *against("streams-1000", None),
    Target("streams-1000-added-gap-p99-ms", own("streams-1000", "p99_ms"), 10.0),
    Target("streams-1000-added-gap-max-ms", own("streams-1000", "max_ms"), 200.0),
    Target("streams-1000-slow-added-gap-p99-ms", own("streams-1000-slow", "p99_ms"), 10.0),
    Target("streams-1000-slow-added-gap-max-ms", own("streams-1000-slow", "max_ms"), 200.0),
    Target("mixed-short-added-p99-ms", added("mixed", "short_p99_ms"), 10.0),
    Target("mixed-added-gap-p99-ms", added("mixed", "p99_ms"), 5.0),
    Target("capacity-of-peak", own("capacity", "of_peak"), at_least=0.95),
    Target("capacity-overtaken", own("capacity", "overtaken"), 0),
    Target("overload-goodput-of-peak", own("overload", "goodput_of_peak"), at_least=0.95),
    Target("overload-refused-p99-ms", own("overload", "refused_p99_ms"), 5.0),
    Target(
        "retry-storm-goodput-edge/haproxy-same-work", figure_ratio("retry-storm", "answers_per_s", "haproxy-same-work")
    ),
    Target("retry-storm-goodput-of-peak", own("retry-storm", "goodput_of_peak")),
    Target("retry-storm-rss-grown-mib", own("retry-storm", "rss_grown_mib"), 16.0),
    Target("overload-rss-grown-mib", own("overload", "rss_grown_mib"), 16.0),
    Target(
        "refresh-storm-p99/without",
        figure_ratio("refresh-storm", "p99_ms", "edge", "edge, refreshed"),
    ),
    Target("refresh-storm-p99-ms", own("refresh-storm", "p99_ms", "edge, refreshed")),
    Target("refresh-storm-refreshes-per-s", own("refresh-storm", "refreshes_per_s", "edge, refreshed")),
    Target("pools-p50-one-stalls/alone", figure_ratio("pools", "p50_ms", "edge", "edge, one stalls"), 1.1),
    Target("pools-p99-one-stalls-ms", own("pools", "p99_ms", "edge, one stalls"), 10.0),
    Target("memory-rss-idle-mb", megabytes("rss_before_mib"), 80.0),
    Target("memory-node-rss-idle-mb", megabytes("node_rss_before_mib"), 80.0),
    Target("memory-rss-kib-stream", own("memory", "rss_kib_stream"), 64.0),
    Target("memory-rss-kib-waiter", own("memory", "rss_kib_waiter")),
    Target("soak-rss-slope-kib-min", own("soak", "rss_slope_kib_min"), 64.0),
    Target("soak-node-rss-slope-kib-min", own("soak", "node_rss_slope_kib_min"), 64.0),
    Target("soak-fds-grown", own("soak", "fds_grown"), 3),
    Target("soak-node-fds-grown", own("soak", "node_fds_grown"), 3),
    Target("soak-node-tasks-grown", own("soak", "node_tasks_grown"), 3),
    Target("soak-faults", own("soak", "faults_grown"), 0),
    Target("errors", errors, 0),
]


def scenario_of(name: str, scenarios: Iterable[str]) -> str:
    """The scenario that a target's name begins with; none for the one about all of them."""
    return max((one for one in scenarios if name.startswith(f"{one}-")), key=len, default="")


def with_bounds(scenarios: Collection[str]) -> set[str]:
    """Those scenarios of which a figure has a bound."""
    return {scenario_of(target.name, scenarios) for target in TARGETS if target.is_bound}


def judged(scenarios: Scenarios) -> list[dict[str, Any]]:
    """All targets of which the run has the figures: name, value, bound, met (true, false, or null without a bound).

    `bench_bound` is true where the Edge's figures are from slots in which the other core was full.
    """
    rows: list[dict[str, Any]] = []
    for target in TARGETS:
        value = target.value(scenarios)
        if value is not None:
            row = {"name": target.name, "value": value, "target": target.bound, "met": target.is_met(value)}
            subjects = scenarios.get(scenario_of(target.name, scenarios), {}).get("subjects", {})
            rows.append(row | {"bench_bound": is_bench_bound(subjects.get("edge", {}))})
    return rows

"""Targets, tables, chart and options of the load runs."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from benchmarks.load.bench import Result
from benchmarks.load.chart import chart
from benchmarks.load.report import as_json, ratio_lines, table
from benchmarks.load.run import SCENARIOS, measuring, parsed
from benchmarks.load.targets import TARGETS, Target, judged, with_bounds


def scenario(**subjects: dict[str, float]) -> dict[str, Any]:
    return {"subjects": {name.replace("_", "-"): slot for name, slot in subjects.items()}}


RUN = {
    "closed-32": scenario(
        haproxy_same_work={"cpu_us_gateway": 30.0, "errors": 2.0},
        litellm={"cpu_us_gateway": 15_000.0},
        edge={"cpu_us_gateway": 45.0, "cpu_us_sum": 90.0, "errors": 0.0},
    ),
    "closed-1": scenario(direct={"p50_ms": 0.03}, edge={"p50_ms": 0.53}),
    "capacity": scenario(edge={"of_peak": 0.9, "overtaken": 0.0, "errors": 1.0}),
}


def test_targets_are_judged_from_the_figures_that_a_run_has() -> None:
    rows = {row["name"]: row for row in judged(RUN)}
    assert rows["closed-32-cpu-edge/haproxy-same-work"] == {
        "name": "closed-32-cpu-edge/haproxy-same-work",
        "value": 1.5,
        "target": "<=1.2",
        "met": False,
        "bench_bound": False,
    }
    assert rows["closed-32-cpu-edge+node/haproxy-same-work"]["value"] == 3.0
    assert rows["closed-32-cpu-edge+node/haproxy-same-work"]["met"] is None
    assert rows["closed-32-cpu-edge/litellm"]["met"] is True
    assert rows["closed-1-added-p50-ms"]["value"] == pytest.approx(0.5)
    assert rows["capacity-of-peak"]["met"] is False
    assert rows["capacity-overtaken"]["met"] is True
    assert rows["errors"]["value"] == 1, "those of others are theirs"
    assert "closed-32-cpu-edge/portkey" not in rows


def test_a_bound_is_a_bound_from_one_side() -> None:
    def nothing(_: Any) -> None:
        return None

    assert Target("a", nothing, at_most=1.0).is_met(1.0) is True
    assert Target("a", nothing, at_most=1.0).is_met(1.1) is False
    assert Target("a", nothing, at_least=0.95).is_met(0.94) is False
    assert Target("a", nothing).is_met(5.0) is None
    assert [one.bound for one in (Target("a", nothing, 1.2), Target("a", nothing, at_least=0.95))] == [
        "<=1.2",
        ">=0.95",
    ]


def test_names_of_targets_are_unique_and_begin_with_a_scenario() -> None:
    names = [target.name for target in TARGETS]
    assert len(set(names)) == len(names)
    for name in names:
        assert name == "errors" or any(name.startswith(f"{one}-") for one in SCENARIOS), name


def test_ratio_lines_say_what_is_missed() -> None:
    lines = ratio_lines(judged(RUN))
    assert "ratio closed-32-cpu-edge/haproxy-same-work 1.500 target <=1.2 missed" in lines
    assert "ratio closed-32-cpu-edge+node/haproxy-same-work 3.000 target -" in lines
    assert "ratio capacity-overtaken 0.000 target <=0 met" in lines


def test_figures_of_a_full_bench_say_so() -> None:
    full = {"p99_ms": 600.0, "busy_rest": 0.99, "busy_gateway": 0.1, "errors": 0.0}
    spare = {"p99_ms": 6.0, "busy_rest": 0.8, "busy_gateway": 0.3, "errors": 0.0}
    run = {"streams-1000": scenario(edge=full), "streams-1000-slow": scenario(edge=spare)}
    assert ratio_lines(judged(run)) == [
        "ratio streams-1000-added-gap-p99-ms 600.000 target <=10 missed bench-bound",
        "ratio streams-1000-slow-added-gap-p99-ms 6.000 target <=10 met",
        "ratio errors 0.000 target <=0 met",
    ]


def test_a_table_has_the_columns_of_its_figures_and_says_who_is_missing() -> None:
    result = Result("some load", "request", {"nginx": {"cpu_us_gateway": 30.04, "per_s": 1000.0}})
    result.subjects["edge"] = {"cpu_us_gateway": 45.0, "cpu_us_node": 40.0, "busy_rest": 0.99, "busy_gateway": 0.5}
    result.missing["portkey"] = "no bound on what runs at once"
    lines = table(result, {"litellm": "no PyPI here"}).splitlines()
    assert lines[0] == "some load"
    assert lines[1].split("  ")[0] == "subject"
    assert "refreshes/s" not in lines[1]
    assert lines[2].split() == ["nginx", "30.0", "-", "1000", "-", "-"]
    assert lines[3].startswith("edge*"), "the bench's core was full, the gateway's was not"
    assert [line.split("  -  ")[1] for line in lines[4:]] == ["no PyPI here", "no bound on what runs at once"]


def test_figures_are_stored_to_six_digits() -> None:
    result = Result("t", "request")
    result.take({"edge": [{"a": 1.23456789}, {"a": 3.0}, {"a": 2.0}], "nginx": []})
    assert as_json(result)["subjects"] == {"edge": {"a": 2.0}}
    assert as_json(result)["ranges"] == {"edge": {"a": [1.23457, 3.0]}}


def test_the_chart_is_an_image_with_a_bar_for_each_gateway() -> None:
    run = {"at": "today", "rounds": 3, "machine": {"cores": 2, "processor": "A & B <fast>"}}
    drawn = ElementTree.fromstring(chart({"run": run, "scenarios": RUN}))
    texts = [one.text or "" for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"haproxy-same-work 30", "litellm 15,000", "edge 45", "edge + node 90"} <= set(texts)
    assert any("A & B <fast>" in text for text in texts)


def test_a_chart_of_nothing_is_an_image_too() -> None:
    run = {"at": "today", "rounds": 3, "machine": {"cores": 2, "processor": "p"}}
    assert ElementTree.fromstring(chart({"run": run, "scenarios": {}})).tag.endswith("svg")


def test_options_are_what_was_given_and_quick_is_short() -> None:
    assert (parsed([]).rounds, parsed(["--quick"]).rounds, parsed(["--quick", "--rounds", "5"]).rounds) == (None, 1, 5)
    assert (parsed([]).seconds, parsed(["--quick"]).seconds, parsed(["--seconds", "4"]).seconds) == (None, 0.7, 4)
    assert parsed(["--scenarios", "closed-1,soak"]).scenarios == ["closed-1", "soak"]
    assert parsed(["--soak-minutes", "30"]).soak_minutes == 30


def test_a_record_does_not_say_where_it_was_written() -> None:
    assert measuring(["--rounds", "3", "--json", "a/b", "--chart=c", "--quick"]) == ["--rounds", "3", "--quick"]


@pytest.mark.parametrize("wrong", ["closed-7", "", "closed-1,nothing"])
def test_unknown_names_are_refused_with_the_known_ones(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["--scenarios", wrong])
    assert "expected of memory, calm-1" in capsys.readouterr().err


def test_scenarios_whose_figures_have_a_bound_are_known() -> None:
    found = with_bounds(SCENARIOS)
    assert {"closed-32", "closed-128", "streams-1000", "streams-1000-slow", "capacity", "pools"} <= found
    assert not {"closed-1", "closed-512", "uploads"} & found


def test_what_is_wanted_is_judged() -> None:
    bounds = {target.name: target.bound for target in TARGETS if target.is_bound}
    wanted = {
        "closed-32-cpu-edge/haproxy-same-work": "<=1.2",
        "closed-128-cpu-edge/haproxy-same-work": "<=1",
        "streams-64-cpu-edge/haproxy-same-work": "<=1.4",
        "streams-256-cpu-edge/haproxy-same-work": "<=0.9",
        "closed-32-cpu-edge/litellm": "<=0.01",
        "closed-32-cpu-edge/portkey": "<=0.05",
        "calm-1-added-p50-ms": "<=0.7",
        "calm-1000-p99-edge/nginx": "<=1",
        "calm-common-p99-edge/litellm": "<=1",
        "streams-1000-added-gap-p99-ms": "<=10",
        "streams-1000-added-gap-max-ms": "<=200",
        "capacity-of-peak": ">=0.95",
        "overload-goodput-of-peak": ">=0.95",
        "overload-refused-p99-ms": "<=5",
        "pools-p50-one-stalls/alone": "<=1.1",
        "memory-rss-idle-mb": "<=80",
        "memory-rss-kib-stream": "<=64",
        "soak-rss-slope-kib-min": "<=64",
    }
    assert wanted.items() <= bounds.items()

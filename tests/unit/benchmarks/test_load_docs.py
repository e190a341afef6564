"""The pages that tell the recorded run are what the record gives."""

from __future__ import annotations

import json

import pytest

from benchmarks.load.chart import chart
from scripts import gen_load_docs
from scripts.gen_load_docs import BEGIN, END, RECORD, pages, rendered
from scripts.generated import ROOT, stale


def test_the_pages_tell_the_recorded_run() -> None:
    assert gen_load_docs.main(["--check"]) == 0


def test_the_chart_is_that_of_the_recorded_run() -> None:
    drawn = chart(json.loads(RECORD.read_text(encoding="utf-8")))
    assert (ROOT / "benchmarks" / "last_run.svg").read_text(encoding="utf-8") == drawn


def test_a_page_whose_figures_were_changed_by_hand_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    record["scenarios"]["closed-128"]["subjects"]["edge"]["cpu_us_gateway"] *= 2
    assert set(stale(pages(record))) == set(gen_load_docs.PAGES)


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert rendered(page, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="a section between"):
        rendered("no marks", "new")

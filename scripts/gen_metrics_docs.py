"""Write docs/metrics.md from the tables of metrics; with --check only say whether it is fresh (exit code 1 if not)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from iop_fast import metrics
from iop_fast.edge import metric_table as edge
from iop_fast.metrics import Family
from iop_fast.node import metric_table as node
from scripts.generated import ROOT, write_or_check

TARGET = ROOT / "docs" / "metrics.md"

INTRO = """<!-- Written by scripts/gen_metrics_docs.py from the tables in iop_fast. -->
# Metrics

`GET /metrics` on the listeners `admin` and `observe` of an Edge and on `observe` of a Node, as text or OpenMetrics,
compressed where the scraper takes gzip. Units are seconds and bytes. They name models, Nodes, providers and principals,
so let nobody but Prometheus reach `observe`.

Labels hold ids of the configuration and words of these tables. What a client sends is never one: a request for a model
that is not configured counts under the model `other`, and one that no provider got has `none` for provider and node. So
the number of series depends on the configuration alone, and what a refresh removes is gone from the next scrape on.
The id of a Node stands under `node`, whatever target Prometheus scraped it from.

Of a histogram there are `_bucket`, `_sum` and `_count`, of a summary `_sum` and `_count`. A series of requests,
admission, refreshes or refusals appears with the first thing that it counts.

"""


def render() -> str:
    """The whole page."""
    return INTRO + "\n".join(
        (
            section("Edge", edge.FAMILIES),
            section("Node", node.FAMILIES),
            section("Both", metrics.COMMON),
            "Beside these stand `process_*` (memory, processor time, open files; Linux) and `python_gc_*` as every\n"
            "Python program has them.\n",
        )
    )


def section(title: str, families: Sequence[Family]) -> str:
    """One table."""
    rows = [f"| `{one.name}` | {one.kind.value} | {labels(one)} | {one.help} |" for one in families]
    return "\n".join([f"## {title}", "", "| name | type | labels | |", "|---|---|---|---|", *rows, ""])


def labels(family: Family) -> str:
    """The labels of a family."""
    return ", ".join(f"`{name}`" for name in family.labels)


def main(arguments: list[str]) -> int:
    """Write or check the page."""
    return write_or_check({TARGET: render()}, arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

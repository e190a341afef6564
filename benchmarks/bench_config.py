"""Times of reading a configuration of 2,000 providers and of compiling it, beside plain YAML.

python -m pytest benchmarks/bench_config.py -o python_files='bench_*.py'
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from iop_fast.config.catalog import build_catalog
from iop_fast.config.diff import compare
from iop_fast.config.loader import load_edge_text
from iop_fast.config.payload import compile_payloads
from tests.fixtures.fleets import large

PROVIDERS, NODES = 2_000, 100
TEXT = large(PROVIDERS, NODES)


@pytest.fixture(scope="module")
def config() -> Any:
    return load_edge_text(TEXT, "edge.yaml").config


def test_load(benchmark: Any) -> None:
    assert benchmark(load_edge_text, TEXT, "edge.yaml").warnings == ()


def test_plain_yaml(benchmark: Any) -> None:
    assert len(benchmark(yaml.load, TEXT, Loader=yaml.CSafeLoader)["nodes"]) == NODES


def test_catalog(benchmark: Any, config: Any) -> None:
    assert len(benchmark(build_catalog, config).providers) == PROVIDERS


def test_payloads(benchmark: Any, config: Any) -> None:
    assert len(benchmark(compile_payloads, config)) == NODES


def test_compare(benchmark: Any, config: Any) -> None:
    """One provider of 2,000 differs."""
    other = load_edge_text(TEXT.replace("capacity: 1\n", "capacity: 2\n", 1), "edge.yaml").config
    assert len(benchmark(compare, config, other).changes) == 1

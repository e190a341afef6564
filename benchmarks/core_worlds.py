"""The worlds that the benchmarks of the admission core run in, and the empty call pair that they are compared with."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from iop_fast._core.admission import Admission, Outcome, Plan, ProviderSpec

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "bench"


def empty_pair() -> Any:
    """Build benchmarks/empty_pair.pyx as the product is built, unless that was done before, and return an EmptyPair."""
    return built_module("empty_pair").EmptyPair()


def built_module(name: str) -> ModuleType:
    """Build and import one .pyx of this directory."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    source = HERE / f"{name}.pyx"
    found = sorted(BUILD.glob(f"{name}.*.so"))
    if not found or found[0].stat().st_mtime < source.stat().st_mtime:
        extension = Extension(name, [str(source)], extra_compile_args=["-O3", "-fno-builtin-memset"])
        directives = {"language_level": "3", "binding": True}
        modules = cythonize([extension], compiler_directives=directives, build_dir=str(BUILD), quiet=True)
        command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(BUILD), str(BUILD / "temp")
        command.ensure_finalized()
        command.run()
        found = sorted(BUILD.glob(f"{name}.*.so"))
    spec = importlib.util.spec_from_file_location(name, found[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Owner:
    """An owner that keeps what it last got."""

    __slots__ = ("got",)

    def __init__(self) -> None:
        self.got: Any = None

    def on_granted(self, lease: Any) -> None:
        self.got = lease

    def on_evicted(self, outcome: Outcome) -> None:
        self.got = outcome


def specs(count: int, capacity: int = 4, nodes: int = 1) -> tuple[ProviderSpec, ...]:
    """`count` equal providers, spread over `nodes` Nodes."""
    return tuple(
        ProviderSpec(f"n{place % nodes}", f"p{place}", capacity, 0, 0, True, True, 1) for place in range(count)
    )


def keys(providers: tuple[ProviderSpec, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(spec[:2] for spec in providers)


def fleet(kind: Any, candidates: int, capacity: int = 4) -> Any:
    """An admission of class `kind` with one model on `candidates` idle ready providers."""
    providers = specs(candidates, capacity)
    admission = kind(Plan(providers, {"m": keys(providers)}, 1_000_000, 0))
    admission.node_ready(1, "n0", 1, {})
    return admission


def jammed(waiters: int) -> tuple[Admission, Any, Owner, list[Any]]:
    """One provider with one slot, taken, and `waiters` waiting; returns also the lease and the waiters."""
    admission: Admission = fleet(Admission, 1, capacity=1)
    owner = Owner()
    lease = admission.submit(1, owner, "m", False, 1)
    queue = [admission.submit(1, owner, "m", False, 1) for _ in range(waiters)]
    return admission, lease, owner, queue


def crowded(models: int) -> tuple[Admission, Owner]:
    """One provider with one slot, taken by what the owner got, and one waiter for each of `models` models."""
    providers = specs(1, capacity=1)
    named = keys(providers)
    admission = Admission(Plan(providers, {f"m{number}": named for number in range(models)}, 1_000_000, 0))
    admission.node_ready(1, "n0", 1, {})
    owner = Owner()
    owner.got = admission.submit(1, owner, "m0", False, 1)
    for number in range(models):
        admission.submit(1, owner, f"m{number}", False, 1)
    return admission, owner


def wide_fleet(count: int) -> tuple[Admission, Plan]:
    """`count` providers on 100 Nodes, 2,000 models of 5 providers each."""
    providers = specs(count, nodes=100)
    named = keys(providers)
    models = {f"m{number}": tuple(named[(number * 5 + place) % count] for place in range(5)) for number in range(2000)}
    plan = Plan(providers, models, 1_000_000, 0)
    admission = Admission(plan)
    for node in range(100):
        admission.node_ready(1, f"n{node}", 1, {})
    return admission, plan

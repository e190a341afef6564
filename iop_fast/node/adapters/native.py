"""Models that run in the Node itself: native_models entries of the Node's file, each made by the adapter it names.

`echo` and `llama_cpp` are part of this build. Any installed package may offer more by entry points of the group GROUP:
the name is what `adapter` says in the file, the object a MakeNative. docs/adapters.md is written for their authors.

An adapter that is not there, cannot be imported, or fails at being made is broken, with the reason; the others serve.
A package is trusted like this build: its code runs in the Node. Nothing of it is imported unless an entry names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from pydantic import ValidationError

from iop_fast import logs
from iop_fast.config.payload import AdapterSettings
from iop_fast.config.schema.native import BUILT_IN_OPTIONS
from iop_fast.node.adapters import BrokenAdapter, NormalizedAdapter, Surroundings

log = logs.get(__name__)

GROUP = "iop_fast.adapters"

# Makes the adapter of one native_models entry from its options; raises BrokenAdapter. It is called on the event loop
# and must not block it: what takes time is done in a thread, with the health `loading` meanwhile.
MakeNative = Callable[[Mapping[str, object], Surroundings], NormalizedAdapter]

BUILT_IN = {name: f"iop_fast.node.adapters.{name}:make_{name}" for name in BUILT_IN_OPTIONS}


def make_native(settings: AdapterSettings, surroundings: Surroundings) -> NormalizedAdapter:
    """Make the adapter of a native_models entry; raise BrokenAdapter."""
    if settings.options:
        raise BrokenAdapter(f"options: expected none, got {', '.join(name for name, _ in settings.options)}")
    model = surroundings.native_models.get(settings.profile)
    if model is None:
        raise BrokenAdapter(f"native_models of the Node's file has no entry {settings.profile!r}")
    point = found(model.adapter)
    make = loaded(point)
    try:
        made = make(model.options, surroundings)
    except BrokenAdapter:
        raise
    except ValidationError as error:
        raise BrokenAdapter(f"options of {model.id}: {in_words(error)}") from None
    except Exception as error:  # noqa: BLE001 - a package's fault is one broken adapter and nobody else's
        log.failure("adapter_failed", error, adapter=model.adapter, model=model.id)
        raise BrokenAdapter(f"adapter {model.adapter} failed: {type(error).__name__}: {error}") from None
    if not isinstance(made, NormalizedAdapter):
        raise BrokenAdapter(f"adapter {model.adapter} made a {type(made).__name__}, expected a NormalizedAdapter")
    return made


def found(name: str) -> EntryPoint:
    """Find an adapter by name; raise BrokenAdapter, which says what there is."""
    if name in BUILT_IN:
        return EntryPoint(name, BUILT_IN[name], GROUP)
    installed = entry_points(group=GROUP)
    points = [point for point in installed if point.name == name]
    if not points:
        names = sorted({*BUILT_IN, *installed.names})
        raise BrokenAdapter(f"no adapter is named {name!r}, expected one of {', '.join(names)}")
    packages = sorted({package_of(point) for point in points})
    if len(packages) > 1:
        raise BrokenAdapter(f"the adapter {name!r} is offered by more than one package: {', '.join(packages)}")
    return points[0]


def package_of(point: EntryPoint) -> str:
    """Return the name of the distribution that offers an entry point."""
    return point.dist.name if point.dist is not None else point.value


def loaded(point: EntryPoint) -> MakeNative:
    """Import an adapter; raise BrokenAdapter when that fails, in whatever way."""
    try:
        make = point.load()
    except Exception as error:  # noqa: BLE001 - a package's fault is one broken adapter and nobody else's
        log.failure("adapter_not_imported", error, adapter=point.name)
        raise BrokenAdapter(
            f"adapter {point.name} ({point.value}) cannot be imported: {type(error).__name__}: {error}"
        ) from None
    if not callable(make):
        raise BrokenAdapter(f"adapter {point.name} ({point.value}) is a {type(make).__name__}, expected a function")
    return cast(MakeNative, make)


def in_words(error: ValidationError) -> str:
    """Say what is wrong with options, in one line."""
    return "; ".join(f"{'.'.join(map(str, found['loc']))}: {found['msg'].lower()}" for found in error.errors())

"""States of an Edge as its feed tells them, made by hand: whole snapshots of `iop_fast.edge.event_shapes`."""

from __future__ import annotations

from typing import Any

from iop_fast._hot.meters import DURATION_BOUNDS_NS

Row = dict[str, Any]
Parts = dict[str, Any]

BOUNDS_MS = [bound // 1_000_000 for bound in DURATION_BOUNDS_NS]
STARTED_AT = "2026-03-02T00:04:10.000+00:00"
HOSTILE = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'


def node(node_id: str, link: str = "ready", runs: int = 0, **more: Any) -> Row:
    """One Node."""
    is_here = link != "offline"
    made = {"node_id": node_id, "alias": None, "link": link, "generation": 3 if is_here else 0, "payload_revision": 12}
    return {**made, "observed_revision": 12 if is_here else 0, "runs": runs, **more}


def provider(node_id: str, provider_id: str, capacity: int, in_flight: int = 0, **more: Any) -> Row:
    """One provider."""
    made = {
        "node_id": node_id,
        "provider_id": provider_id,
        "type": "vllm",
        "label": "vllm",
        "state": "up",
        "reason": "",
    }
    counts = {"capacity": capacity, "long_capacity": 0, "in_flight": in_flight, "long_in_flight": 0, "queued": 0}
    return {**made, "priority": 0, **counts, **more}


def waiter(place: int, age_ms: int, model: str, context_class: str = "normal", **more: Any) -> Row:
    """One who waits."""
    made = {"place": place, "request": f"req-{place:04d}", "principal": "anonymous", "model": model}
    why = {"blocked_by": {"full": 2}, "why": "2 full"}
    needs = ["/v1/chat/completions"]
    return {**made, "class": context_class, "needs": needs, "age_ms": age_ms, "is_readmitted": False, **why, **more}


def queue(waiters: list[Row], waiting: int | None = None, **more: Any) -> Row:
    """The queue."""
    count = len(waiters) if waiting is None else waiting
    made = {"waiting": count, "max_queue": 16, "timeout_ms": 30_000, "waiters": waiters[:20], "lines": []}
    return {**made, "oldest_ms": max((row["age_ms"] for row in waiters), default=0), "lines_total": 0, **more}


def rates(busy: int = 0, tokens: int = 0, **outcomes: int) -> Row:
    """What ended within a second."""
    ended = {"requests": sum(outcomes.values()), "outcomes": outcomes}
    return {"busy": busy, "interval_ms": 1000, **ended, "prompt_tokens": tokens, "completion_tokens": tokens}


def counts(**by_bound: int) -> Row:
    """How many durations in which bucket: `le_500=3` are three of at most 500 ms."""
    buckets = [by_bound.get(f"le_{bound}", 0) for bound in BOUNDS_MS]
    return {"counts": [*buckets, 0], "sum_ms": sum(map(int.__mul__, buckets, BOUNDS_MS))}


def durations(busy: int = 0, waits: Row | None = None, firsts: Row | None = None) -> Row:
    """How long that took."""
    found = {"queue": waits or counts(), "ttfb": firsts or counts(), "total": counts()}
    return {"busy": busy, "bounds_ms": BOUNDS_MS, **found}


def refresh(at: str, status: str = "applied", mode: str = "apply", **more: Any) -> Row:
    """One refresh."""
    made: Row = {"at": at, "source": "http", "mode": mode, "status": status, "revision": 12, "changes": 0}
    lists: Row = {"changed_paths": [], "restart_required_paths": [], "errors": [], "node_pushes": []}
    return {**made, **lists, "impact": impact(), **more}


def impact(**more: int) -> Row:
    """What a refresh did to those who ran and waited."""
    names = ("leases_above_capacity", "long_leases_above_capacity", "waiters_granted")
    return {**dict.fromkeys((*names, "waiters_evicted_timeout", "waiters_evicted_unavailable"), 0), **more}


def change(path: str, before: Any, after: Any, apply: str = "live") -> Row:
    """One changed key."""
    return {"path": path, "kind": "changed", "apply": apply, "before": before, "after": after}


def snapshot(nodes: list[Row], providers: list[Row], **parts: Any) -> Parts:
    """A whole snapshot; sums follow from the rows."""
    links: dict[str, int] = {}
    for row in nodes:
        links[row["link"]] = links.get(row["link"], 0) + 1
    edge = {"id": "edge-main", "name": None, "version": "0.1.0", "started_at": STARTED_AT}
    models = parts.pop("models", ["qwen3-8b", "llama-70b", "embed-small"])
    return {
        "edge": {**edge, "is_draining": False, "is_ready": True, "reasons": []},
        "config": {"revision": 12, "file": "/etc/iop/edge.yaml", "file_sha256": "3f9a1c20" + "0" * 56},
        "nodes": {"rows": nodes, "total": len(nodes), "links": links},
        "providers": {
            "rows": providers,
            "total": len(providers),
            "in_flight": sum(row["in_flight"] for row in providers),
            "capacity": sum(row["capacity"] for row in providers),
        },
        "models": {"ids": models, "total": len(models)},
        "queue": queue([]),
        "rates": rates(),
        "durations": durations(),
        "refreshes": [],
        **parts,
    }


REFRESHES = [
    refresh(
        "2026-03-02T03:08:41.000+00:00",
        source="signal",
        changes=2,
        changed_paths=[
            change("nodes[gpu-a].providers[qwen-a].capacity", 4, 6),
            change("provider_pool.queue_timeout_ms", 20_000, 30_000),
        ],
        node_pushes=[
            {"node_id": "gpu-a", "payload_revision": 12, "status": "acked", "reason": ""},
            {"node_id": "gpu-c", "payload_revision": 12, "status": "pending", "reason": ""},
        ],
        impact=impact(waiters_granted=2),
    ),
    refresh(
        "2026-03-02T02:51:07.000+00:00",
        "restart_required",
        changes=5,
        revision=11,
        changed_paths=[
            change("openai.listen", "0.0.0.0:8080", "0.0.0.0:80", "restart"),
            *(change(f"models[m{at}].context_window_tokens", 8192, 32768) for at in range(4)),
        ],
        restart_required_paths=["openai.listen"],
    ),
    refresh("2026-03-02T02:40:00.000+00:00", "no_change", "dry_run"),
]


def steady() -> Parts:
    """Twelve run, five wait for one full Node, everything else is well."""
    nodes = [
        node("gpu-a", runs=8, alias="rack 2"),
        node("gpu-b", runs=3),
        node("gpu-c", runs=1),
        node("mac-studio"),
    ]
    providers = [
        provider("gpu-a", "qwen-a", 6, 6, long_capacity=2, long_in_flight=1, queued=5),
        provider("gpu-a", "llama-a", 2, 2, queued=4),
        provider("gpu-b", "qwen-b", 12, 3, long_capacity=0),
        provider("gpu-b", "embed-b", 32),
        provider("gpu-c", "ollama-c", 4, 1, type="ollama", label="ollama"),
        provider("mac-studio", "mlx", 2, 0, type="lmstudio", label="lmstudio", state="disabled", reason="off"),
    ]
    waiters = [
        waiter(1, 4_200, "llama-70b", "long", needs=["/v1/chat/completions", "tools"], principal="research"),
        waiter(2, 3_100, "llama-70b"),
        waiter(3, 2_050, "qwen3-8b", why="1 full, 1 unable to do it", needs=["/v1/chat/completions", "images"]),
        waiter(4, 900, "llama-70b"),
        waiter(5, 80, "qwen3-8b"),
    ]
    return snapshot(nodes, providers, queue=queue(waiters), refreshes=REFRESHES)


def idle() -> Parts:
    """Nodes are there, and nothing to do."""
    nodes = [node("gpu-a"), node("gpu-b")]
    return snapshot(nodes, [provider("gpu-a", "qwen-a", 4), provider("gpu-b", "qwen-b", 4, long_capacity=1)])


def empty() -> Parts:
    """An Edge just started: no Node has come yet."""
    nodes = [node("gpu-a", "offline"), node("gpu-b", "offline")]
    rows = [
        provider("gpu-a", "qwen-a", 4, state="offline", reason="its node is offline"),
        provider("gpu-b", "qwen-b", 4, state="offline", reason="its node is offline"),
    ]
    made = snapshot(nodes, rows)
    made["edge"].update(is_ready=False, reasons=["no node has become ready yet"])
    return made


def node_gone() -> Parts:
    """One Node is gone, one leaves, one prepares, a provider is down; a capacity was lowered below what runs."""
    made = steady()
    nodes = [
        node("gpu-a", runs=8, alias="rack 2"),
        node("gpu-b", "offline"),
        node("gpu-c", "draining", runs=1),
        node("mac-studio", "accepted"),
        node("gpu-d", runs=3, observed_revision=11),
    ]
    providers = [
        *made["providers"]["rows"][:2],
        provider("gpu-b", "qwen-b", 12, state="offline", reason="its node is offline"),
        provider("gpu-b", "embed-b", 32, state="offline", reason="its node is offline"),
        provider("gpu-c", "ollama-c", 4, 1, state="draining", reason="its node shuts down", label="ollama"),
        provider("mac-studio", "mlx", 2, state="offline", reason="its node is offline"),
        provider("gpu-d", "qwen-d", 2, 3),
        provider("gpu-d", "llama-d", 4, state="down", reason="unreachable: connect to 127.0.0.1:8000: refused"),
    ]
    return snapshot(nodes, providers, queue=made["queue"], refreshes=REFRESHES)


def queue_full() -> Parts:
    """Every slot and every place of the queue is taken."""
    nodes = [node("gpu-a", runs=8), node("gpu-b", runs=4)]
    providers = [
        provider("gpu-a", "qwen-a", 8, 8, queued=64),
        provider("gpu-b", "llama-b", 4, 4, long_capacity=1, long_in_flight=1, queued=40),
    ]
    waiters = [
        waiter(
            at, 29_000 - at * 700, "qwen3-8b" if at % 3 else "llama-70b", "normal" if at % 5 else "long", why="1 full"
        )
        for at in range(1, 21)
    ]
    needs = ["/v1/chat/completions"]
    lines = [
        {"model": "qwen3-8b", "class": "normal", "needs": needs, "waiting": 52, "oldest_ms": 28_300, "why": "1 full"},
        {"model": "llama-70b", "class": "normal", "needs": needs, "waiting": 9, "oldest_ms": 26_900, "why": "1 full"},
        {
            "model": "llama-70b",
            "class": "long",
            "needs": [*needs, "tools"],
            "waiting": 3,
            "oldest_ms": 25_500,
            "why": "1 without a free long slot",
        },
    ]
    full = queue(waiters, 64, max_queue=64, lines=lines, lines_total=3)
    return snapshot(nodes, providers, queue=full, refreshes=REFRESHES[:1])


def big(providers: int = 200, nodes: int = 40) -> Parts:
    """A large fleet; the last Node has a provider that is down."""
    rows = []
    for at in range(providers):
        capacity = (4, 8, 16, 24)[at % 4]
        rows.append(provider(f"node-{at % nodes:03d}", f"gpu-{at:04d}", capacity, (at * 7) % (capacity + 1)))
    rows[-1].update(state="down", reason="unreachable", in_flight=0)
    names = [f"node-{at:03d}" for at in range(nodes)]
    runs = {name: sum(row["in_flight"] for row in rows if row["node_id"] == name) for name in names}
    return snapshot(
        [node(name, runs=runs[name]) for name in names], rows, models=[f"model-{at:03d}" for at in range(300)]
    )


def hostile() -> Parts:
    """Names that would be markup where a page took them for that, and ones that turn and stretch what stands by."""
    stretch, turn = "x" * 300, "\u202egnirts\u202c"
    nodes = [node(HOSTILE, alias=HOSTILE, runs=1), node(turn)]
    rows = [
        provider(HOSTILE, HOSTILE, 2, 1, label=HOSTILE, type=HOSTILE, queued=1),
        provider(turn, stretch, 2, state="down", reason=HOSTILE),
    ]
    waiters = [waiter(1, 900, HOSTILE, principal=HOSTILE, why=HOSTILE, needs=[HOSTILE], request=HOSTILE)]
    line = {"model": HOSTILE, "class": "normal", "needs": [HOSTILE], "waiting": 8, "oldest_ms": 5, "why": HOSTILE}
    finding = {"file": HOSTILE, "line": 1, "column": 1, "severity": "error", "path": HOSTILE, "message": HOSTILE}
    bad = refresh(
        "2026-03-02T02:40:00.000+00:00",
        "invalid",
        source=HOSTILE,
        changes=1,
        errors=[finding],
        changed_paths=[change(HOSTILE, HOSTILE, {HOSTILE: stretch})],
        node_pushes=[{"node_id": HOSTILE, "payload_revision": 1, "status": "refused", "reason": HOSTILE}],
    )
    made = snapshot(nodes, rows, queue=queue(waiters, 9, lines=[line], lines_total=1), refreshes=[bad])
    made["models"] = {"ids": [HOSTILE, stretch], "total": 2}
    made["edge"].update(name=HOSTILE, version=HOSTILE, is_ready=False, reasons=[HOSTILE])
    return made


def explanation(decision: str = "wait", **more: Any) -> Row:
    """What /explain answers."""
    candidates = [
        candidate("gpu-a", "qwen-a", "full", "full", in_flight=6, capacity=6, long_capacity=2, long_in_flight=1),
        candidate("gpu-b", "qwen-b", "node_offline", "on a node that is offline"),
        candidate("mac-studio", "mlx", "disabled", "disabled"),
    ]
    made = {"model": "qwen3-8b", "tokens": 2000, "class": "normal", "needs": ["/v1/chat/completions"]}
    why = "1 full, 1 disabled, 1 on a node that is offline"
    rows = {"candidates": candidates, "candidates_total": 3}
    return {**made, "decision": decision, "position": 6, "why": why, "retry_after_s": None, **rows, **more}


def candidate(node_id: str, provider_id: str, verdict: str, reason: str, **more: Any) -> Row:
    """One provider of an explanation."""
    counts = {"priority": 0, "in_flight": 0, "capacity": 4, "long_in_flight": 0, "long_capacity": 0, "queued": 0}
    served = "Qwen/Qwen3-8B"
    made = {"node_id": node_id, "provider_id": provider_id, "served": served, "verdict": verdict, "reason": reason}
    return {**made, **counts, **more}

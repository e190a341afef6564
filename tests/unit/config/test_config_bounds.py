"""The bounds of every number and text, each at its limits and just outside."""

from __future__ import annotations

import pytest

from .files import accepted, errors, provider

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("extra", "least", "most"),
    [
        ("priority: {}", -1_000, 1_000),
        ("long_context_capacity: {}, capacity: 1000000", 0, 1_000_000),
        ("context_window_tokens: {}", 1, 1_000_000_000),
        ("total_context_tokens: {}", 1, 1_000_000_000),
        ("timeouts: {{connect_ms: {}}}", 1, 600_000),
        ("timeouts: {{first_byte_ms: {}}}", 1, DAY_MS),
        ("timeouts: {{idle_ms: {}}}", 1, DAY_MS),
        ("max_queue: {}, queue_timeout_ms: 1", 0, 1_000_000),
        ("queue_timeout_ms: {}, max_queue: 1", 0, DAY_MS),
    ],
)
def test_bounds_of_a_provider(extra: str, least: int, most: int) -> None:
    capacity = "" if "capacity: 1000000" in extra else "4"
    assert errors(provider(extra.format(least), capacity=capacity)) == []
    assert errors(provider(extra.format(most), capacity=capacity)) == []
    (below,) = errors(provider(extra.format(least - 1), capacity=capacity))
    assert below.endswith(f"'{least - 1}': expected at least {least}")
    (above,) = errors(provider(extra.format(most + 1), capacity=capacity))
    assert above.endswith(f"'{most + 1}': expected at most {most}")


@pytest.mark.parametrize(("value", "ok"), [("0", True), ("1000000", True), ("-1", False), ("1000001", False)])
def test_bounds_of_capacity(value: str, ok: bool) -> None:
    assert (errors(provider("", capacity=value)) == []) is ok


def test_capacity_is_required() -> None:
    assert errors(provider("", capacity="")) == [
        "nodes[n].providers[p].capacity: is missing, expected: requests that it runs at one time; 0 takes nothing new"
    ]


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("provider_pool: {{max_queue: {}}}", 0, 1_000_000),
        ("provider_pool: {{queue_timeout_ms: {}}}", 0, DAY_MS),
        ("openai: {{long_context_threshold_tokens: {}}}", 1, 1_000_000_000),
        ("openai: {{limits: {{body_bytes: {}}}}}", 1_024, 1_073_741_824),
        ("openai: {{limits: {{keep_alive_ms: {}}}}}", 0, DAY_MS),
        ("edge: {{link: {{pace_ms: {}}}}}", 0, 1_000),
        ("models: [{{id: m, providers: {{p: s}}, context_window_tokens: {}}}]", 1, 1_000_000_000),
    ],
)
def test_bounds_of_the_rest(text: str, least: int, most: int) -> None:
    def bound_errors(value: int) -> list[str]:
        return [found for found in errors(text.format(value)) if "at least " in found or "at most " in found]

    assert bound_errors(least) == []
    assert bound_errors(most) == []
    assert [found.split(": ")[-1] for found in bound_errors(least - 1)] == [f"expected at least {least}"]
    assert [found.split(": ")[-1] for found in bound_errors(most + 1)] == [f"expected at most {most}"]


def test_defaults_of_the_queue() -> None:
    """Spec: max_queue 0 or omitted is 16, queue_timeout_ms omitted is 30000 and an explicit 0 is no timeout."""
    assert accepted("edge: {}").config.provider_pool.max_queue == 16
    assert accepted("provider_pool: {max_queue: 0}").config.provider_pool.max_queue == 16
    assert accepted("provider_pool: {}").config.provider_pool.queue_timeout_ms == 30_000
    assert accepted("provider_pool: {queue_timeout_ms: 0}").config.provider_pool.queue_timeout_ms == 0


def test_defaults_of_the_front() -> None:
    config = accepted("edge: {}").config
    limits = config.openai.limits
    assert config.openai.long_context_threshold_tokens == 100_000
    assert (config.edge.listen, config.openai.listen, config.admin.listen) == (
        "127.0.0.1:8081",
        "127.0.0.1:8080",
        "127.0.0.1:8082",
    )
    assert (limits.body_bytes, limits.buffered_bytes, limits.head_bytes) == (32 * 2**20, 512 * 2**20, 32_768)
    assert (limits.header_ms, limits.keep_alive_ms, limits.pipelined_requests) == (10_000, 75_000, 8)
    assert config.observe is None


def test_defaults_of_a_provider() -> None:
    one = accepted(provider("")).config.nodes[0].providers[0]
    assert (one.long_context_capacity, one.priority, one.enabled, one.health) == (0, 0, True, "auto")
    assert (one.timeouts.connect_ms, one.timeouts.first_byte_ms, one.timeouts.idle_ms) == (5_000, 600_000, 600_000)


@pytest.mark.parametrize("value", ["a", "A9", "a.b_c:d/e@f+g-h", "x" * 128])
def test_ids_that_are_taken(value: str) -> None:
    assert errors(f"edge: {{id: '{value}'}}") == []


@pytest.mark.parametrize("value", ["", "-a", ".a", "a b", "a#b", "ü", "x" * 129, "a\\n"])
def test_ids_that_are_refused(value: str) -> None:
    (found,) = errors(f'edge: {{id: "{value}"}}')
    assert "expected 1 to 128 characters A-Z a-z 0-9 . _ : / @ + -" in found


@pytest.mark.parametrize("value", ["http://h", "https://h:8443/base/", "http://[::1]:80/x", "http://10.0.0.1:9"])
def test_endpoints_that_are_taken(value: str) -> None:
    assert errors(provider("", base=f"type: vllm, endpoint: '{value}'")) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("h:80", "http://host"),
        ("ftp://h", "http://host"),
        ("http://", "expected host:port"),
        ("http://:80", "expected host:port"),
        ("http://h:", "expected host:port"),
        ("http://h:0", "expected a port of 1 to 65535"),
        ("http://h:65536", "expected a port of 0 to 65535"),
        ("http://u:p@h", "no user or password"),
        ("http://u@h", "no user or password"),
        ("http://h?x=1", "without query and fragment"),
        ("http://h/#top", "without query and fragment"),
        ("http://h/a b", "without spaces"),
        ("http://h/ü", "printable ASCII"),
        ("", "http://host"),
    ],
)
def test_endpoints_that_are_refused(value: str, expected: str) -> None:
    (found,) = errors(provider("", base=f"type: vllm, endpoint: '{value}'"))
    assert found.startswith("nodes[n].providers[p].endpoint: ")
    assert expected in found
    assert "u:p" not in found


@pytest.mark.parametrize("value", ["0.0.0.0:80", "[::]:80", "host.example:1", "127.0.0.1:0", "localhost:65535"])
def test_addresses_that_are_taken(value: str) -> None:
    assert errors(f"openai: {{listen: '{value}'}}") == []


@pytest.mark.parametrize("value", ["80", ":80", "h", "h:", "h:65536", "::1:80", "h:80:80", "http://h:80", "h: 80"])
def test_addresses_that_are_refused(value: str) -> None:
    (found,) = errors(f"openai: {{listen: '{value}'}}")
    assert "expected" in found


@pytest.mark.parametrize("value", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/run/iop.sock"])
def test_admin_addresses_that_are_taken(value: str) -> None:
    assert errors(f"admin: {{listen: '{value}'}}") == []


@pytest.mark.parametrize(
    "value", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.evil.example:1", "unix:run.sock", f"unix:/{'x' * 104}", "h:1"]
)
def test_admin_is_for_this_machine_only(value: str) -> None:
    (found,) = errors(f"admin: {{listen: '{value}'}}")
    assert "loopback" in found or "absolute path" in found


def test_observe_takes_any_address() -> None:
    assert errors("observe: {listen: '0.0.0.0:9'}") == []
    assert errors("observe: {}")[0].startswith("observe.listen: is missing")


@pytest.mark.parametrize("value", ["Ab" * 32, "0" * 63 + "f"])
def test_hashes_are_taken_in_either_case_and_kept_lower(value: str) -> None:
    text = f"nodes: [{{id: n, token_hash_sha256: '{value}'}}]"
    assert accepted(text).config.nodes[0].token_hash_sha256 == value.lower()


@pytest.mark.parametrize("value", ["a" * 63, "a" * 65, "g" * 64, "sha256:" + "a" * 64, ""])
def test_hashes_are_64_hex_characters(value: str) -> None:
    (found,) = errors(f"nodes: [{{id: n, token_hash_sha256: '{value}'}}]")
    assert found.endswith("expected the sha256 of the token as 64 hex characters, never the token itself")


@pytest.mark.parametrize("value", ["auto", "up", "down"])
def test_health_words(value: str) -> None:
    assert errors(provider(f"health: {value}")) == []


def test_an_unknown_word_gets_the_list_or_the_nearest() -> None:
    path = "nodes[n].providers[p]"
    assert errors(provider("health: green")) == [f"{path}.health: 'green' is unknown, expected one of auto, up, down"]
    assert errors(provider("", base="type: vlm, endpoint: 'http://h'")) == [
        f"{path}.type: 'vlm' is unknown, did you mean vllm?"
    ]


def test_lists_and_mappings_that_need_entries() -> None:
    assert "models[m].providers: is empty, expected at least one entry" in errors("models: [{id: m, providers: {}}]")
    assert "nodes[n].providers[p].models: is empty, expected at least one entry" in errors(
        "nodes: [{id: n, providers: [{id: p, type: vllm, endpoint: 'http://h', capacity: 1, models: []}]}]"
    )


def test_generation_numbers() -> None:
    text = "models: [{{id: m, providers: {{p: s}}, generation: {{defaults: {{{}}}, max_tokens_ceiling: 9}}}}]\n"
    text += provider("").split("\n", 1)[1].replace("{", "{{").replace("}", "}}")
    defaults = accepted(text.format("temperature: 0.7, top_p: 1, seed: -4")).config.models[0].generation.defaults
    assert (defaults.temperature, defaults.top_p, defaults.seed, defaults.top_k) == (0.7, 1, -4, None)
    assert errors(text.format("temperature: 1e-1"))[0].startswith("models[m].generation.defaults.temperature: ")
    assert errors(text.format("top_p: 1.1")) == ["models[m].generation.defaults.top_p: '1.1': expected at most 1"]

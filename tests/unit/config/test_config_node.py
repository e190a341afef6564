"""The Node's own file."""

from __future__ import annotations

import pytest

from iop_fast.config.loader import load_node_text

from .files import NODE, lines, node_findings


def node_errors(text: str) -> list[str]:
    return lines(node_findings(text))


def test_the_least_file_and_its_defaults() -> None:
    config = load_node_text(NODE, "f").config
    assert (config.id, config.edge.address, config.token_env) == ("n1", "127.0.0.1:8081", "TOKEN")
    assert [(one.id, one.adapter) for one in config.native_models] == [("echo", "echo")]
    assert (config.limits.drain_ms, config.limits.heartbeat_ms, config.limits.silence_ms) == (30_000, 5_000, 15_000)
    assert config.cli_profiles == ()


def test_native_models_given_replace_the_default() -> None:
    text = NODE + "native_models: [{id: slow, adapter: echo, options: {delay_ms: 5, chunk_words: 2}}]\n"
    (one,) = load_node_text(text, "f").config.native_models
    assert (one.id, one.adapter, one.options) == ("slow", "echo", {"delay_ms": 5, "chunk_words": 2})
    assert load_node_text(NODE + "native_models: []\n", "f").config.native_models == ()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "{id: m, adapter: echo, options: {delay_ms: soon}}",
            "[delay_ms]: expected a whole number, got a text 'soon'",
        ),
        ("{id: m, adapter: echo, options: {chunk: 3}}", "[chunk]: unknown key, did you mean chunk_ms?"),
        (
            "{id: m, adapter: llama_cpp}",
            "[path]: is missing, expected: the model's GGUF file, an absolute path",
        ),
        (
            "{id: m, adapter: llama_cpp, options: {path: model.gguf}}",
            "[path]: 'model.gguf': expected an absolute path",
        ),
        ("{id: m, adapter: theirs, options: {a: [1]}}", "[a]: expected a text, a number, true or false"),
    ],
)
def test_options_of_native_models_are_checked(model: str, expected: str) -> None:
    assert node_errors(f"{NODE}native_models: [{model}]\n") == [f"native_models[m].options{expected}"]


def test_the_options_of_another_package_s_adapter_are_its_own() -> None:
    text = NODE + "native_models: [{id: m, adapter: theirs, options: {a: x, b: 1, c: 1.5, d: true}}]\n"
    (one,) = load_node_text(text, "f").config.native_models
    assert one.options == {"a": "x", "b": 1, "c": 1.5, "d": True}


def test_id_and_edge_are_required() -> None:
    assert node_errors("token_env: T\n") == [
        "edge: is missing, expected: the Edge that the Node dials",
        "id: is missing, expected: name of this Node in the Edge's file",
    ]


def test_one_source_of_the_token() -> None:
    without = NODE.replace("token_env: TOKEN\n", "")
    assert node_errors(without) == [": expected one of token_env and token_file, got neither"]
    assert node_errors(NODE + "token_file: /t\n") == ["token_file: expected one of token_env and token_file, got both"]
    assert node_errors(without + "token_file: /t\n") == []


def test_a_raw_token_is_refused_and_not_repeated() -> None:
    text = NODE.replace("token_env: TOKEN", "token: SECRET")
    found = "\n".join(map(str, node_findings(text)))
    assert "a raw token never stands in the file" in found
    assert "SECRET" not in found


def test_a_raw_token_in_the_place_of_a_name_is_not_repeated() -> None:
    found = "\n".join(map(str, node_findings(NODE.replace("TOKEN", "iop-SECRET"))))
    assert "expected the name of an environment variable" in found
    assert "SECRET" not in found


def test_tls_without_keys_trusts_the_systems_authorities() -> None:
    tls = load_node_text(NODE.replace("'}", "', tls: {}}"), "f").config.edge.tls
    assert tls is not None
    assert (tls.ca_file, tls.cert_file, tls.server_name) == (None, None, None)


def test_native_model_ids_are_unique() -> None:
    text = NODE + "native_models: [{id: e, adapter: echo}, {id: e, adapter: echo}]\n"
    assert node_errors(text) == ["native_models[e].id: model id e is given twice, first in line 4"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ("{silence_ms: 6000}", "limits.silence_ms: silence_ms 6000 is below twice heartbeat_ms 5000"),
        (
            "{reconnect_ms_min: 20000}",
            "limits.reconnect_ms_min: reconnect_ms_min 20000 is above reconnect_ms_max 10000",
        ),
        ("{probe_ms_max: 999}", "limits.probe_ms_max: probe_ms_min 1000 is above probe_ms_max 999"),
        ("{heartbeat_ms: 9}", "limits.heartbeat_ms: '9': expected at least 10"),
    ],
)
def test_limits_fit_together(limits: str, expected: str) -> None:
    (found,) = node_errors(NODE + f"limits: {limits}\n")
    assert found.startswith(expected)

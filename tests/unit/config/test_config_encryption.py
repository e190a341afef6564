"""Plaintext off loopback is refused on the link unless the file says that it is meant, and warned of on the front."""

from __future__ import annotations

import pytest

from iop_fast.config.schema.fields import is_loopback

from .files import findings, node_findings

TLS = "tls: {cert_file: /c, key_file: /k}"
OFF = ["0.0.0.0:9", "[::]:9", "10.0.0.1:9", "edge.example:9", "[fe80::1%eth0]:9", "127.evil.example:9", "128.0.0.1:9"]
ON = ["127.0.0.1:9", "127.8.9.10:9", "localhost:9", "LocalHost:9", "[::1]:9", "[0:0:0:0:0:0:0:1]:9"]


def said(text: str) -> list[str]:
    return [str(one) for one in findings(text)]


def node_said(edge: str) -> list[str]:
    return [str(one) for one in node_findings(f"id: n\ntoken_env: T\nedge: {{{edge}}}\n")]


@pytest.mark.parametrize("address", OFF)
def test_a_link_off_loopback_without_tls_is_refused(address: str) -> None:
    message = (
        f"{address} is not a loopback address and there is no edge.tls: Nodes' tokens and all requests would cross the "
        "network readable, expected edge.tls, or edge.insecure: true where that is meant"
    )
    assert said(f"edge: {{listen: '{address}'}}") == [f"f:1:16: error: edge.listen: {message}"]
    assert said(f"edge: {{listen: '{address}', insecure: false}}") == [f"f:1:16: error: edge.listen: {message}"]
    assert said(f"edge: {{listen: '{address}', insecure: true}}") == []
    assert said(f"edge: {{listen: '{address}', {TLS}}}") == []


@pytest.mark.parametrize("address", OFF)
def test_a_node_does_not_dial_off_loopback_without_tls(address: str) -> None:
    message = (
        f"{address} is not a loopback address and there is no edge.tls: this Node's token and all requests would cross "
        "the network readable, expected edge.tls, or edge.insecure: true where that is meant"
    )
    assert node_said(f"address: '{address}'") == [f"f:3:17: error: edge.address: {message}"]
    assert node_said(f"address: '{address}', insecure: true") == []
    assert node_said(f"address: '{address}', tls: {{}}") == []


@pytest.mark.parametrize("address", OFF)
def test_a_front_off_loopback_without_tls_is_a_warning(address: str) -> None:
    (found,) = findings(f"openai: {{listen: '{address}'}}")
    assert (found.severity, found.path, found.line, found.column) == ("warning", "openai.listen", 1, 18)
    assert found.message.startswith(f"{address} is not a loopback address and there is no openai.tls: callers' tokens")
    assert said(f"openai: {{listen: '{address}', insecure: true}}") == []
    assert said(f"openai: {{listen: '{address}', {TLS}}}") == []


@pytest.mark.parametrize("address", ON)
def test_loopback_needs_neither(address: str) -> None:
    assert said(f"edge: {{listen: '{address}'}}") == []
    assert said(f"openai: {{listen: '{address}'}}") == []
    assert said(f"edge: {{listen: '{address}', insecure: true}}") == []
    assert node_said(f"address: '{address}'") == []


def test_saying_insecure_beside_tls_is_a_warning() -> None:
    message = "has no meaning beside tls, which encrypts; remove one of them"
    assert said(f"edge: {{insecure: true, {TLS}}}") == [f"f:1:8: warning: edge.insecure: {message}"]
    assert said(f"openai: {{insecure: true, {TLS}}}") == [f"f:1:10: warning: openai.insecure: {message}"]
    assert node_said("address: 'h:1', tls: {}, insecure: true") == [f"f:3:33: warning: edge.insecure: {message}"]
    assert said(f"edge: {{insecure: false, {TLS}}}") == []


@pytest.mark.parametrize("value", ["yes", "1", "'true'", "~"])
def test_an_answer_that_is_none_is_one_finding(value: str) -> None:
    (found,) = findings(f"edge: {{listen: 'h:1', insecure: {value}}}")
    assert (found.severity, found.path) == ("error", "edge.insecure")


def test_an_address_that_is_none_is_one_finding() -> None:
    (found,) = findings("edge: {listen: nonsense}")
    assert found.message.endswith("expected host:port, an IPv6 address in brackets ([::1]:8080)")


@pytest.mark.parametrize("host", ["::ffff:10.0.0.1", "1", "", "127", "127.0.0.1.example", "0.0.0.0", "::"])
def test_other_hosts_are_not_of_this_machine_alone(host: str) -> None:
    assert not is_loopback(host)

"""Image, compose file and Kubernetes manifests fit the programs: configurations, ports, probes, times, names."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import iop_fast
from iop_fast.config.loader import load_edge_text, load_node_text
from iop_fast.config.schema import EdgeConfig, NodeConfig
from iop_fast.edge import app as edge_app
from iop_fast.node import app as node_app

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
IMAGE = f"iop_fast:{iop_fast.__version__}"
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
OBJECTS: list[dict[str, Any]] = [
    made for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for made in yaml.safe_load_all(file.read_text())
]


def edge_config(text: str) -> EdgeConfig:
    """An Edge's configuration of a manifest; a warning is a finding, too, but for plain HTTP inside of a cluster."""
    loaded = load_edge_text(text, "edge.yaml")
    assert loaded.warnings == ()
    return loaded.config


def node_config(text: str) -> NodeConfig:
    loaded = load_node_text(text, "node.yaml")
    assert loaded.warnings == ()
    return loaded.config


def found(kind: str, name: str) -> dict[str, Any]:
    """One object of the manifests."""
    (made,) = (one for one in OBJECTS if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return made


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])


# Kubernetes

EDGE = edge_config(found("ConfigMap", "iop-edge")["data"]["edge.yaml"])
NODE = node_config(found("ConfigMap", "iop-node-gpu-1")["data"]["node.yaml"])
EDGE_POD = found("Deployment", "iop-edge")["spec"]["template"]["spec"]
NODE_POD = found("Deployment", "iop-node-gpu-1")["spec"]["template"]["spec"]


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    (made,) = (one for one in pod["containers"] if one["name"] == name)
    return made


def test_the_pods_name_the_ports_that_the_programs_listen_on() -> None:
    ports = {port["name"]: port["containerPort"] for port in container(EDGE_POD, "edge")["ports"]}
    assert EDGE.observe is not None
    assert NODE.observe is not None
    listens = {"http": EDGE.openai.listen, "link": EDGE.edge.listen, "observe": EDGE.observe.listen}
    assert ports == {name: port_of(listen) for name, listen in listens.items()}
    (port,) = container(NODE_POD, "node")["ports"]
    assert (port["name"], port["containerPort"]) == ("observe", port_of(NODE.observe.listen))
    for service in ("iop-edge", "iop-edge-link"):
        for entry in found("Service", service)["spec"]["ports"]:
            assert ports[entry["targetPort"]] == entry["port"]


@pytest.mark.parametrize(("pod", "name"), [(EDGE_POD, "edge"), (NODE_POD, "node")])
def test_probes_ask_for_life_and_readiness_apart(pod: dict[str, Any], name: str) -> None:
    made = container(pod, name)
    asked = {probe: made[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe: get["path"] for probe, get in asked.items()} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    assert {get["port"] for get in asked.values()} == {"observe"}


def test_a_pod_is_given_the_time_that_its_program_takes_to_stop() -> None:
    _, before_s = container(EDGE_POD, "edge")["lifecycle"]["preStop"]["exec"]["command"]
    needed_s = float(before_s) + EDGE.openai.limits.drain_ms / 1000
    assert EDGE_POD["terminationGracePeriodSeconds"] >= needed_s + 20
    assert NODE_POD["terminationGracePeriodSeconds"] >= NODE.limits.drain_ms / 1000 + 20 + 30
    # The model server waits for the Node longer than that drains.
    (_, _, script) = container(NODE_POD, "vllm")["lifecycle"]["preStop"]["exec"]["command"]
    (limit,) = re.findall(r"seq (\d+)", script)
    assert int(limit) >= NODE.limits.drain_ms / 1000 + 20
    assert f'"127.0.0.1", {port_of(NODE.observe.listen) if NODE.observe else 0}' in script


def test_the_allowance_for_leaving_is_that_of_the_programs() -> None:
    assert edge_app.LEAVING_S == node_app.LEAVING_S == 20.0


def test_the_node_is_one_of_the_edges_and_dials_its_service() -> None:
    assert NODE.id in {node.id for node in EDGE.nodes}
    service, _, port = NODE.edge.address.partition(":")
    assert found("Service", service)["spec"]["publishNotReadyAddresses"] is True
    assert int(port) == port_of(EDGE.edge.listen)
    (endpoint,) = {str(provider.endpoint) for node in EDGE.nodes for provider in node.providers}
    assert ["--host", "127.0.0.1", "--port", endpoint.rpartition(":")[2].rstrip("/")] == container(NODE_POD, "vllm")[
        "args"
    ][2:]


def test_no_secret_stands_in_a_manifest_and_the_token_is_one_by_name() -> None:
    assert [one for one in OBJECTS if one["kind"] == "Secret"] == []
    (variable,) = container(NODE_POD, "node")["env"]
    assert variable["name"] == NODE.token_env
    assert set(variable["valueFrom"]) == {"secretKeyRef"}


@pytest.mark.parametrize(("pod", "name"), [(EDGE_POD, "edge"), (NODE_POD, "node")])
def test_the_programs_run_without_rights(pod: dict[str, Any], name: str) -> None:
    made = container(pod, name)
    context = {**pod.get("securityContext", {}), **made["securityContext"]}
    assert context["runAsNonRoot"] is True
    assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert made["image"] == IMAGE
    assert pod["automountServiceAccountToken"] is False


def test_every_selector_finds_its_pods() -> None:
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in OBJECTS if one["kind"] == "Deployment"]
    selectors = []
    for one in OBJECTS:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            selectors.append(spec["selector"])
        elif one["kind"] in ("Deployment", "PodDisruptionBudget"):
            selectors.append(spec["selector"]["matchLabels"])
        elif one["kind"] == "NetworkPolicy":
            selectors.append(spec["podSelector"]["matchLabels"])
            sources = [source for rule in spec["ingress"] for source in rule["from"]]
            selectors += [source["podSelector"].get("matchLabels", {}) for source in sources if "podSelector" in source]
    assert len(selectors) >= 8
    for selector in selectors:
        assert any(selector.items() <= each.items() for each in labels), selector


# Compose


def test_the_configurations_of_compose_are_accepted_and_fit_together() -> None:
    edge = edge_config((DEPLOY / "compose" / "edge" / "edge.yaml").read_text())
    node = node_config((DEPLOY / "compose" / "node" / "node.yaml").read_text())
    services = COMPOSE["services"]
    assert node.id in {one.id for one in edge.nodes}
    assert node.edge.address == f"edge:{port_of(edge.edge.listen)}"
    assert node.token_env in services["node"]["environment"]
    assert node.observe is not None
    assert services["node"]["environment"]["IOP_PROBE"] == node.observe.listen
    published = services["edge"]["ports"]
    assert published == [f"127.0.0.1:{port_of(edge.openai.listen)}:{port_of(edge.openai.listen)}"]
    (endpoint,) = {str(provider.endpoint) for one in edge.nodes for provider in one.providers}
    host = re.match(r"http://(\w+):", endpoint)
    assert host is not None
    assert set(services[host[1]]["networks"]) & set(services["node"]["networks"])
    assert set(services["edge"]["networks"]) & set(services["node"]["networks"])
    for kind, config in (("edge", edge.openai.limits), ("node", node.limits)):
        assert seconds(services[kind]["stop_grace_period"]) >= config.drain_ms / 1000 + 20
        assert services[kind]["image"] == IMAGE
        assert services[kind]["command"] == [kind, "-c", f"/etc/iop/{kind}.yaml"]
        assert services[kind]["read_only"] is True


# The image


CONTAINERFILE = re.sub(r"\\\n\s*", " ", (DEPLOY / "container" / "Containerfile").read_text())
STEPS = [tuple(line.split(None, 1)) for line in CONTAINERFILE.splitlines() if re.match(r"[A-Z]+ ", line)]
LAST = STEPS[max(number for number, (name, _) in enumerate(STEPS) if name == "FROM") :]


def step(name: str) -> str:
    """What the last stage says once."""
    (said,) = (text for kind, text in LAST if kind == name)
    return said


def test_the_image_runs_a_program_without_rights_and_passes_signals_on() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", step("USER"))  # a number: runAsNonRoot cannot judge a name
    assert json.loads(step("ENTRYPOINT")) == ["tini", "--", "iop"]
    assert json.loads(step("CMD")) == ["edge", "-c", "/etc/iop/edge.yaml"]
    assert step("STOPSIGNAL") == "SIGTERM"
    assert step("HEALTHCHECK").endswith('CMD ["iop", "probe"]')


def test_the_image_is_built_of_what_stands_in_the_tree_and_is_not_left_out() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    taken = [line[1:] for line in ignored if line.startswith("!")]
    sources = [word for kind, text in STEPS if kind == "COPY" and "--from" not in text for word in text.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in taken), f"{source} is in .dockerignore"
    assert sorted(taken) == sorted(sources), "what is not used is not sent to the builder"


def test_the_ports_of_the_image_are_those_of_the_examples() -> None:
    assert EDGE.observe is not None
    listens = (EDGE.openai.listen, EDGE.edge.listen, EDGE.observe.listen)
    assert step("EXPOSE").split() == [str(port_of(listen)) for listen in listens]


def test_the_headers_of_the_files_name_the_image_that_they_use() -> None:
    for file in ("container/Containerfile", "compose/compose.yaml"):
        assert f"-t {IMAGE} ." in (DEPLOY / file).read_text()

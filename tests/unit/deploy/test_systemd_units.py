"""The units of deploy/systemd: systemd accepts them, they give away little, and they fit what the programs do."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from iop_fast.config.schema import EdgeConfig, NodeConfig

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "systemd"
KINDS = ("edge", "node")
PROGRAM = "/opt/iop/bin/iop"

# What `systemd-analyze security` calls the exposure, times ten; below 20 it says OK. What is left is the network.
EXPOSURE_MAX = 13

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")


def values(kind: str, name: str) -> list[str]:
    """Every value that a unit gives a name."""
    return re.findall(rf"^{name}=(.*)$", (FOLDER / f"iop-{kind}.service").read_text(), re.MULTILINE)


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units with a program that exists here in the place of the installed one."""
    for kind in KINDS:
        text = (FOLDER / f"iop-{kind}.service").read_text()
        assert PROGRAM in text
        (tmp_path / f"iop-{kind}.service").write_text(text.replace(PROGRAM, sys.executable))
    return tmp_path


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=30, check=False)


@needs_systemd
@pytest.mark.parametrize("kind", KINDS)
def test_systemd_finds_nothing_wrong(units: Path, kind: str) -> None:
    found = analyze("verify", str(units / f"iop-{kind}.service"))
    assert found.returncode == 0, found.stderr
    # systemd before 253 leaves out the second Type=, as the unit says.
    said = [line for line in found.stderr.splitlines() if f"iop-{kind}" in line]
    assert [line for line in said if not line.endswith("Failed to parse service type, ignoring: notify-reload")] == []


@needs_systemd
@pytest.mark.parametrize("kind", KINDS)
def test_the_exposure_stays_low(units: Path, kind: str) -> None:
    unit = str(units / f"iop-{kind}.service")
    found = analyze("security", "--offline=yes", "--no-pager", f"--threshold={EXPOSURE_MAX}", unit)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("kind", "drain_ms"),
    [
        ("edge", EdgeConfig.model_validate({"models": [], "nodes": []}).openai.limits.drain_ms),
        ("node", NodeConfig.model_validate({"id": "n", "edge": {"address": "a:1"}, "token_env": "T"}).limits.drain_ms),
    ],
)
def test_the_stop_is_given_longer_than_a_drain_takes(kind: str, drain_ms: int) -> None:
    (limit,) = values(kind, "TimeoutStopSec")
    assert seconds(limit) >= drain_ms / 1000 + 20  # LEAVING_S of the programs


def test_an_edge_may_open_what_its_default_connections_take() -> None:
    (limit,) = values("edge", "LimitNOFILE")
    limits = EdgeConfig.model_validate({"models": [], "nodes": []}).openai.limits
    assert int(limit) >= 2 * limits.connections


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_configuration_is_not_tried_again(kind: str) -> None:
    assert values(kind, "RestartPreventExitStatus") == ["2"]
    assert values(kind, "Restart") == ["on-failure"]


def test_the_node_reads_its_token_as_a_credential() -> None:
    (credential,) = values("node", "LoadCredential")
    name = credential.partition(":")[0]
    assert f"token_file: /run/credentials/iop-node.service/{name}" in (FOLDER / "iop-node.service").read_text()


def test_both_units_confine_their_program_alike() -> None:
    confining = re.compile(
        r"^(?:Protect|Private|Restrict|SystemCall|Capability|Ambient|NoNew|Lock|Memory|Proc)\w*=.*$", re.M
    )
    edge, node = (confining.findall((FOLDER / f"iop-{kind}.service").read_text()) for kind in KINDS)
    # A drop-in in a comment begins with "#", so only what holds is compared.
    assert edge == [line for line in node if not line.startswith("#")]
    assert "NoNewPrivileges=yes" in edge

"""What the commands about configuration files print and how they end: check, config show, schema."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from iop_fast.cli.main import main
from iop_fast.edge.app import run_edge
from iop_fast.node.app import run_node
from tests.unit.config.files import FLEET, HASH_A, NODE

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = ROOT / "configs"
WARNED = FLEET.replace(", p2: served-2", "")
WARNING = "{}:16:13: warning: nodes[n2].providers[p2].id: no model maps to this provider: it gets no requests"
REFUSED = "admin: {listen: 3}\n"
REFUSAL = "{}:1:17: error: admin.listen: expected a text, got a number '3'; put it in quotes"


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Run `iop` in this process: exit code, standard output, standard error."""
    result = CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """One file of each fate."""
    texts = {"good": FLEET, "warned": WARNED, "refused": REFUSED, "node": NODE}
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return {name: tmp_path / f"{name}.yaml" for name in texts}


class TestCheck:
    @pytest.mark.parametrize(
        ("names", "usual", "strict"),
        [
            (["good"], 0, 0),
            (["node"], 0, 0),
            (["warned"], 0, 1),
            (["good", "warned"], 0, 1),
            (["refused"], 2, 2),
            (["refused", "good", "warned"], 2, 2),
        ],
    )
    def test_exit_codes(self, files: dict[str, Path], names: list[str], usual: int, strict: int) -> None:
        paths = [files[name] for name in names]
        assert run("check", *paths)[0] == usual
        assert run("check", "--strict", *paths)[0] == strict
        assert run("check", "--json", *paths)[0] == usual
        assert run("check", "--json", "--strict", *paths)[0] == strict

    def test_every_file_is_reported(self, files: dict[str, Path]) -> None:
        code, out, err = run("check", *files.values())
        good, warned, refused, node = files.values()
        assert (code, err) == (2, "")
        assert out.splitlines() == [
            f"{good}: accepted as edge configuration",
            WARNING.format(warned),
            f"{warned}: accepted as edge configuration",
            REFUSAL.format(refused),
            f"{refused}: refused as edge configuration, errors: 1",
            f"{node}: accepted as node configuration",
        ]

    def test_json_has_every_finding_with_its_place(self, files: dict[str, Path]) -> None:
        _, out, _ = run("check", "--json", *files.values())
        found = json.loads(out)
        assert (found["errors"], found["warnings"]) == (1, 1)
        assert [(one["file"], one["kind"], one["accepted"], len(one["findings"])) for one in found["files"]] == [
            (str(files["good"]), "edge", True, 0),
            (str(files["warned"]), "edge", True, 1),
            (str(files["refused"]), "edge", False, 1),
            (str(files["node"]), "node", True, 0),
        ]
        assert found["files"][2]["findings"] == [
            {
                "line": 1,
                "column": 17,
                "severity": "error",
                "path": "admin.listen",
                "message": "expected a text, got a number '3'; put it in quotes",
            }
        ]

    @pytest.mark.parametrize("name", ["edge.yaml", "edge.minimal.yaml", "node.yaml"])
    def test_the_shipped_files_have_no_finding(self, name: str) -> None:
        kind = name.split(".")[0]
        assert run("check", "--strict", CONFIGS / name) == (
            0,
            f"{CONFIGS / name}: accepted as {kind} configuration\n",
            "",
        )

    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("", "edge"),
            ("edge: {id: a}", "edge"),
            ("edge: {address: 'h:1'}", "node"),
            ("id: n", "node"),
            ("log: {}\nlimits: {}", "node"),
            ("observe: {listen: 'h:1'}", "edge"),
            ("id: n\nmodels: []\nnodes: []", "edge"),
            ("[1, 2]", "edge"),
            ("a: [", "edge"),
        ],
    )
    def test_the_keys_tell_the_kind(self, tmp_path: Path, text: str, kind: str) -> None:
        file = tmp_path / "x.yaml"
        file.write_text(text)
        assert json.loads(run("check", "--json", file)[1])["files"][0]["kind"] == kind

    @pytest.mark.parametrize(("kind", "other"), [("edge", "node"), ("node", "edge")])
    def test_a_kind_can_be_forced(self, files: dict[str, Path], kind: str, other: str) -> None:
        file = files["good"] if kind == "edge" else files["node"]
        assert run("check", "--kind", kind, file)[0] == 0
        code, out, _ = run("check", "--kind", other, file)
        assert code == 2
        assert out.splitlines()[-1].startswith(f"{file}: refused as {other} configuration, errors: ")

    def test_a_file_that_is_not_there_is_a_finding(self, tmp_path: Path) -> None:
        file = tmp_path / "none.yaml"
        assert run("check", file)[:2] == (
            2,
            f"{file}:1:1: error: cannot be read: no such file or directory\n"
            f"{file}: refused as edge configuration, errors: 1\n",
        )


class TestConfigShow:
    def shown(self, *arguments: str | Path) -> list[str]:
        code, out, err = run("config", "show", "-c", *arguments)
        assert (code, err) == (0, "")
        return out.splitlines()

    def test_each_value_says_where_it_is_from(self, files: dict[str, Path]) -> None:
        lines = self.shown(files["good"])
        assert 'nodes[n1].providers[p1].type: "vllm"  # file, line 9' in lines
        assert "nodes[n1].providers[p1].priority: 0  # default" in lines
        assert 'nodes[n2].providers[p2].models: ["served-2"]  # file, line 19' in lines
        assert 'models[chat].providers: {"p1": "served-1", "p2": "served-2"}  # file, line 3' in lines
        assert "provider_pool.max_queue: 16  # default" in lines
        assert "nodes[n1].alias: (none)  # default" in lines

    def test_secrets_are_masked(self, files: dict[str, Path]) -> None:
        lines = self.shown(files["good"])
        assert 'nodes[n1].token_hash_sha256: "***"  # file, line 6' in lines
        assert HASH_A not in "\n".join(lines)

    def test_what_the_queue_pair_is_taken_over_from(self, tmp_path: Path) -> None:
        file = tmp_path / "edge.yaml"
        file.write_text(
            FLEET.replace("capacity: 4\n", "capacity: 4\n        queue_timeout_ms: 7\n        max_queue: 0\n")
        )
        code, out, err = run("config", "show", "-c", file)
        assert (code, err.count("warning")) == (0, 1)
        assert "provider_pool.max_queue: 16  # legacy, line 14" in out.splitlines()
        assert "provider_pool.queue_timeout_ms: 7  # legacy, line 13" in out.splitlines()
        assert "nodes[n1].providers[p1].max_queue" not in out

    def test_an_ignored_pair_is_no_source(self, tmp_path: Path) -> None:
        file = tmp_path / "edge.yaml"
        pair = "capacity: 4\n        queue_timeout_ms: 7\n        max_queue: 9\n"
        file.write_text("provider_pool: {max_queue: 5}\n" + FLEET.replace("capacity: 4\n", pair))
        _, out, _ = run("config", "show", "-c", file)
        assert "provider_pool.max_queue: 5  # file, line 1" in out.splitlines()
        assert "provider_pool.queue_timeout_ms: 30000  # default" in out.splitlines()

    def test_given_leaves_the_defaults_out(self, files: dict[str, Path]) -> None:
        lines = self.shown(files["node"], "--given")
        assert lines == [
            'id: "n1"  # file, line 1',
            'edge.address: "127.0.0.1:8081"  # file, line 2',
            'token_env: "TOKEN"  # file, line 3',
        ]

    def test_a_default_list_of_sections_is_shown(self, files: dict[str, Path]) -> None:
        assert 'native_models[echo].adapter: "echo"  # default' in self.shown(files["node"])

    def test_json(self, files: dict[str, Path]) -> None:
        found = json.loads("\n".join(self.shown(files["good"], "--json", "--given")))
        assert found["kind"] == "edge"
        assert {"path": "models[chat].id", "value": "chat", "source": "file", "line": 2} in found["values"]

    def test_all_keys_of_the_shipped_file_are_from_the_file_or_default(self) -> None:
        lines = self.shown(CONFIGS / "edge.yaml")
        assert len(lines) == len(set(lines)) > 150
        assert all("  # file, line " in line or line.endswith("  # default") for line in lines)

    def test_a_refused_file_shows_its_findings_and_no_values(self, files: dict[str, Path]) -> None:
        assert run("config", "show", "-c", files["refused"]) == (2, "", REFUSAL.format(files["refused"]) + "\n")


@pytest.mark.parametrize("kind", ["edge", "node"])
def test_schema_prints_the_committed_file(kind: str) -> None:
    assert run("schema", kind) == (0, (CONFIGS / f"{kind}.schema.json").read_text(), "")


def test_schema_is_the_edges_unless_said_otherwise() -> None:
    assert run("schema") == run("schema", "edge")
    assert run("schema", "queue")[0] == 2


class TestProgramsRefuse:
    def test_an_edge_whose_link_is_plaintext_off_loopback(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "edge.yaml"
        file.write_text("edge: {listen: '0.0.0.0:0'}\n")
        assert asyncio.run(run_edge(file)) == 2
        assert f"{file}:1:16: error: edge.listen: 0.0.0.0:0 is not a loopback address" in capsys.readouterr().err

    def test_a_node_that_would_dial_plaintext_off_loopback(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "node.yaml"
        file.write_text("id: n\nedge: {address: 'edge.example:1'}\ntoken_env: T\n")
        assert asyncio.run(run_node(file)) == 2
        assert f"{file}:2:17: error: edge.address: edge.example:1 is not" in capsys.readouterr().err

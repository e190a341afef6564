"""Ask the tools of others about what stands in deploy/: each one knows its format better than our tests do.

    python -m scripts.deploy_check

hadolint reads the Containerfile, compose-spec (the specification's parser) and compose-lint the compose file,
kubernetes-validate the manifests by the schemas of the oldest and the newest Kubernetes that they are meant for, and
promtool the alert rules with their tests. All but promtool come from the dependency group `deploy`; promtool is
Debian's, and looked for on the path and in .venv/promtool (scripts/get-promtool.sh).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml
from compose_spec import PyCompose

from scripts.gen_dashboard import dashboard

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
TOOLS = Path(sys.executable).parent
# `sleep` as a command and policy/v1 are older; 1.27 is where unhealthyPodEvictionPolicy is on by default.
KUBERNETES = ("1.27.0", "1.37.0")
LIMIT_S = 120.0


def run(*words: str | Path, folder: Path = ROOT) -> None:
    """Run a tool to its end; what it finds is printed and ends this program."""
    done = subprocess.run(
        list(map(str, words)), cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    name = Path(words[0]).name
    if done.returncode != 0:
        raise SystemExit(f"{name} found something:\n{done.stdout}{done.stderr}")
    print(f"deploy check: {name} {' '.join(str(word) for word in words[1:] if '/' not in str(word))}: nothing found")


def main() -> None:
    """Ask all of them."""
    run(TOOLS / "hadolint", DEPLOY / "container" / "Containerfile")
    compose = DEPLOY / "compose" / "compose.yaml"
    # The parser knows no merge keys; PyYAML resolves them.
    services = PyCompose.from_yaml(yaml.safe_dump(yaml.safe_load(compose.read_text()))).service_names()
    assert sorted(services) == ["edge", "node", "ollama"], services
    print("deploy check: compose-spec: nothing found")
    run(TOOLS / "compose-lint", "--fail-on", "high", compose)
    manifests = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for version in KUBERNETES:
        run(TOOLS / "kubernetes-validate", "--strict", "--quiet", "-k", version, *manifests)
    promtool = shutil.which("promtool") or shutil.which("promtool", path=ROOT / ".venv" / "promtool")
    if promtool is None:
        raise SystemExit("deploy check: promtool expected on the path; scripts/get-promtool.sh gets it")
    rules = DEPLOY / "prometheus"
    run(promtool, "check", "rules", rules / "alerts.yaml")
    run(promtool, "check", "config", "--syntax-only", rules / "scrape.yaml")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:  # the dashboard's queries, as rules
        file.write(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": list(dashboard_rules())}]}))
        file.flush()
        run(promtool, "check", "rules", file.name)
    run(promtool, "test", "rules", rules / "alerts.test.yaml", folder=rules)


def dashboard_rules() -> Iterator[dict[str, str]]:
    """Every query of the dashboard with what Grafana puts in the place of its variables."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$__rate_interval", "5m").replace("$__range", "1h")
            yield {"record": f"panel:{panel['id']}:{target['refId']}", "expr": query}


if __name__ == "__main__":
    main()

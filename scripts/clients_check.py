"""Other makers' clients against real processes: LangChain, LiteLLM's SDK, openai of npm and the JDK's HttpClient.

They bring hundreds of megabytes with them, so they are installed beside the project, into build/clients, and are no
part of the tests. usage: clients_check.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = ROOT / "scripts" / "clients"
HOME = ROOT / "build" / "clients"
PACKAGES = ("langchain-openai>=1,<2", "litellm>=1.100,<2")
LIMIT_S = 120


def install() -> Path:
    """Install the Python clients once; return their interpreter."""
    python = HOME / "bin" / "python"
    if not (HOME / ".installed").exists():
        venv.create(HOME, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (HOME / ".installed").touch()
    return python


def check(base: str, python: Path) -> None:
    """Run every client."""
    for script in sorted(CLIENTS.glob("*_client.py")):
        # LiteLLM would fetch a list of prices from the network at import.
        quiet = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        subprocess.run([python, script, base], check=True, timeout=LIMIT_S, env=quiet)
    if shutil.which("npm") is None:
        print("openai of npm: not checked, there is no npm here")
    else:
        port = base.removesuffix("/v1").rpartition(":")[2]
        subprocess.run([ROOT / "scripts" / "npm-client-check.sh", port, "m", "audio"], check=True, timeout=LIMIT_S)
    java = shutil.which("java")
    if java is None:
        print("JDK HttpClient: not checked, there is no java here")
        return
    subprocess.run([java, CLIENTS / "JdkClient.java", base], check=True, timeout=LIMIT_S)


def main() -> int:
    """Start a fleet and let the clients at it."""
    sys.path.insert(0, str(ROOT))
    from tests.integration.served import Served

    python = install()
    with tempfile.TemporaryDirectory() as folder, Served(Path(folder)) as served:
        check(served.fleet.base_url, python)
        rows = served.status()["usage"]["rows"]
    assert sum(row["complete"] for row in rows) >= 10, rows
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

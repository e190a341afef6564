"""Run the units of deploy/systemd under a real systemd, in namespaces of their own, and watch what it makes of them.

    scripts/systemd_check.py WHEEL

installs the wheel with Debian's python3 into /opt/iop of a mount namespace, starts systemd as process 1 of namespaces
(network, processes, mounts, control groups), and drives it: start, a request, reload, a loop that hangs, a stop during
an answer, a configuration that is refused. Nothing outside is touched and nothing stays. It takes root, `unshare` and
systemd; where one of them is missing it says so and checks nothing. About 25 s, most of them for the installation.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SYSTEMD = "/lib/systemd/systemd"
PYTHON = "/usr/bin/python3"
GROUPS = Path("/sys/fs/cgroup")
# Times for a busy machine; on a quiet one the whole takes a sixth of the last.
LIMIT_S = 60.0
RUN_LIMIT_S = 240.0

EDGE = """\
openai: {limits: {drain_ms: 20000}}
models:
  - {id: echo, providers: {n1-echo: echo}}
nodes:
  - id: n1
    token_hash_sha256: HASH
    providers: [{id: n1-echo, type: native, profile: echo, models: [echo], capacity: 4}]
"""
NODE = """\
id: n1
edge: {address: "127.0.0.1:8081"}
token_file: /run/credentials/iop-node.service/node.token
native_models: [{id: echo, adapter: echo, options: {chunk_ms: 20}}]
"""
# Shorter times than the units', so that a hang and a slow drain are seen within seconds.
DROP_IN = """\
[Service]
StandardOutput=append:/run/out/%N.log
StandardError=inherit
WatchdogSec=4s
TimeoutStopSec=1s
"""
# A system with nothing in it: only targets that the units name.
TARGETS = ("sysinit", "basic", "shutdown", "network-online")
DRIVER = """\
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/opt/iop/bin/python /run/systemd_check.py --drive
StandardOutput=append:/run/out/driver.log
StandardError=inherit
"""


# Outside: prepares a folder and goes into the namespaces.


def main() -> None:
    """Check, or say why nothing can be checked here."""
    if sys.argv[1] == "--inside":
        inside(Path(sys.argv[2]))
    elif sys.argv[1] == "--drive":
        drive()
    else:
        check(Path(sys.argv[1]).resolve())


def check(wheel: Path) -> None:
    """Run everything and print what the driver saw; leave with its verdict."""
    if not is_possible(wheel):
        print(
            f"systemd check: not possible here: it takes root, unshare, {SYSTEMD}, and {PYTHON} of the wheel's version"
        )
        return
    group = group_root() / f"iop-check-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="iop-systemd-") as name:
        folder = Path(name)
        (folder / "opt").mkdir()
        (folder / "out").mkdir()
        install(folder, wheel)
        group.mkdir()
        try:
            run_inside(folder, group)
        finally:
            remove(group)
        verdict = folder / "out" / "verdict"
        for log in sorted((folder / "out").glob("*.log")):
            if not verdict.exists() or verdict.read_text() != "passed" or log.name == "driver.log":
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}", end="")
        if not verdict.exists() or verdict.read_text() != "passed":
            raise SystemExit(f"systemd check: {'failed' if verdict.exists() else 'not done in time'}")


def is_possible(wheel: Path) -> bool:
    """True where this process may make namespaces and what is needed in them is here."""
    if os.geteuid() != 0 or not os.access(SYSTEMD, os.X_OK) or not os.access(PYTHON, os.X_OK):
        return False
    tag = "import ensurepip, sys; print(f'cp{sys.version_info[0]}{sys.version_info[1]}')"
    said = subprocess.run([PYTHON, "-c", tag], capture_output=True, text=True, check=False).stdout.strip()
    if not said or f"-{said}-" not in wheel.name:
        return False
    command = ["unshare", "--mount", "--pid", "--fork", "--cgroup", "--uts", "--ipc", "--net", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, check=False).returncode == 0


def install(folder: Path, wheel: Path) -> None:
    """Install the wheel in what is /opt/iop inside: programs of a virtual environment know its path."""
    steps = [
        f"mount --bind {folder}/opt /opt",
        f"{PYTHON} -m venv /opt/iop",
        f"/opt/iop/bin/pip install -qq --disable-pip-version-check {wheel}",
    ]
    subprocess.run(["unshare", "--mount", "--propagation", "private", "bash", "-ec", "\n".join(steps)], check=True)


def group_root() -> Path:
    """Where the unified hierarchy of control groups is mounted."""
    unified = GROUPS / "unified"
    return unified if unified.is_dir() else GROUPS


def run_inside(folder: Path, group: Path) -> None:
    """Start the namespaces' first process in a control group of its own, and end it when the driver is done."""
    enter = f"echo $$ > {group}/cgroup.procs && exec unshare --cgroup --mount --pid --fork --uts --ipc --net"
    command = f"{enter} --kill-child --propagation private {PYTHON} {Path(__file__).resolve()} --inside {folder}"
    with (folder / "out" / "systemd.log").open("wb") as log:
        process = subprocess.Popen(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    deadline = time.monotonic() + RUN_LIMIT_S
    try:
        while not (folder / "out" / "verdict").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        process.kill()  # and with it, by --kill-child, process 1 of the namespace and all that it started
        process.wait()


def remove(group: Path) -> None:
    """Remove a control group and those in it, once their last process is gone."""
    deadline = time.monotonic() + LIMIT_S
    while (group / "cgroup.procs").exists() and time.monotonic() < deadline:
        for path, _, _ in os.walk(group, topdown=False):
            try:
                os.rmdir(path)
            except OSError:
                time.sleep(0.05)  # a process of it is still being taken down


# Inside: mounts over what systemd would touch, then becomes it.


def inside(folder: Path) -> None:
    """Make a small system out of this one and become its process 1."""
    mount = ["mount", "-n"]

    def mounted(*words: str) -> None:
        subprocess.run([*mount, *words], check=True)

    def empty(path: str) -> None:
        mounted("-t", "tmpfs", "-o", "mode=755", "tmpfs", path)

    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    mounted("-t", "proc", "proc", "/proc")
    mounted("--bind", "/proc/sys", "/proc/sys")
    mounted("-o", "remount,ro,bind", "/proc/sys")
    subprocess.run(["umount", "--recursive", "--lazy", str(GROUPS)], check=True)
    mounted("-t", "cgroup2", "cgroup2", str(GROUPS))
    mounted("--bind", str(folder / "opt"), "/opt")
    empty("/run")
    Path("/run/out").mkdir()
    mounted("--bind", str(folder / "out"), "/run/out")
    shutil.copy2(__file__, "/run/systemd_check.py")
    for path in ("/usr/lib/systemd/system", "/usr/lib/systemd/system-generators", "/var/log"):
        empty(path)
    Path("/run/etc").mkdir()
    for part in ("upper", "work"):
        Path("/run/etc", part).mkdir()
    mounted("-t", "overlay", "overlay", "-o", "lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work", "/etc")
    write_system()
    mounted("--make-rshared", "/")
    environ = {"container": "iop-check", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    options = ["--system", "--unit=check.target", "--log-target=console", "--show-status=0"]
    os.execve(SYSTEMD, [SYSTEMD, *options], environ)


def write_system() -> None:
    """Write configuration and units."""
    own = Path("/etc/systemd/system")
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    for name in TARGETS:
        Path(f"/usr/lib/systemd/system/{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    check = "[Unit]\nDefaultDependencies=no\nWants=iop-edge.service iop-node.service driver.service\n"
    (own / "check.target").write_text(check)
    (own / "driver.service").write_text(DRIVER)
    for kind in ("edge", "node"):
        shutil.copy2(ROOT / "deploy" / "systemd" / f"iop-{kind}.service", own)
        (own / f"iop-{kind}.service.d").mkdir()
        (own / f"iop-{kind}.service.d" / "check.conf").write_text(DROP_IN)
    if systemd_version() < 253:
        shutil.copy2(ROOT / "deploy" / "systemd" / "before-253.conf", own / "iop-edge.service.d")
    folder = Path("/etc/iop")
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    (folder / "edge.yaml").write_text(EDGE.replace("HASH", hashlib.sha256(b"the-token").hexdigest()))
    (folder / "node.yaml").write_text(NODE)
    (folder / "node.token").write_text("the-token\n")
    (folder / "node.token").chmod(0o600)


def systemd_version() -> int:
    """Its major version."""
    said = subprocess.run([SYSTEMD, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"systemd (\d+)", said)
    assert found is not None, said
    return int(found[1])


# The driver: a service beside the two.


def drive() -> None:
    """Drive the two services, and write the verdict."""
    verdict = "failed"
    try:
        for step in (
            starts,
            is_confined,
            reloads,
            is_restarted_when_it_hangs,
            drains_longer_than_the_unit_says,
            refuses,
        ):
            step()
            print(f"ok: {step.__name__.replace('_', ' ')}", flush=True)
        verdict = "passed"
    finally:
        Path("/run/out/verdict.new").write_text(verdict)
        Path("/run/out/verdict.new").rename("/run/out/verdict")


def show(unit: str, name: str) -> str:
    """One property of a unit."""
    command = ["systemctl", "show", "--value", "-p", name, unit]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout.strip()


def until(look: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + LIMIT_S
    while not look():
        if time.monotonic() > deadline:
            states = {unit: show(unit, "StatusText") for unit in ("iop-edge", "iop-node")}
            raise SystemExit(f"not seen within {LIMIT_S} s: {what}; {states}")
        time.sleep(0.05)


def ask(text: str) -> str:
    """One chat request; the answer's text."""
    connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=LIMIT_S)
    body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": text}]})
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    answer = json.load(connection.getresponse())
    return str(answer["choices"][0]["message"]["content"])


def capacity() -> int:
    """The provider's capacity as the Edge runs it."""
    connection = http.client.HTTPConnection("127.0.0.1", 8082, timeout=LIMIT_S)
    connection.request("GET", "/status")
    return int(json.load(connection.getresponse())["providers"][0]["configured"]["capacity"])


def is_serving() -> bool:
    """True when the Node is a candidate, as the service manager is told."""
    return show("iop-edge", "StatusText").startswith("1 of 1 nodes ready")


def starts() -> None:
    """Both become active, the Node by its credential, and a request is answered."""
    until(is_serving, "the Node is ready")
    assert [show(f"iop-{kind}", "ActiveState") for kind in ("edge", "node")] == ["active", "active"]
    assert ask("hello") == "hello"


def is_confined() -> None:
    """No root, no capability, a filter of system calls, and nothing gained by execve."""
    for kind in ("edge", "node"):
        text = Path(f"/proc/{show(f'iop-{kind}', 'MainPID')}/status").read_text()
        found = dict(line.split(":\t", 1) for line in text.splitlines())
        assert found["Uid"].split("\t")[0] not in ("0", str(os.getuid())), found["Uid"]
        assert {found[name] for name in ("CapBnd", "CapEff", "CapPrm", "CapAmb")} == {"0" * 16}
        assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")


def reloads() -> None:
    """`systemctl reload` takes over the file."""
    file = Path("/etc/iop/edge.yaml")
    file.write_text(file.read_text().replace("capacity: 4", "capacity: 5"))
    subprocess.run(["systemctl", "reload", "iop-edge"], check=True, timeout=LIMIT_S)
    if systemd_version() >= 253:  # it returns when the refresh is done
        assert capacity() == 5
    until(lambda: capacity() == 5, "the new capacity")


def is_restarted_when_it_hangs() -> None:
    """A process that gives no sign of life is replaced."""
    before = int(show("iop-edge", "NRestarts"))
    os.kill(int(show("iop-edge", "MainPID")), signal.SIGSTOP)
    until(lambda: int(show("iop-edge", "NRestarts")) > before, "the restart")
    until(is_serving, "the Node is ready again")
    assert ask("hello") == "hello"


def drains_longer_than_the_unit_says() -> None:
    """An answer of some seconds ends whole although TimeoutStopSec is one: the program says how long it takes."""
    text, answers = "word " * 150, []
    asking = threading.Thread(target=lambda: answers.append(ask(text)))
    asking.start()
    until(lambda: " 1 running" in show("iop-edge", "StatusText"), "the answer has begun")
    begun = time.monotonic()
    subprocess.run(["systemctl", "stop", "iop-edge"], check=True, timeout=LIMIT_S)
    asking.join()
    assert [answer.strip() for answer in answers] == [text.strip()], answers
    assert time.monotonic() - begun > 1.0, "the answer was to take longer than TimeoutStopSec"
    assert show("iop-edge", "Result") == "success"
    assert show("iop-node", "ActiveState") == "active"


def refuses() -> None:
    """A configuration that is refused fails the start, once."""
    Path("/etc/iop/edge.yaml").write_text("models: 1\n")
    start = ["systemctl", "start", "iop-edge"]
    assert subprocess.run(start, check=False, capture_output=True, timeout=LIMIT_S).returncode != 0
    until(lambda: show("iop-edge", "ActiveState") == "failed", "the failure")
    assert (show("iop-edge", "ExecMainStatus"), show("iop-edge", "NRestarts")) == ("2", "0")


STEPS = (starts, is_confined, reloads, is_restarted_when_it_hangs, drains_longer_than_the_unit_says, refuses)

if __name__ == "__main__":
    main()

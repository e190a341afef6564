"""The rules between the keys of a Node's cli_profiles."""

from __future__ import annotations

import re

from iop_fast.config.schema.cli_profile import CLI_PLACEHOLDERS
from iop_fast.config.tree import ListNode, Remark
from iop_fast.config.view import Spot, text

PLACEHOLDER = re.compile("{(" + "|".join(CLI_PLACEHOLDERS) + ")}")
CONVERSATION = ("{prompt}", "{last_user}")
# What looks like a placeholder and is none.
STRANGE = re.compile("{(?!(?:" + "|".join(CLI_PLACEHOLDERS) + ")})[a-z_]+}")

# After a client has left, the Edge gives the slot back when the Node says that the program is gone, or after 5 s. A
# program may take its whole time between SIGTERM and SIGKILL, and then its group has to go.
KILL_AFTER_MS_MAX = 4_000
KILL_AFTER_MS = 1_000
OLD_RUNS_MS = 5_000


def check_cli_profiles(top: Spot) -> list[Remark]:
    """Run every rule about every profile."""
    remarks = []
    for profile in top.spots("cli_profiles"):
        remarks += _check_command(profile)
        remarks += _check_template(profile)
        remarks += _check_output(profile)
        remarks += _check_variables(profile)
        remarks += _check_directory(profile)
        remarks += _check_kill(top, profile)
    return remarks


def _check_command(profile: Spot) -> list[Remark]:
    command = profile.get("command")
    if not isinstance(command, ListNode) or not command.items:
        return []
    parts = [text(item) or "" for item in command.items]
    remarks = []
    if not parts[0]:
        remarks.append(profile.remark("command", "expected the name of a program first, got an empty text"))
    elif PLACEHOLDER.search(parts[0]):
        remarks.append(profile.remark("command", "the program is fixed, expected no placeholder in its name"))
    elif "/" in parts[0] and not parts[0].startswith("/"):
        remarks.append(profile.remark("command", f"expected a name on PATH or an absolute path, got {parts[0]!r}"))
    remarks += _strange(profile, "command", parts)
    if profile.text("input") not in ("argument", "stdin", None):
        return remarks
    places = [place for place in CONVERSATION if any(place in part for part in parts)]
    by_argument = profile.text("input") == "argument"
    if by_argument and not places:
        remarks.append(profile.remark("command", "input is argument, expected {prompt} in one of the arguments"))
    if places and not by_argument:
        remarks.append(profile.remark("command", f"{places[0]} stands in the arguments, expected input: argument"))
    return remarks


def _check_directory(profile: Spot) -> list[Remark]:
    directory = profile.text("working_directory")
    if not directory or directory.startswith("/"):
        return []
    return [profile.remark("working_directory", f"expected an absolute path, got {directory!r}")]


def _check_template(profile: Spot) -> list[Remark]:
    template = profile.text("template")
    if template is None:
        return []
    remarks = _strange(profile, "template", [template])
    if not any(place in template for place in CONVERSATION):
        remarks.append(profile.remark("template", "expected {prompt} or {last_user} in it"))
    return remarks


def _strange(profile: Spot, key: str, parts: list[str]) -> list[Remark]:
    """Warn of what looks like a placeholder: it stays as it is."""
    known = ", ".join(f"{{{name}}}" for name in CLI_PLACEHOLDERS)
    return [
        profile.remark(key, f"{found[0]} is no placeholder and stays as it is, expected one of {known}", "warning")
        for part in parts
        for found in STRANGE.finditer(part)
    ]


def _check_output(profile: Spot) -> list[Remark]:
    is_lines = profile.text("output") == "json_lines"
    if is_lines and not profile.has("fields"):
        return [profile.remark("output", "output is json_lines, expected fields: what is read from the lines")]
    if profile.has("fields") and profile.text("output") in (None, "text"):
        return [profile.remark("fields", "has no meaning for output: text", at_key=True)]
    return []


def _check_variables(profile: Spot) -> list[Remark]:
    """Refuse a variable that is both set and passed on."""
    given = profile.section("environment")
    passed = profile.get("pass_environment")
    if given is None or not isinstance(passed, ListNode):
        return []
    return [
        profile.remark("pass_environment", f"{name} is set by environment already")
        for item in passed.items
        if (name := text(item)) is not None and given.has(name)
    ]


def _check_kill(top: Spot, profile: Spot) -> list[Remark]:
    kill_after_ms = profile.whole("kill_after_ms") if profile.has("kill_after_ms") else KILL_AFTER_MS
    limits = top.section("limits")
    old_runs_ms = limits.whole("old_runs_ms") if limits is not None and limits.has("old_runs_ms") else OLD_RUNS_MS
    if kill_after_ms is None or old_runs_ms is None:
        return []
    if kill_after_ms > KILL_AFTER_MS_MAX:
        message = "the Edge gives the slot of a client that left away after 5 s, when the program may still run"
        return [profile.remark("kill_after_ms", message, "warning")]
    if profile.has("kill_after_ms") and kill_after_ms >= old_runs_ms:
        message = f"kill_after_ms {kill_after_ms} is not below limits.old_runs_ms {old_runs_ms}"
        return [profile.remark("kill_after_ms", message, "warning")]
    return []

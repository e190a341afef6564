"""The `iop` command. Subcommands import what they run only when they run, so that `--help` answers at once."""

from __future__ import annotations

import importlib
import os
import sys

import click

import iop_fast

# One row per subcommand: name -> (module, attribute, help line). The help line stands here so that `iop --help` imports
# no subcommand.
COMMANDS = {
    "edge": ("iop_fast.cli.run", "edge", "Run an Edge from its configuration file."),
    "node": ("iop_fast.cli.run", "node", "Run a Node from its configuration file."),
    "up": ("iop_fast.cli.up", "up", "Run Edge and Node together on this machine, to try it out."),
    "check": ("iop_fast.cli.check", "check", "Check configuration files and print every finding."),
    "config": ("iop_fast.cli.config", "config", "Show what a configuration file comes to."),
    "schema": ("iop_fast.cli.schema", "schema", "Print the JSON Schema of a configuration file."),
    "refresh": (
        "iop_fast.cli.refresh",
        "refresh",
        "Apply the Edge's file to the running Edge, or show what that would do.",
    ),
    "queue": ("iop_fast.cli.queue", "queue", "Show who waits, in order, and why."),
    "runs": ("iop_fast.cli.runs", "runs", "Show what runs where, the oldest first."),
    "explain": ("iop_fast.cli.explain", "explain", "Say what would become of a request for MODEL now."),
    "top": ("iop_fast.cli.top", "top", "Watch providers, queue and rates."),
    "logs": ("iop_fast.cli.log_levels", "logs", "Show and change what a running Edge logs."),
    "status": ("iop_fast.cli.status", "status", "Show what runs where and what waits."),
    "probe": ("iop_fast.cli.probe", "probe", "Ask a running Edge or Node whether it is ready."),
    "completion": (
        "iop_fast.cli.completion",
        "completion",
        "Print what makes SHELL complete the commands and options of iop.",
    ),
    "token": ("iop_fast.cli.token", "token", "Make a token and the hash that the configuration takes."),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one subcommand; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row[2]) for name, row in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(iop_fast.__version__, prog_name="iop")
def main() -> None:
    """One OpenAI-compatible endpoint in front of a mixed fleet of model servers."""
    open_standard_streams()


def open_standard_streams() -> None:
    """Open the null device in the place of standard streams that are closed, before a client's connection gets such a
    number and what is written to the stream."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)

"""What the commands that ask a running Edge share: how they find it, and what they do when it does not answer.

Exit codes of all commands (docs/cli.md has the table): 0 done; 1 something was found or went wrong; 2 the command line
or a file is refused; 3 and 4 are `iop refresh`'s; 5 no Edge answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlencode

import click

from iop_fast.cli.admin_client import DEFAULT_ADMIN, AdminError, BadAddress, Unreachable, get_json
from iop_fast.cli.tables import plain
from iop_fast.errors import ConfigError

EXIT_FOUND, EXIT_REFUSED, EXIT_UNREACHABLE = 1, 2, 5

# A field that the answer of each page has, by which another server's answer is told from an Edge's.
FIELDS = {"/status": "providers", "/queue": "waiters", "/runs": "runs", "/explain": "decision", "/logs": "loggers"}

P = ParamSpec("P")
T = TypeVar("T")


class CannotReach(click.ClickException):
    """No Edge answers."""

    exit_code = EXIT_UNREACHABLE


class Refused(click.ClickException):
    """The address cannot be one."""

    exit_code = EXIT_REFUSED


def admin_options(command: Callable[P, T]) -> Callable[P, T]:
    """Add --admin, -c and --json: the parameters `admin`, `config` and `as_json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON, for machines."),
        click.option("-c", "--config", type=click.Path(path_type=Path), help="Take the address from this Edge file."),
        click.option(
            "--admin", envvar="IOP_ADMIN", help="The admin listener: host:port or unix:/path  [env: IOP_ADMIN]."
        ),
    ):
        command = option(command)
    return command


def admin_of(config: Path | None) -> str:
    """The admin address that a file names, or the default one."""
    if config is None:
        return DEFAULT_ADMIN
    from iop_fast.config.loader import load_edge

    try:
        return str(load_edge(config).config.admin.listen)
    except ConfigError as error:
        click.echo(str(error), err=True)
        raise SystemExit(EXIT_REFUSED) from None


def ask(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of `admin_client`; end the command with a plain line where it fails."""
    try:
        return call(*args, **kwargs)
    except Unreachable as error:
        raise CannotReach(plain(str(error))) from None
    except BadAddress as error:
        raise Refused(plain(str(error))) from None
    except AdminError as error:
        raise click.ClickException(plain(str(error))) from None


def fetch(admin: str | None, config: Path | None, path: str, **query: object) -> Any:
    """Get a page of the admin listener, one of FIELDS; what is None in `query` is left out."""
    given = {name: value for name, value in query.items() if value is not None}
    address = admin or admin_of(config)
    answer = ask(get_json, address, f"{path}?{urlencode(given, errors='surrogateescape')}" if given else path)
    if not isinstance(answer, dict) or FIELDS[path] not in answer:
        raise CannotReach(f"what answers at {address} is no admin listener; name its address by --admin")
    return answer


def print_json(answer: object) -> None:
    """Print an answer for machines."""
    click.echo(json.dumps(answer, indent=2))

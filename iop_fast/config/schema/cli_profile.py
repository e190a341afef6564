"""Commands that a Node may run for providers of the type cli: part of the Node's own file."""

from __future__ import annotations

from typing import Literal

from iop_fast.config.schema.fields import (
    DAY_MS,
    MIB,
    Argument,
    Entries,
    EnvName,
    Id,
    JsonPath,
    Section,
    Template,
    Text,
    setting,
)

# What stands for a text in a profile's command and template: `{prompt}` and so on.
CLI_PLACEHOLDERS = ("prompt", "system", "last_user", "model")


class CliField(Section):
    """Where a value stands in the JSON lines of a program."""

    path: JsonPath = setting("Names and list indexes on the way to the value, as delta.text.", apply="restart")
    where: dict[JsonPath, str] = setting(
        "Only lines count that have these values at these paths. A text is compared as it is, anything else as JSON "
        'writes it: "true", "3".',
        apply="restart",
        factory=dict,
    )


class CliFields(Section):
    """What is read from the JSON lines of a program. Lines without a value are passed over."""

    text: CliField = setting("The next characters of the answer.", apply="restart")
    reasoning: CliField | None = setting("The next characters of the model's reasoning.", apply="restart", default=None)
    finish_reason: CliField | None = setting(
        "Why the answer ended. length and content_filter are passed on, max_tokens is length, all else is stop.",
        apply="restart",
        default=None,
    )
    error: CliField | None = setting(
        "A text that says that the run failed, whatever the exit code.", apply="restart", default=None
    )
    prompt_tokens: CliField | None = setting("Tokens of the prompt.", apply="restart", unit="tokens", default=None)
    completion_tokens: CliField | None = setting("Tokens of the answer.", apply="restart", unit="tokens", default=None)
    cached_tokens: CliField | None = setting(
        "Tokens of the prompt that were not computed anew.", apply="restart", unit="tokens", default=None
    )


class CliProfile(Section):
    """A command that providers of the type cli may run, one process a request."""

    id: Id = setting("Name that the Edge's file refers to by `profile`, unique.", apply="restart")
    command: Entries[Argument] = setting(
        "Program and arguments, run without a shell. The program is a name looked up on PATH or an absolute path. In "
        "arguments {model} stands for the served model, {system} for the system message, {prompt} for the "
        "conversation, {last_user} for the user's last message.",
        apply="restart",
        min_length=1,
    )
    input: Literal["stdin", "argument"] = setting(
        "How the conversation reaches the program: on its standard input, or by {prompt} or {last_user} in command.",
        apply="restart",
        default="stdin",
    )
    template: Template | None = setting(
        "Text that takes the place of the conversation; {prompt}, {system}, {last_user} and {model} stand for what "
        "they do in command. Left out: a single message as it is, several as a transcript.",
        apply="restart",
        default=None,
    )
    output: Literal["text", "json_lines"] = setting(
        "What the program prints: the answer itself (UTF-8; line ends at its end are dropped), or one JSON object a "
        "line, of which `fields` says what is read.",
        apply="restart",
        default="text",
    )
    fields: CliFields | None = setting(
        "Where the values stand in JSON lines; needed for output: json_lines.", apply="restart", default=None
    )
    working_directory: Text | None = setting(
        "Directory the program runs in, an absolute path; left out, an empty temporary one for each run.",
        apply="restart",
        default=None,
    )
    environment: dict[EnvName, Argument] = setting(
        "Variables set for the program. No secrets: name those in pass_environment.", apply="restart", factory=dict
    )
    pass_environment: Entries[EnvName] = setting(
        "Variables of the Node that the program gets too. Without being named it gets PATH, HOME, LANG, TMPDIR and "
        "IOP_RUN, and nothing else.",
        apply="restart",
        default=(),
    )
    run_ms_max: int = setting(
        "Time of a run.",
        apply="restart",
        unit="ms",
        default=600_000,
        ge=1,
        le=DAY_MS,
        at_limit="the program is stopped and the request ends with upstream_timeout",
    )
    output_bytes_max: int = setting(
        "Size of what a program prints on standard output.",
        apply="restart",
        unit="bytes",
        default=16 * MIB,
        ge=1_024,
        le=1_024 * MIB,
        at_limit="the program is stopped and the answer ends there with finish_reason length",
    )
    line_bytes_max: int = setting(
        "Size of one JSON line.",
        apply="restart",
        unit="bytes",
        default=MIB,
        ge=1_024,
        le=64 * MIB,
        at_limit="the program is stopped and the request ends with upstream_error",
    )
    stderr_bytes_max: int = setting(
        "How much of the end of standard error is kept; its last lines stand in the error of a run that failed. 0: "
        "nothing of it is shown.",
        apply="restart",
        unit="bytes",
        default=8_192,
        ge=0,
        le=MIB,
    )
    memory_bytes_max: int | None = setting(
        "Address space of each process (RLIMIT_AS); left out, no limit of ours. Not on macOS.",
        apply="restart",
        unit="bytes",
        default=None,
        ge=16 * MIB,
        le=2**60,
    )
    cpu_seconds_max: int | None = setting(
        "Processor time of each process (RLIMIT_CPU); left out, no limit of ours.",
        apply="restart",
        unit="s",
        default=None,
        ge=1,
        le=86_400,
        at_limit="the kernel kills the process",
    )
    open_files_max: int = setting(
        "Open files of each process (RLIMIT_NOFILE).", apply="restart", default=1_024, ge=16, le=1_048_576
    )
    processes_max: int | None = setting(
        "Processes and threads of the user that the Node runs as, all together (RLIMIT_NPROC); left out, no limit of "
        "ours.",
        apply="restart",
        default=None,
        ge=1,
        le=4_194_304,
    )
    file_bytes_max: int | None = setting(
        "Size of each file that is written (RLIMIT_FSIZE); left out, no limit of ours.",
        apply="restart",
        unit="bytes",
        default=None,
        ge=0,
        le=2**60,
        at_limit="the kernel kills the process",
    )
    kill_after_ms: int = setting(
        "Time between the request to stop (SIGTERM) and SIGKILL, both to the whole process group.",
        apply="restart",
        unit="ms",
        default=1_000,
        ge=0,
        le=600_000,
    )

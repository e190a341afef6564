"""From a task in the terms of the OpenAI API to a request of Ollama's native one: pure translation.

Field names and types are those of docs.ollama.com/api (chat, generate, embed) and of `api/types.go`; where Ollama's own
OpenAI layer (`openai/openai.go` there) had to decide, the same is decided here: history arguments become objects,
reasoning_effort becomes `think`, response_format becomes `format`, a completion's prompt goes through the model's
template. Three things differ. Parts of a message stay one message. Sampling parameters that a request does not give are
left to the model's own defaults. And what would change the form of the answer and cannot be done (several choices, log
probabilities, an echo) is refused instead of ignored.

A stream is asked for always: so the time to the first byte is that of loading and reading the prompt alone, and a
cancelled request stops the model.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from iop_fast.node.adapters.ollama_errors import TaskError
from iop_fast.seams import RunTask, TaskMessage
from iop_fast.wire import runtime_pb2 as pb

# Parameters of the OpenAI API, and those that local servers add to it, with Ollama's name and type. Of two that mean
# the same the later counts.
OPTIONS: Mapping[str, tuple[str, type]] = {
    "temperature": ("temperature", float),
    "top_p": ("top_p", float),
    "top_k": ("top_k", int),
    "min_p": ("min_p", float),
    "typical_p": ("typical_p", float),
    "seed": ("seed", int),
    "presence_penalty": ("presence_penalty", float),
    "frequency_penalty": ("frequency_penalty", float),
    "repetition_penalty": ("repeat_penalty", float),
    "repeat_penalty": ("repeat_penalty", float),
    "repeat_last_n": ("repeat_last_n", int),
    "max_tokens": ("num_predict", int),
    "max_completion_tokens": ("num_predict", int),
}
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# reasoning_effort -> think. Ollama knows low, medium, high and max; the others are the nearest to these.
EFFORTS: Mapping[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "max": "max",
    "xhigh": "max",
}
INT64 = range(-(2**63), 2**63)
# Of an image, encoded in one go: a multiple of 3, so that the pieces' base64 is the image's.
IMAGE_PIECE_BYTES = 96 * 1024
# Stands in the JSON for an image. A raw NUL is in no JSON text.
MARK = b"\0"


class Defaults(NamedTuple):
    """What the configuration says of a provider: `options` go into Ollama's options, `fields` beside them."""

    options: Mapping[str, Any]
    fields: Mapping[str, Any]


class Call(NamedTuple):
    """A request of Ollama's API: JSON, with `images` between its `texts`.

    Images are encoded as they leave, since megabytes of them in one go would hold up everybody else's answers.
    """

    path: bytes
    texts: Sequence[bytes]
    images: Sequence[bytes]

    @property
    def body_bytes(self) -> int:
        """Length of the body."""
        return sum(map(len, self.texts)) + sum(2 + (len(image) + 2) // 3 * 4 for image in self.images)

    def pieces(self) -> Iterator[bytes]:
        """Yield the body. A piece with a part of an image is at most IMAGE_PIECE_BYTES and a little."""
        yield self.texts[0]
        for image, text in zip(self.images, self.texts[1:], strict=True):
            yield b'"'
            view = memoryview(image)
            for start in range(0, len(image), IMAGE_PIECE_BYTES):
                yield b64encode(view[start : start + IMAGE_PIECE_BYTES])
            yield b'"' + text


def call_for(task: RunTask, defaults: Defaults) -> Call:
    """Return the request for a task; raise TaskError for one that Ollama cannot be given."""
    parameters = {name: value for name, value in task.parameters.items() if value is not None}
    kind = task.kind
    images: list[bytes] = []
    if kind == pb.RunRequest.CHAT:
        path, fields = b"/api/chat", chat_fields(task.messages, parameters, images)
    elif kind == pb.RunRequest.COMPLETION:
        path, fields = b"/api/generate", generate_fields(task.inputs, parameters)
    else:
        path, fields = b"/api/embed", embed_fields(task.inputs, parameters)
    known = defaults.fields if kind != pb.RunRequest.EMBEDDING else without_think(defaults.fields)
    options = {**defaults.options, **options_of(parameters)}
    whole: dict[str, Any] = {"model": task.model, **known, **fields}
    if options:
        whole["options"] = options
    try:
        return Call(path, orjson.dumps(whole).split(MARK) if images else [orjson.dumps(whole)], images)
    except TypeError as error:  # nested too deep, or a number beyond 64 bits
        raise TaskError(f"the request cannot be written for Ollama: {error}") from None


def without_think(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return fields without what /api/embed does not know."""
    return {name: value for name, value in fields.items() if name not in ("think", "shift")}


# Chats.


def chat_fields(messages: Sequence[TaskMessage], parameters: Mapping[str, Any], images: list[bytes]) -> dict[str, Any]:
    """Return the fields of a chat; its images are added to `images` in the order in which they are marked."""
    refuse_other_forms(parameters)
    names = names_of_calls(messages)
    fields: dict[str, Any] = {
        "messages": [message_of(message, f"messages[{at}]", names, images) for at, message in enumerate(messages)],
        "stream": True,
    }
    if tools := tools_of(parameters):
        fields["tools"] = tools
    if (form := format_of(parameters)) is not None:
        fields["format"] = form
    if (think := think_of(parameters)) is not None:
        fields["think"] = think
    return fields


def message_of(message: TaskMessage, place: str, names: Mapping[str, str], images: list[bytes]) -> dict[str, Any]:
    """Return a message. Texts are joined by line ends, images stand beside them as bare base64 (here: marks)."""
    role = ROLES.get(message.role)
    if role is None:
        raise TaskError(f"{place}.role: expected one of {', '.join(ROLES)}, got {message.role!r}")
    texts: list[str] = []
    marks: list[orjson.Fragment] = []
    for part in message.parts:
        if part.kind == "text":
            texts.append(part.text)
        elif part.kind == "image":
            images.append(part.data)
            marks.append(orjson.Fragment(MARK))
        else:
            raise TaskError(f"{place}.content: expected text and images, Ollama takes no {part.kind}")
    made: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
    if marks:
        made["images"] = marks
    if message.tool_calls:
        made["tool_calls"] = [
            tool_call_of(call, f"{place}.tool_calls[{at}]") for at, call in enumerate(message.tool_calls)
        ]
    if role == "tool":
        if name := message.name or names.get(message.tool_call_id, ""):
            made["tool_name"] = name
        if message.tool_call_id:
            made["tool_call_id"] = message.tool_call_id
    return made


def names_of_calls(messages: Sequence[TaskMessage]) -> dict[str, str]:
    """Return the functions of the history's tool calls by call id; of two with one id the last counts."""
    names: dict[str, str] = {}
    for message in messages:
        for call in message.tool_calls:
            function = call.get("function")
            if isinstance(function, Mapping):
                names[str(call.get("id", ""))] = str(function.get("name", ""))
    return names


def tool_call_of(call: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return a tool call of the history, its arguments as an object."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TaskError(f"{place}: expected a function with a name")
    made = {"name": function["name"], "arguments": arguments_of(function.get("arguments"), place)}
    call_id = call.get("id")
    return {"id": call_id, "function": made} if isinstance(call_id, str) and call_id else {"function": made}


def arguments_of(value: Any, place: str) -> Any:
    """Return a call's arguments as an object; its JSON text is passed on as it stands.

    Nothing, "" and "null" are no arguments. Some clients encode twice; what they mean is clear.
    """
    if isinstance(value, Mapping):
        return value
    text = "" if value is None else value
    for _ in range(2):
        if not isinstance(text, str):
            break
        if not text.strip():
            return {}
        try:
            parsed = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise TaskError(f"{place}.function.arguments: expected a JSON object, {error}") from None
        if isinstance(parsed, dict):
            return orjson.Fragment(text.encode())
        if parsed is None:
            return {}
        text = parsed
    raise TaskError(f"{place}.function.arguments: expected a JSON object, got {type(text).__name__}")


def tools_of(parameters: Mapping[str, Any]) -> list[Any]:
    """Return the tools to offer.

    Ollama cannot be made to call one: with a named tool, or a list of allowed ones, it is offered no other.
    """
    tools = parameters.get("tools", [])
    if not isinstance(tools, list):
        raise TaskError(f"tools: expected a list, got {type(tools).__name__}")
    for at, tool in enumerate(tools):
        if not name_of(tool):
            raise TaskError(f"tools[{at}]: expected a function with a name, Ollama takes no other tools")
    choice = parameters.get("tool_choice", "auto")
    if choice == "none":
        return []
    if choice in ("auto", "required", "any"):
        return tools
    wanted = names_in_choice(choice)
    offered = [tool for tool in tools if name_of(tool) in wanted]
    if len({name_of(tool) for tool in offered}) < len(wanted):
        raise TaskError("tool_choice: names a function that is not among the tools")
    return offered


def names_in_choice(choice: Any) -> set[str]:
    """Return the functions that a tool_choice object names."""
    if isinstance(choice, dict):
        kind = choice.get("type")
        allowed = choice.get("allowed_tools")
        if kind == "function" and (name := name_of(choice)):
            return {name}
        if kind == "allowed_tools" and isinstance(allowed, dict) and isinstance(allowed.get("tools"), list):
            return {name_of(tool) for tool in allowed["tools"]}
    raise TaskError("tool_choice: expected none, auto, required or a function")


def name_of(tool: Any) -> str:
    """Return the name of a tool's function, "" where there is none."""
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def format_of(parameters: Mapping[str, Any]) -> Any:
    """Return the answer's format: "json", a schema, or None for text."""
    form = parameters.get("response_format")
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return "json"
    if kind != "json_schema":
        raise TaskError("response_format: expected type text, json_object or json_schema")
    holder = form.get("json_schema")
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if not isinstance(schema, dict):
        raise TaskError("response_format.json_schema.schema: expected a JSON schema")
    return schema


def think_of(parameters: Mapping[str, Any]) -> bool | str | None:
    """Return whether and how hard to think, None where nothing is said.

    Besides OpenAI's `reasoning_effort` (and `reasoning.effort`) these are Ollama's own `think` and the
    `chat_template_kwargs` of vLLM, so that one request means the same on every provider of a model.
    """
    think = parameters.get("think")
    if isinstance(think, bool):
        return think
    reasoning = parameters.get("reasoning")
    effort = think or parameters.get("reasoning_effort")
    if effort is None and isinstance(reasoning, dict):
        effort = reasoning.get("effort")
    if effort:
        value = EFFORTS.get(effort) if isinstance(effort, str) else None
        if value is None:
            raise TaskError(f"reasoning_effort: expected one of {', '.join(EFFORTS)}")
        return value
    template = parameters.get("chat_template_kwargs")
    enabled = template.get("enable_thinking") if isinstance(template, dict) else None
    return enabled if isinstance(enabled, bool) else None


# Completions and embeddings.


def generate_fields(prompts: Sequence[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a completion."""
    refuse_other_forms(parameters)
    if len(prompts) != 1:
        raise TaskError(f"prompt: expected one text, Ollama takes no list of them, got {len(prompts)}")
    fields: dict[str, Any] = {"prompt": prompts[0], "stream": True}
    if (suffix := parameters.get("suffix")) is not None:
        if not isinstance(suffix, str):
            raise TaskError("suffix: expected a text")
        fields["suffix"] = suffix
    if parameters.get("raw") is True:  # Ollama's own parameter: the prompt without the model's template
        fields["raw"] = True
    if (form := format_of(parameters)) is not None:
        fields["format"] = form
    if (think := think_of(parameters)) is not None:
        fields["think"] = think
    return fields


def embed_fields(texts: Sequence[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an embedding."""
    fields: dict[str, Any] = {"input": list(texts)}
    if (dimensions := parameters.get("dimensions")) is not None:
        fields["dimensions"] = whole_number(dimensions, "dimensions", 1)
    if isinstance(truncate := parameters.get("truncate"), bool):  # Ollama's own parameter
        fields["truncate"] = truncate
    return fields


# Parameters.


def refuse_other_forms(parameters: Mapping[str, Any]) -> None:
    """Raise TaskError for what asks for an answer of another form than Ollama gives."""
    for name in ("n", "best_of"):
        if name in parameters and whole_number(parameters[name], name, 1) != 1:
            raise TaskError(f"{name}: expected 1, Ollama gives one choice a request, got {parameters[name]}")
    for name in ("logprobs", "echo"):
        if parameters.get(name) not in (None, False, 0):
            raise TaskError(f"{name}: not available for models on Ollama")


def options_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return Ollama's options for the parameters of a request."""
    options: dict[str, Any] = {}
    for name, (key, kind) in OPTIONS.items():
        if name in parameters:
            value = parameters[name]
            least = 1 if key == "num_predict" else INT64.start
            options[key] = whole_number(value, name, least) if kind is int else number(value, name)
    if stop := stops_of(parameters.get("stop")):
        options["stop"] = stop
    return options


def stops_of(stop: Any) -> list[str]:
    """Return the texts at which the answer stops."""
    stops = [stop] if isinstance(stop, str) else stop
    if stops is None:
        return []
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise TaskError("stop: expected a text or a list of texts")
    return [text for text in stops if text]


def number(value: Any, name: str) -> float | int:
    """Return a number; raise TaskError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TaskError(f"{name}: expected a number, got {type(value).__name__}")
    return value


def whole_number(value: Any, name: str, least: int) -> int:
    """Return a whole number of at least `least`; raise TaskError for anything else."""
    given = number(value, name)
    if given != given or given in (float("inf"), float("-inf")) or int(given) != given:
        raise TaskError(f"{name}: expected a whole number, got {given}")
    if int(given) < least or int(given) not in INT64:
        raise TaskError(f"{name}: expected {'at least ' + str(least) if given < least else 'less'}, got {given}")
    return int(given)

"""The `models` and `nodes` sections: what clients may ask for and what serves it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from iop_fast.config.schema.fields import DAY_MS, Endpoint, Entries, EnvName, Id, Section, Sha256, Text, setting

OPENAI_COMPAT = "openai_compat"
# What may stand as a provider's type, and the adapter that it means.
ADAPTER_OF_TYPE = {
    "openai_compat": OPENAI_COMPAT,
    "vllm": OPENAI_COMPAT,
    "llama_cpp": OPENAI_COMPAT,
    "lmstudio": OPENAI_COMPAT,
    "lemonade": OPENAI_COMPAT,
    "seulgivibe_claude": OPENAI_COMPAT,
    "seulgivibe_openai": OPENAI_COMPAT,
    "ollama": "ollama",
    "cli": "cli",
    "native": "native",
}
# Types that become the provider's label where none is given.
LABELLING_TYPES = frozenset({"seulgivibe_claude", "seulgivibe_openai"})

AdapterType = Literal[
    "openai_compat",
    "vllm",
    "llama_cpp",
    "lmstudio",
    "lemonade",
    "seulgivibe_claude",
    "seulgivibe_openai",
    "ollama",
    "cli",
    "native",
]
# What a request may need of a provider: the APIs, and what may be in it. Those that a provider without tunnels may have
# stand first.
Ability = Literal[
    "chat",
    "completions",
    "embeddings",
    "tools",
    "images",
    "audio",
    "json_schema",
    "responses",
    "messages",
    "rerank",
    "speech",
    "image_generation",
    "transcriptions",
]
NORMALIZED_ABILITIES = ("chat", "completions", "embeddings", "tools", "images", "audio", "json_schema")
# What the file may say of a provider whose adapter takes no tunnel. Adapters of native models may come from packages.
ABILITIES_OF_ADAPTER = {
    "ollama": ("chat", "completions", "embeddings", "tools", "images", "json_schema"),
    "cli": ("chat", "completions"),
    "native": NORMALIZED_ABILITIES,
}
TOKENS_MAX = 1_000_000_000
Window = Annotated[int, Field(ge=1, le=TOKENS_MAX)]
Capacity = Annotated[int, Field(ge=0, le=1_000_000)]


class GenerationDefaults(Section):
    """Parameters put into a request that does not give them."""

    temperature: float | None = setting("Sampling temperature.", apply="live", default=None, ge=0, le=10)
    top_p: float | None = setting("Nucleus sampling.", apply="live", default=None, ge=0, le=1)
    top_k: int | None = setting("Candidates kept for sampling.", apply="live", default=None, ge=-1, le=1_000_000)
    min_p: float | None = setting("Lowest relative probability.", apply="live", default=None, ge=0, le=1)
    presence_penalty: float | None = setting("Presence penalty.", apply="live", default=None, ge=-2, le=2)
    frequency_penalty: float | None = setting("Frequency penalty.", apply="live", default=None, ge=-2, le=2)
    repetition_penalty: float | None = setting("Repetition penalty.", apply="live", default=None, ge=0, le=10)
    seed: int | None = setting("Seed of sampling.", apply="live", default=None, ge=-(2**63), le=2**63 - 1)
    max_tokens: int | None = setting(
        "Longest answer.",
        apply="live",
        unit="tokens",
        default=None,
        ge=1,
        le=TOKENS_MAX,
    )


class Generation(Section):
    """Generation policy of a model."""

    defaults: GenerationDefaults = setting(
        "Parameters put into a request that does not give them.", apply="live", factory=GenerationDefaults
    )
    max_tokens_ceiling: int | None = setting(
        "Longest answer that a request may ask for.",
        apply="live",
        unit="tokens",
        default=None,
        ge=1,
        le=TOKENS_MAX,
        at_limit="the value is lowered to this and named in x-iop-clamped",
    )


class Model(Section):
    """A model that clients may ask for, and who serves it under which name."""

    id: Id = setting("Name that clients ask for, unique.", apply="live")
    providers: dict[Id, Text] = setting(
        "Provider id -> name of the model at that provider, one of the provider's `models`.", apply="live", min_length=1
    )
    context_window_tokens: Window | None = setting(
        "Context window, for providers that give none of their own.", apply="live", unit="tokens", default=None
    )
    generation: Generation | None = setting(
        "Generation policy of chat, completions, responses and messages; nothing else has such parameters.",
        apply="live",
        default=None,
    )


class Timeouts(Section):
    """How long a Node waits for a provider."""

    connect_ms: int = setting(
        "Time to connect.",
        apply="live",
        unit="ms",
        default=5_000,
        ge=1,
        le=600_000,
        at_limit="another provider is tried once, then 502 upstream_error; the provider counts as unreachable",
    )
    first_byte_ms: int = setting(
        "Time from the request's last byte to the answer's head.",
        apply="live",
        unit="ms",
        default=600_000,
        ge=1,
        le=DAY_MS,
        at_limit="504 upstream_timeout",
    )
    idle_ms: int = setting(
        "Time between bytes of the answer; comments of an event stream count.",
        apply="live",
        unit="ms",
        default=600_000,
        ge=1,
        le=DAY_MS,
        at_limit="the answer is cut: an event stream ends with an error event",
    )


class NodeRuntime(Section):
    """How a Node runs its adapters."""

    drain_limit_ms: int = setting(
        "Time that a replaced set of adapters may go on with its running requests; 0 for no limit.",
        apply="live",
        unit="ms",
        default=0,
        ge=0,
        le=DAY_MS,
        at_limit="the requests left over are cut",
    )
    concurrency: int = setting(
        "Kept from earlier files and shown; never used for admission.", apply="live", default=0, ge=0, le=1_000_000
    )


class Adapter(Section):
    """Settings that several providers of a Node may share."""

    name: Id = setting("Name that providers refer to, unique on the Node.", apply="restart")
    type: AdapterType = setting("Kind of backend.", apply="restart")
    endpoint: Endpoint | None = setting(
        "URL of the backend, with or without the /v1 of the API.", apply="restart", default=None, quiet=True
    )
    endpoint_env: EnvName | None = setting(
        "Variable of the Node's environment that holds the URL.", apply="restart", default=None, quiet=True
    )
    api_key_env: EnvName | None = setting(
        "Variable of the Node's environment that holds the backend's key.", apply="restart", default=None, quiet=True
    )
    profile: Id | None = setting(
        "Entry of cli_profiles (type cli) or native_models (type native) in the Node's own file.",
        apply="restart",
        default=None,
    )
    options: dict[Id, Text] = setting(
        "Further settings, as texts. For the type ollama: `num_ctx`, `num_batch`, `num_gpu`, `main_gpu`, `num_thread`, "
        "`num_keep`, `use_mmap` (what a model is loaded with), `keep_alive`, `think`, `truncate`, `shift`. Other types "
        "that speak HTTP have none.",
        apply="restart",
        factory=dict,
    )


class Provider(Section):
    """One backend on one Node. What it runs is counted here, whatever model name it is reached by."""

    id: Id = setting("Name of the provider, unique over all Nodes.", apply="restart")
    type: AdapterType | None = setting(
        "Kind of backend, for a provider with settings of its own.", apply="restart", default=None
    )
    label: Text | None = setting(
        "Name shown to people; seulgivibe_claude and seulgivibe_openai label themselves.", apply="restart", default=None
    )
    adapter: Id | None = setting("Entry of the Node's adapters that it uses.", apply="restart", default=None)
    endpoint: Endpoint | None = setting(
        "URL of the backend, with or without the /v1 of the API.", apply="restart", default=None, quiet=True
    )
    endpoint_env: EnvName | None = setting(
        "Variable of the Node's environment that holds the URL.", apply="restart", default=None, quiet=True
    )
    api_key_env: EnvName | None = setting(
        "Variable of the Node's environment that holds the backend's key.", apply="restart", default=None, quiet=True
    )
    profile: Id | None = setting(
        "Entry of cli_profiles (type cli) or native_models (type native) in the Node's own file.",
        apply="restart",
        default=None,
    )
    options: dict[Id, Text] = setting(
        "Further settings of a provider with settings of its own, as `adapters[].options`.",
        apply="restart",
        factory=dict,
    )
    models: Entries[Text] = setting("Names of the models that it serves.", apply="live", min_length=1)
    can: Entries[Ability] | None = setting(
        "What it can do, where that is not all that its type can: requests that need more go to other providers of the"
        " model. ollama: chat, completions, embeddings, tools, images, json_schema; cli: chat, completions; native:"
        " chat, completions, embeddings, tools, json_schema; the others: everything.",
        apply="live",
        default=None,
        min_length=1,
        at_limit="400 unsupported_by_model where no provider of the model can",
    )
    enabled: bool = setting("Give it requests.", apply="live", default=True)
    health: Literal["auto", "up", "down"] = setting(
        "auto: as its Node reports it; up, down: as said here.", apply="live", default="auto"
    )
    capacity: Capacity = setting(
        "Requests that it runs at one time; 0 takes nothing new.", apply="live", at_limit="the request waits"
    )
    long_context_capacity: Capacity = setting(
        "Of these, requests of the class `long`; 0: it takes none of a model that has long slots elsewhere.",
        apply="live",
        default=0,
        at_limit="the long request waits",
    )
    priority: int = setting(
        "Lower is preferred among providers that run equally much.", apply="live", default=0, ge=-1_000, le=1_000
    )
    context_window_tokens: Window | None = setting(
        "Context window; left out, the model's. An Ollama is asked for it (num_ctx), unless its options name another.",
        apply="live",
        unit="tokens",
        default=None,
    )
    total_context_tokens: Window | None = setting(
        "Tokens that all its contexts hold together: context window x long_context_capacity must fit in it.",
        apply="live",
        unit="tokens",
        default=None,
    )
    timeouts: Timeouts = setting("How long the Node waits for it.", apply="live", factory=Timeouts)
    max_queue: int | None = setting(
        "Earlier form of provider_pool.max_queue: taken over where all providers agree and provider_pool is absent.",
        apply="live",
        default=None,
        ge=0,
        le=1_000_000,
    )
    queue_timeout_ms: int | None = setting(
        "Earlier form of provider_pool.queue_timeout_ms, as max_queue.",
        apply="live",
        unit="ms",
        default=None,
        ge=0,
        le=DAY_MS,
    )


class Node(Section):
    """A machine with backends. It dials in, proves itself by its token and gets its configuration."""

    id: Id = setting("Name that the Node registers by, unique.", apply="restart")
    alias: Text | None = setting("Name shown to people.", apply="restart", default=None)
    token_hash_sha256: Sha256 | None = setting(
        "sha256 of the Node's token, 64 hex characters; without it the Node cannot register.",
        apply="restart",
        default=None,
        secret=True,
    )
    runtime: NodeRuntime = setting("How the Node runs its adapters.", apply="live", factory=NodeRuntime)
    adapters: Entries[Adapter] = setting(
        "Settings that several providers of this Node share.", apply="restart", default=()
    )
    providers: Entries[Provider] = setting("Its backends.", apply="restart", default=(), ordered=True)

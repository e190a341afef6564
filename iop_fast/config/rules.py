"""The rules between the keys of an Edge's file.

Each rule is one function from the tree to remarks, listed in RULES. Rules run on the tree and not on the validated
configuration, so that a wrong value in one place does not hide a wrong reference in another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import get_args

from iop_fast.config.adapter_options import READERS, read_option
from iop_fast.config.context_rules import check_long_context
from iop_fast.config.legacy import check_concurrency, check_legacy
from iop_fast.config.schema.fleet import ABILITIES_OF_ADAPTER, ADAPTER_OF_TYPE, Ability
from iop_fast.config.tracing_rules import check_tracing
from iop_fast.config.transport_rules import check_encryption, check_link, check_listeners
from iop_fast.config.tree import Known, ListNode, MapNode, Remark
from iop_fast.config.view import Spot, spots, text, truth

# Headers that belong to one connection or frame the message (RFC 9110, section 7.6.1; RFC 9112, section 6).
FRAMING_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Ends of URLs that are calls of an API; what is asked for is put behind an endpoint.
CALLS = ("/chat/completions", "/completions", "/embeddings", "/responses", "/models", "/api/chat", "/api/generate")
CALLER_CREDENTIALS = frozenset({"authorization", "x-api-key"})
SETTINGS_KEYS = ("type", "endpoint", "endpoint_env", "api_key_env", "profile", "options")
ENABLED_SECTIONS = {
    "a2a": "the agent-to-agent listener",
    "control_plane": "the control plane connection",
    "bootstrap": "the bootstrap package",
}


def check_edge(root: MapNode) -> list[Remark]:
    """Run every rule."""
    return [remark for rule in RULES for remark in rule(root)]


def providers_of(root: MapNode) -> list[Spot]:
    """Return every provider of every Node, in file order."""
    return [provider for node in spots(root, "nodes") for provider in node.spots("providers")]


def once(entries: Iterable[Spot], key: str, what: str, *, quiet: bool = False) -> list[Remark]:
    """Refuse a value that an earlier entry has. A quiet value is not repeated."""
    first: dict[str, int] = {}
    remarks = []
    for entry in entries:
        value = entry.text(key)
        if value is None:
            continue
        value = value.lower() if quiet else value
        line, _ = entry.place(key)
        if value in first:
            shown = what if quiet else f"{what} {value[:128]}"
            remarks.append(entry.remark(key, f"{shown} is given twice, first in line {first[value]}"))
        first.setdefault(value, line)
    return remarks


def check_unique(root: MapNode) -> list[Remark]:
    """Node ids, model ids, provider ids over all Nodes, adapter names within a Node."""
    remarks = once(spots(root, "nodes"), "id", "node id")
    remarks += once(spots(root, "models"), "id", "model id")
    remarks += once(providers_of(root), "id", "provider id")
    for node in spots(root, "nodes"):
        remarks += once(node.spots("adapters"), "name", "adapter name")
    return remarks


def check_principals(root: MapNode) -> list[Remark]:
    """token_ref and token_hash_sha256 are each given once; a principal may have several tokens."""
    openai = Spot(root, ()).section("openai")
    if openai is None:
        return []
    tokens = openai.spots("principal_tokens")
    remarks = once(tokens, "token_ref", "token_ref")
    remarks += once(tokens, "token_hash_sha256", "this token_hash_sha256", quiet=True)
    if truth(openai.get("require_principal"), False) and not tokens:
        message = "no caller can be known without principal_tokens: every request will be answered 401"
        remarks.append(openai.remark("require_principal", message, "warning"))
    return remarks


def check_node_tokens(root: MapNode) -> list[Remark]:
    """A Node without a token hash cannot register; one token for two Nodes lets each pass for the other."""
    remarks = []
    first: dict[str, int] = {}
    for node in spots(root, "nodes"):
        value = node.text("token_hash_sha256")
        if not node.has("token_hash_sha256"):
            message = "no token_hash_sha256: this Node cannot register (`iop token` makes a token and its hash)"
            remarks.append(node.remark("", message, "warning"))
        if value is None:
            continue
        line, _ = node.place("token_hash_sha256")
        if value.lower() in first:
            message = f"the same token as the Node in line {first[value.lower()]}: each can pass for the other"
            remarks.append(node.remark("token_hash_sha256", message, "warning"))
        first.setdefault(value.lower(), line)
    return remarks


def check_mappings(root: MapNode) -> list[Remark]:
    """models[].providers names known providers, and names that those providers list."""
    remarks = []
    served: dict[str, Counter[str]] = {}
    for provider in providers_of(root):
        name = provider.text("id")
        if name is not None:
            served.setdefault(name, _texts(provider, "models"))
    for mapping in _mappings(root):
        for provider_id, entry in mapping.node.entries.items():
            if provider_id not in served:
                known = Known(provider_id, served)
                remarks.append(mapping.remark(provider_id, "no Node has this provider", at_key=True, known=known))
                continue
            name, names = text(entry.value), served[provider_id]
            if name is not None and names and name not in names:
                message = f"the provider does not list the model {name[:128]!r}"
                remarks.append(mapping.remark(provider_id, message, known=Known(name, names)))
    return remarks


def check_served(root: MapNode) -> list[Remark]:
    """A provider lists a model once; one that no model maps to is likely forgotten."""
    remarks = []
    mapped = {provider_id for mapping in _mappings(root) for provider_id in mapping.node.entries}
    for provider in providers_of(root):
        for name, count in _texts(provider, "models").items():
            if count > 1:
                remarks.append(provider.remark("models", f"{name[:128]!r} is listed {count} times"))
        if provider.text("id") is not None and provider.text("id") not in mapped:
            remarks.append(provider.remark("id", "no model maps to this provider: it gets no requests", "warning"))
    return remarks


def check_abilities(root: MapNode) -> list[Remark]:
    """What a provider can stands once, and within what its kind of provider may."""
    remarks = []
    for node in spots(root, "nodes"):
        types = {a.text("name"): a.text("type") for a in node.spots("adapters")}
        for provider in node.spots("providers"):
            kind = provider.text("type") or types.get(provider.text("adapter")) or ""
            possible = ABILITIES_OF_ADAPTER.get(ADAPTER_OF_TYPE.get(kind, ""), get_args(Ability))
            for name, count in _texts(provider, "can").items():
                if count > 1:
                    remarks.append(provider.remark("can", f"{name[:128]!r} is listed {count} times"))
                if name not in possible and name in get_args(Ability):
                    known = ", ".join(possible)
                    remarks.append(
                        provider.remark("can", f"no provider of the type {kind} can {name!r}, expected {known}")
                    )
    return remarks


def _mappings(root: MapNode) -> list[Spot]:
    sections = [model.section("providers") for model in spots(root, "models")]
    return [section for section in sections if section is not None]


def _texts(spot: Spot, key: str) -> Counter[str]:
    node = spot.get(key)
    if not isinstance(node, ListNode):
        return Counter()
    return Counter(value for item in node.items for value in [text(item)] if value is not None)


def check_settings(root: MapNode) -> list[Remark]:
    """A provider names an adapter of its Node, or carries settings of its own, and these fit its type."""
    remarks = []
    for node in spots(root, "nodes"):
        adapters = {name: a for a in node.spots("adapters") for name in [a.text("name")] if name is not None}
        for adapter in adapters.values():
            remarks += _check_type(adapter)
        for provider in node.spots("providers"):
            if provider.has("adapter"):
                remarks += _check_named(provider, adapters)
            elif not provider.has("type"):
                message = "has neither adapter nor type, expected an entry of the Node's adapters, or type and endpoint"
                remarks.append(provider.remark("", message))
            else:
                remarks += _check_type(provider)
    return remarks


def _check_named(provider: Spot, adapters: Collection[str]) -> list[Remark]:
    remarks = [
        provider.remark(key, f"{key} stands beside adapter, expected one of them: the adapter has its own", at_key=True)
        for key in SETTINGS_KEYS
        if provider.has(key)
    ]
    name = provider.text("adapter")
    if name is not None and name not in adapters:
        message = f"the Node has no adapter {name[:128]}"
        remarks.append(provider.remark("adapter", message, known=Known(name, adapters)))
    return remarks


def _check_type(spot: Spot) -> list[Remark]:
    """Check that settings fit their type: URL for servers, profile for what runs on the Node itself."""
    kind = ADAPTER_OF_TYPE.get(spot.text("type") or "")
    if kind is None:
        return []
    remarks = _check_options(spot, kind)
    if kind in ("cli", "native"):
        for key in ("endpoint", "endpoint_env", "api_key_env"):
            if spot.has(key):
                remarks.append(spot.remark(key, f"has no meaning for the type {kind}, expected profile", at_key=True))
        if not spot.has("profile"):
            remarks.append(spot.remark("", f"is missing profile, which the type {kind} needs"))
        return remarks
    if spot.has("profile"):
        message = f"has no meaning for the type {spot.text('type')}, expected endpoint or endpoint_env"
        remarks.append(spot.remark("profile", message, at_key=True))
    if spot.has("endpoint") == spot.has("endpoint_env"):
        got = "both" if spot.has("endpoint") else "neither"
        hint = "; an Ollama usually listens on http://127.0.0.1:11434" if kind == "ollama" and got == "neither" else ""
        remarks.append(spot.remark("", f"expected one of endpoint and endpoint_env, got {got}{hint}"))
    endpoint = (spot.text("endpoint") or "").rstrip("/")
    for call in CALLS:
        if endpoint.endswith(call):
            message = f"requests go to paths behind the endpoint: expected the server's root, without {call}"
            remarks.append(spot.remark("endpoint", message, "warning"))
            break
    return remarks


def _check_options(spot: Spot, kind: str) -> list[Remark]:
    """Check that the options are those of the type, with values that it takes."""
    section = spot.section("options")
    if section is None:
        return []
    remarks = []
    for name in section.node.entries:
        value = section.text(name)
        try:
            if value is not None or name not in READERS[kind]:
                read_option(kind, name, value or "")
        except ValueError as error:
            remarks.append(section.remark(name, str(error), at_key=name not in READERS[kind]))
    return remarks


def check_provider_auth(root: MapNode) -> list[Remark]:
    """The two headers carry a token and nothing that frames the message."""
    openai = Spot(root, ()).section("openai")
    auth = openai.section("provider_auth") if openai is not None else None
    if openai is None or auth is None:
        return []
    remarks = []
    for key in ("from_header", "target_header"):
        name = auth.text(key)
        if name is not None and name.lower() in FRAMING_HEADERS:
            remarks.append(
                auth.remark(key, f"{name} frames the message or names its receiver, expected another header")
            )
    source = (auth.text("from_header") or "").lower()
    if truth(auth.get("enabled"), False) and source in CALLER_CREDENTIALS and openai.spots("principal_tokens"):
        message = "callers' own tokens stand in this header too: they will reach the provider"
        remarks.append(auth.remark("from_header", message, "warning"))
    return remarks


def check_served_sections(root: MapNode) -> list[Remark]:
    """Refuse what this build reads but does not serve, instead of leaving it out without a word."""
    top = Spot(root, ())
    remarks = []
    for name, what in ENABLED_SECTIONS.items():
        section = top.section(name)
        if section is not None and truth(section.get("enabled"), False):
            remarks.append(section.remark("enabled", f"this build does not serve {what}, expected false"))
    return remarks


RULES: tuple[Callable[[MapNode], list[Remark]], ...] = (
    check_unique,
    check_principals,
    check_node_tokens,
    check_mappings,
    check_served,
    check_abilities,
    check_settings,
    check_long_context,
    check_provider_auth,
    check_served_sections,
    check_listeners,
    check_encryption,
    check_link,
    check_tracing,
    check_legacy,
    check_concurrency,
)

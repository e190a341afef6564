"""Broken files and everything that is said about each: every finding with its place, nothing else, no traceback."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from iop_fast.config.loader import load_edge_text, load_node_text
from iop_fast.errors import ConfigError
from tests.fixtures.fleets import SHOWN, shown

from .files import FLEET, NODE

H, G = "a" * 64, "b" * 64
HEAD = f"""\
models:
  - id: chat
    providers: {{p1: s1}}
nodes:
  - id: n1
    token_hash_sha256: {H}
"""
PROVIDER = """\
      - id: p1
        type: vllm
        endpoint: http://h:8000
        models: [s1]
        capacity: 4
"""
GOOD = f"{HEAD}    providers:\n{PROVIDER}"
# What a few lines can stand for: each list holds eight times the one before it.
BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{outer}: &{outer} [{', '.join([f'*{inner}'] * 8)}]\n" for inner, outer in zip("abcdef", "bcdefg", strict=True)
)
ON_LOOPBACK = "id: n\nedge: {address: '127.0.0.1:1'}\n"


@dataclass(frozen=True)
class Case:
    """A broken file: what it is, its text, and the findings in full."""

    name: str
    text: str | bytes
    findings: list[str]
    kind: str = "edge"


def changed(*changes: tuple[str, str], tail: str = "") -> str:
    """The good file with texts replaced by others, and a tail."""
    text = GOOD + tail
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def with_key(line: str) -> str:
    """The good file with one more line in its provider."""
    return changed(("capacity: 4", f"capacity: 4\n        {line}"))


def two(first: str, second: str) -> str:
    """The good file with a second provider, and more lines in each of them."""
    other = PROVIDER.replace("p1", "p2").replace("s1", "s2")
    return changed(
        ("{p1: s1}", "{p1: s1, p2: s2}"),
        ("[s1]\n", f"[s1]\n        {first}\n"),
        ("[s2]\n", f"[s2]\n        {second}\n"),
        tail=other,
    )


CASES = [
    Case(
        "an empty file",
        "",
        [
            "1:1: error: the file is empty, expected a mapping",
        ],
    ),
    Case(
        "comments alone",
        "# models:\n#   - id: chat\n",
        [
            "1:1: error: the file is empty, expected a mapping",
        ],
    ),
    Case(
        "a null document",
        "~\n",
        [
            "1:1: error: the file is empty, expected a mapping",
        ],
    ),
    Case(
        "a list for a file",
        "- models\n- nodes\n",
        [
            "1:1: error: expected a mapping, got a list",
        ],
    ),
    Case(
        "a text for a file",
        "hello\n",
        [
            "1:1: error: expected a mapping, got a text",
        ],
    ),
    Case(
        "a tab as indentation",
        "edge:\n\tid: a\n",
        [
            "2:1: error: edge: a tab cannot indent YAML, expected spaces",
        ],
    ),
    Case(
        "a tab before a list entry",
        "models:\n\t- id: chat\n",
        [
            "2:1: error: models: a tab cannot indent YAML, expected spaces",
        ],
    ),
    Case(
        "a second document",
        "edge: {id: a}\n---\nedge: {id: b}\n",
        [
            "2:1: error: a second document starts here, expected one configuration a file",
        ],
    ),
    Case(
        "an open bracket",
        "models: [{id: chat\nnodes: []\n",
        [
            (
                "2:6: error: models[#1]: did not find expected ',' or '}' while parsing a flow mapping that "
                "began in line 1"
            ),
        ],
    ),
    Case(
        "an open quote",
        'edge: {id: "a}\n',
        [
            "2:1: error: edge.id: found unexpected end of stream while scanning a quoted scalar that began in line 1",
        ],
    ),
    Case(
        "a mapping where a value goes on",
        "edge: id: a\n",
        [
            "1:9: error: mapping values are not allowed in this context",
        ],
    ),
    Case(
        "bad indentation",
        "edge:\n  id: a\n name: b\n",
        [
            "3:2: error: did not find expected key while parsing a block mapping that began in line 1",
        ],
    ),
    Case(
        "an alias without anchor",
        "edge: *a\n",
        [
            "1:7: error: edge: the alias *a has no anchor before it",
        ],
    ),
    Case(
        "an alias of itself",
        "models: &a [*a]\n",
        [
            "1:13: error: models[#1]: the alias *a stands for itself",
        ],
    ),
    Case(
        "a tag",
        "edge: !!python/object:os.system {id: a}\n",
        [
            "1:7: error: edge: a tag (tag:yaml.org,2002:python/object:os.system) has no meaning here",
        ],
    ),
    Case(
        "a tag on a value",
        "edge: {id: !!str 5}\n",
        [
            "1:12: error: edge.id: a tag (tag:yaml.org,2002:str) has no meaning here",
            "1:12: error: edge.id: expected a text, got a number '5'; put it in quotes",
        ],
    ),
    Case(
        "a list as a key",
        "? [a]\n: b\n",
        [
            "1:3: error: a list cannot be a key, expected a name",
        ],
    ),
    Case(
        "a number as a key",
        "models: [{id: m, providers: {1: s}}]\n",
        [
            "1:30: error: models[m].providers: the key 1 is no text to every YAML reader, expected it in quotes",
        ],
    ),
    Case(
        "a null as a key",
        "~: 1\n",
        [
            "1:1: error: the key ~ is no text to every YAML reader, expected it in quotes",
        ],
    ),
    Case(
        "a merge of a text",
        "edge: {<<: text}\n",
        [
            "1:8: error: edge: a text cannot be merged, expected a mapping or a list of mappings",
        ],
    ),
    Case(
        "a control character",
        'edge: {id: "a\x07"}\n',
        [
            "1:14: error: the character U+0007 cannot stand in YAML",
        ],
    ),
    Case(
        "a byte that is not UTF-8",
        b"edge: {id: caf\xe9}\n",
        [
            "1:15: error: byte 0xe9 is not UTF-8",
        ],
    ),
    Case(
        "aliases that stand for millions",
        BOMB,
        [
            "7:8: error: g[#1]: more than 500000 values, those behind aliases included",
        ],
    ),
    Case(
        "a scalar key twice",
        changed(("        capacity: 4\n", "        capacity: 4\n        capacity: 5\n")),
        [
            "13:9: error: nodes[n1].providers[p1].capacity: given twice, first in line 12",
        ],
    ),
    Case(
        "a section twice",
        "edge: {id: a}\nadmin: {}\nedge: {id: b}\n",
        [
            "3:1: error: edge: given twice, first in line 1",
        ],
    ),
    Case(
        "a key twice in flow",
        "edge: {id: a, id: b}\n",
        [
            "1:15: error: edge.id: given twice, first in line 1",
        ],
    ),
    Case(
        "a key that a merge brings too",
        "admin: &a {listen: '127.0.0.1:1'}\nobserve:\n  <<: *a\n  listen: '127.0.0.1:2'\n",
        [
            "4:3: error: observe.listen: given twice, in line 4 and by the merge in line 3",
        ],
    ),
    Case(
        "a key by two merges",
        "admin: &x {listen: '127.0.0.1:1'}\nobserve: &y {listen: '127.0.0.1:2'}\na2a: {<<: [*x, *y]}\n",
        [
            "1:12: error: a2a.listen: given twice, in line 1 and by the merge in line 3",
        ],
    ),
    Case(
        "a provider id twice on a Node",
        changed(tail=PROVIDER),
        [
            "13:13: error: nodes[n1].providers[p1].id: provider id p1 is given twice, first in line 8",
        ],
    ),
    Case(
        "a provider id on two Nodes",
        changed(tail=f"  - id: n2\n    token_hash_sha256: {G}\n    providers:\n{PROVIDER}"),
        [
            "16:13: error: nodes[n2].providers[p1].id: provider id p1 is given twice, first in line 8",
        ],
    ),
    Case(
        "a node id twice",
        changed(tail=f"  - id: n1\n    token_hash_sha256: {G}\n"),
        [
            "13:9: error: nodes[n1].id: node id n1 is given twice, first in line 5",
        ],
    ),
    Case(
        "a model id twice",
        changed(("nodes:\n", "  - id: chat\n    providers: {p1: s1}\nnodes:\n")),
        [
            "4:9: error: models[chat].id: model id chat is given twice, first in line 2",
        ],
    ),
    Case(
        "a mapped provider twice",
        changed(("{p1: s1}", "{p1: s1, p1: s1}")),
        [
            "3:25: error: models[chat].providers[p1]: given twice, first in line 3",
        ],
    ),
    Case(
        "a served model twice",
        changed(("[s1]", "[s1, s1]")),
        [
            "11:17: error: nodes[n1].providers[p1].models: 's1' is listed 2 times",
        ],
    ),
    Case(
        "an adapter name twice",
        (
            "nodes:\n"
            "  - id: n\n"
            f"    token_hash_sha256: {H}\n"
            "    adapters:\n"
            f"      - {{name: a, type: ollama, endpoint_env: U}}\n"
            f"      - {{name: a, type: ollama, endpoint_env: V}}\n"
        ),
        [
            "6:16: error: nodes[n].adapters[a].name: adapter name a is given twice, first in line 5",
        ],
    ),
    Case(
        "a token_ref twice",
        (
            "openai:\n"
            "  principal_tokens:\n"
            f"    - {{token_ref: t, token_hash_sha256: {H}, principal_ref: u}}\n"
            f"    - {{token_ref: t, token_hash_sha256: {G}, principal_ref: u}}\n"
        ),
        [
            "4:19: error: openai.principal_tokens[t].token_ref: token_ref t is given twice, first in line 3",
        ],
    ),
    Case(
        "a token hash twice",
        (
            "openai:\n"
            "  principal_tokens:\n"
            f"    - {{token_ref: t, token_hash_sha256: {H}, principal_ref: u}}\n"
            f"    - {{token_ref: v, token_hash_sha256: {H.upper()}, principal_ref: v}}\n"
        ),
        [
            (
                "4:41: error: openai.principal_tokens[v].token_hash_sha256: this token_hash_sha256 is given "
                "twice, first in line 3"
            ),
        ],
    ),
    Case(
        "models without entries",
        "models:\n",
        [
            "1:8: error: models: has no value, expected a list (leave the key out for the default)",
        ],
    ),
    Case(
        "nodes without entries",
        "nodes:\n",
        [
            "1:7: error: nodes: has no value, expected a list (leave the key out for the default)",
        ],
    ),
    Case(
        "openai without entries",
        "openai:\n",
        [
            "1:8: error: openai: has no value, expected a mapping (leave the key out for the default)",
        ],
    ),
    Case(
        "provider_pool without entries",
        "provider_pool:\n",
        [
            "1:15: error: provider_pool: has no value, expected a mapping (leave the key out for the default)",
        ],
    ),
    Case(
        "providers of a Node without entries",
        HEAD + "    providers: ~\n",
        [
            "3:17: error: models[chat].providers[p1]: no Node has this provider, there are none",
            "7:16: error: nodes[n1].providers: has no value, expected a list (leave the key out for the default)",
        ],
    ),
    Case(
        "providers of a model without entries",
        changed(("{p1: s1}", "")),
        [
            "3:15: error: models[chat].providers: has no value, expected a mapping",
            "8:13: warning: nodes[n1].providers[p1].id: no model maps to this provider: it gets no requests",
        ],
    ),
    Case(
        "a map of no providers",
        changed(("{p1: s1}", "{}")),
        [
            "3:16: error: models[chat].providers: is empty, expected at least one entry",
            "8:13: warning: nodes[n1].providers[p1].id: no model maps to this provider: it gets no requests",
        ],
    ),
    Case(
        "served models of a provider: none",
        changed(("[s1]", "[]")),
        [
            "11:17: error: nodes[n1].providers[p1].models: is empty, expected at least one entry",
        ],
    ),
    Case(
        "a null among entries",
        "nodes: [~]\n",
        [
            "1:9: error: nodes[#1]: has no value, expected a mapping",
        ],
    ),
    Case(
        "a list where a mapping is due",
        "openai: [listen]\n",
        [
            "1:9: error: openai: expected a mapping, got a list",
        ],
    ),
    Case(
        "a mapping where a list is due",
        "models: {chat: {p1: s1}}\n",
        [
            "1:9: error: models: expected a list, got a mapping",
        ],
    ),
    Case(
        "a text where a list is due",
        changed(("[s1]", "s1")),
        [
            "11:17: error: nodes[n1].providers[p1].models: expected a list, got a text",
        ],
    ),
    Case(
        "a capacity of no",
        changed(("capacity: 4", "capacity: no")),
        [
            "12:19: error: nodes[n1].providers[p1].capacity: expected a whole number, got a truth value 'no'",
        ],
    ),
    Case(
        "a capacity of 012",
        changed(("capacity: 4", "capacity: 012")),
        [
            (
                "12:19: error: nodes[n1].providers[p1].capacity: expected a whole number, got a number '012'; "
                "write decimal digits without leading zero, underscore or exponent"
            ),
        ],
    ),
    Case(
        "a capacity of 1_000",
        changed(("capacity: 4", "capacity: 1_000")),
        [
            (
                "12:19: error: nodes[n1].providers[p1].capacity: expected a whole number, got a number '1_000'; "
                "write decimal digits without leading zero, underscore or exponent"
            ),
        ],
    ),
    Case(
        "a capacity of 1e3",
        changed(("capacity: 4", "capacity: 1e3")),
        [
            (
                "12:19: error: nodes[n1].providers[p1].capacity: expected a whole number, got a number '1e3'; "
                "write decimal digits without leading zero, underscore or exponent"
            ),
        ],
    ),
    Case(
        "a capacity of 0x10",
        changed(("capacity: 4", "capacity: 0x10")),
        [
            (
                "12:19: error: nodes[n1].providers[p1].capacity: expected a whole number, got a number '0x10'; "
                "write decimal digits without leading zero, underscore or exponent"
            ),
        ],
    ),
    Case(
        "a capacity of 2026-01-01",
        changed(("capacity: 4", "capacity: 2026-01-01")),
        [
            "12:19: error: nodes[n1].providers[p1].capacity: expected a whole number, got a date '2026-01-01'",
        ],
    ),
    Case(
        "a capacity of '4'",
        changed(("capacity: 4", "capacity: '4'")),
        [
            (
                "12:19: error: nodes[n1].providers[p1].capacity: expected a whole number, got a text '4'; leave "
                "the quotes out"
            ),
        ],
    ),
    Case(
        "a capacity of 4.0",
        changed(("capacity: 4", "capacity: 4.0")),
        [
            (
                "12:19: error: nodes[n1].providers[p1].capacity: expected a whole number, got a number '4.0'; "
                "write decimal digits without leading zero, underscore or exponent"
            ),
        ],
    ),
    Case(
        "a capacity of -1",
        changed(("capacity: 4", "capacity: -1")),
        [
            "12:19: error: nodes[n1].providers[p1].capacity: '-1': expected at least 0",
        ],
    ),
    Case(
        "a capacity of 1000001",
        changed(("capacity: 4", "capacity: 1000001")),
        [
            "12:19: error: nodes[n1].providers[p1].capacity: '1000001': expected at most 1000000",
        ],
    ),
    Case(
        "a capacity of true",
        changed(("capacity: 4", "capacity: true")),
        [
            "12:19: error: nodes[n1].providers[p1].capacity: expected a whole number, got a truth value 'true'",
        ],
    ),
    Case(
        "a capacity of ~",
        changed(("capacity: 4", "capacity: ~")),
        [
            "12:19: error: nodes[n1].providers[p1].capacity: has no value, expected a whole number",
        ],
    ),
    Case(
        "a bare no as an id",
        "edge: {id: no}\n",
        [
            "1:12: error: edge.id: expected a text, got a truth value 'no'; put it in quotes",
        ],
    ),
    Case(
        "a bare 012 as an id",
        changed(("- id: n1", "- id: 012")),
        [
            "5:9: error: nodes[012].id: expected a text, got a number '012'; put it in quotes",
        ],
    ),
    Case(
        "a bare number as a served model",
        changed(("[s1]", "[70]"), ("{p1: s1}", "{p1: 70}")),
        [
            "3:21: error: models[chat].providers[p1]: expected a text, got a number '70'; put it in quotes",
            "11:18: error: nodes[n1].providers[p1].models[#1]: expected a text, got a number '70'; put it in quotes",
        ],
    ),
    Case(
        "a bare date as a label",
        changed(("type: vllm", "type: vllm\n        label: 2026-01-01")),
        [
            "10:16: error: nodes[n1].providers[p1].label: expected a text, got a date '2026-01-01'; put it in quotes",
        ],
    ),
    Case(
        "a bare yes as a switch",
        with_key("enabled: yes"),
        [
            (
                "13:18: error: nodes[n1].providers[p1].enabled: expected true or false, got a truth value 'yes'; "
                "YAML readers disagree about it"
            ),
        ],
    ),
    Case(
        "a quoted switch",
        with_key("enabled: 'false'"),
        [
            "13:18: error: nodes[n1].providers[p1].enabled: expected true or false, got a text 'false'",
        ],
    ),
    Case(
        "an id with a space",
        changed(("- id: n1", "- id: n 1")),
        [
            (
                "5:9: error: nodes[\"n 1\"].id: 'n 1': expected 1 to 128 characters A-Z a-z 0-9 . _ : / @ + -, the "
                "first a letter or a digit"
            ),
        ],
    ),
    Case(
        "an id of another script",
        changed(("- id: n1", "- id: 노드")),
        [
            (
                "5:9: error: nodes[\"노드\"].id: '노드': expected 1 to 128 characters A-Z a-z 0-9 . _ : / @ + -, the "
                "first a letter or a digit"
            ),
        ],
    ),
    Case(
        "a misspelt key",
        changed(("capacity", "capacty")),
        [
            (
                "8:9: error: nodes[n1].providers[p1].capacity: is missing, expected: requests that it runs at "
                "one time; 0 takes nothing new"
            ),
            "12:9: error: nodes[n1].providers[p1].capacty: unknown key, did you mean capacity?",
        ],
    ),
    Case(
        "a misspelt section",
        "provider_pol: {max_queue: 3}\n",
        [
            "1:1: error: provider_pol: unknown key, did you mean provider_pool?",
        ],
    ),
    Case(
        "a key of another level",
        "max_queue: 3\n",
        [
            (
                "1:1: error: max_queue: unknown key, expected one of edge, openai, a2a, control_plane, "
                "bootstrap, admin, observe, tracing, provider_pool, models, nodes"
            ),
        ],
    ),
    Case(
        "a capacity that is missing",
        changed(("        capacity: 4\n", "")),
        [
            (
                "8:9: error: nodes[n1].providers[p1].capacity: is missing, expected: requests that it runs at "
                "one time; 0 takes nothing new"
            ),
        ],
    ),
    Case(
        "a model without providers",
        "models: [{id: chat}]\n",
        [
            (
                "1:10: error: models[chat].providers: is missing, expected: provider id -> name of the model at "
                "that provider, one of the provider's `models`"
            ),
        ],
    ),
    Case(
        "a raw token on a Node",
        changed((f"token_hash_sha256: {H}", "token: iop-SECRET")),
        [
            (
                "5:5: warning: nodes[n1]: no token_hash_sha256: this Node cannot register (`iop token` makes a "
                "token and its hash)"
            ),
            (
                "6:5: error: nodes[n1].token: unknown key: a raw token never stands in the file, expected "
                "token_hash_sha256 (Edge) or token_env, token_file (Node)"
            ),
        ],
    ),
    Case(
        "a raw token for a hash",
        changed((H, "iop-SECRET")),
        [
            (
                "6:24: error: nodes[n1].token_hash_sha256: expected the sha256 of the token as 64 hex "
                "characters, never the token itself"
            ),
        ],
    ),
    Case(
        "a raw principal token",
        "openai:\n  principal_tokens:\n    - {token_ref: t, token: SECRET, principal_ref: u}\n",
        [
            (
                "3:7: error: openai.principal_tokens[t].token_hash_sha256: is missing, expected: sha256 of the "
                "token, 64 hex characters (`iop token` makes both); the token itself never stands here"
            ),
            (
                "3:22: error: openai.principal_tokens[t].token: unknown key: a raw token never stands in the "
                "file, expected token_hash_sha256 (Edge) or token_env, token_file (Node)"
            ),
        ],
    ),
    Case(
        "a raw key of a provider",
        with_key("api_key: SECRET"),
        [
            (
                "13:9: error: nodes[n1].providers[p1].api_key: unknown key: a key never stands in the file, "
                "expected api_key_env with the name of a variable on the Node"
            ),
        ],
    ),
    Case(
        "a raw key for a variable",
        with_key("api_key_env: sk-SECRET"),
        [
            (
                "13:22: error: nodes[n1].providers[p1].api_key_env: expected the name of an environment variable "
                "(letters, digits, _), never the value itself"
            ),
        ],
    ),
    Case(
        "a raw provider token",
        "openai: {provider_auth: {enabled: true, token: SECRET}}\n",
        [
            (
                "1:41: error: openai.provider_auth.token: unknown key: a raw token never stands in the file, "
                "expected token_hash_sha256 (Edge) or token_env, token_file (Node)"
            ),
        ],
    ),
    Case(
        "a threshold of 0",
        "openai: {long_context_threshold_tokens: 0}\n",
        [
            "1:41: error: openai.long_context_threshold_tokens: '0': expected at least 1",
        ],
    ),
    Case(
        "a negative threshold",
        "openai: {long_context_threshold_tokens: -5}\n",
        [
            "1:41: error: openai.long_context_threshold_tokens: '-5': expected at least 1",
        ],
    ),
    Case(
        "a queue too long",
        "provider_pool: {max_queue: 1000001}\n",
        [
            "1:28: error: provider_pool.max_queue: '1000001': expected at most 1000000",
        ],
    ),
    Case(
        "a negative timeout",
        "provider_pool: {queue_timeout_ms: -1}\n",
        [
            "1:35: error: provider_pool.queue_timeout_ms: '-1': expected at least 0",
        ],
    ),
    Case(
        "a priority out of bounds",
        with_key("priority: 1001"),
        [
            "13:19: error: nodes[n1].providers[p1].priority: '1001': expected at most 1000",
        ],
    ),
    Case(
        "a temperature out of bounds",
        "models: [{id: m, providers: {p: s}, generation: {defaults: {temperature: 11}}}]\n",
        [
            "1:30: error: models[m].providers[p]: no Node has this provider, there are none",
            "1:74: error: models[m].generation.defaults.temperature: '11': expected at most 10",
        ],
    ),
    Case(
        "an unknown provider",
        changed(("{p1: s1}", "{p2: s1}")),
        [
            "3:17: error: models[chat].providers[p2]: no Node has this provider, expected one of p1",
            "8:13: warning: nodes[n1].providers[p1].id: no model maps to this provider: it gets no requests",
        ],
    ),
    Case(
        "an unknown served model",
        changed(("{p1: s1}", "{p1: s2}")),
        [
            "3:21: error: models[chat].providers[p1]: the provider does not list the model 's2', expected one of s1",
        ],
    ),
    Case(
        "an unknown adapter",
        changed(("        type: vllm\n        endpoint: http://h:8000\n", "        adapter: shared\n")),
        [
            "9:18: error: nodes[n1].providers[p1].adapter: the Node has no adapter shared, there are none",
        ],
    ),
    Case(
        "an adapter beside settings",
        changed(("type: vllm", "adapter: shared\n        type: vllm")),
        [
            "9:18: error: nodes[n1].providers[p1].adapter: the Node has no adapter shared, there are none",
            (
                "10:9: error: nodes[n1].providers[p1].type: type stands beside adapter, expected one of them: "
                "the adapter has its own"
            ),
            (
                "11:9: error: nodes[n1].providers[p1].endpoint: endpoint stands beside adapter, expected one of "
                "them: the adapter has its own"
            ),
        ],
    ),
    Case(
        "neither adapter nor type",
        changed(("        type: vllm\n", "")),
        [
            (
                "8:9: error: nodes[n1].providers[p1]: has neither adapter nor type, expected an entry of the "
                "Node's adapters, or type and endpoint"
            ),
        ],
    ),
    Case(
        "an unknown type",
        changed(("type: vllm", "type: vlm")),
        [
            "9:15: error: nodes[n1].providers[p1].type: 'vlm' is unknown, did you mean vllm?",
        ],
    ),
    Case(
        "no endpoint",
        changed(("        endpoint: http://h:8000\n", "")),
        [
            "8:9: error: nodes[n1].providers[p1]: expected one of endpoint and endpoint_env, got neither",
        ],
    ),
    Case(
        "two endpoints",
        with_key("endpoint_env: URL"),
        [
            "8:9: error: nodes[n1].providers[p1]: expected one of endpoint and endpoint_env, got both",
        ],
    ),
    Case(
        "an endpoint without scheme",
        changed(("http://h:8000", "h:8000")),
        [
            (
                "10:19: error: nodes[n1].providers[p1].endpoint: expected http://host[:port][/path] or "
                "https://..., printable ASCII without spaces"
            ),
        ],
    ),
    Case(
        "an endpoint with a password",
        changed(("http://h:8000", "http://u:SECRET@h:8000")),
        [
            (
                "10:19: error: nodes[n1].providers[p1].endpoint: expected no user or password in the URL: name "
                "the variable with the key by api_key_env"
            ),
        ],
    ),
    Case(
        "an endpoint with a query",
        changed(("http://h:8000", "http://h:8000/?key=SECRET")),
        [
            "10:19: error: nodes[n1].providers[p1].endpoint: expected a URL without query and fragment",
        ],
    ),
    Case(
        "a cli provider with an endpoint",
        changed(("type: vllm", "type: cli")),
        [
            "8:9: error: nodes[n1].providers[p1]: is missing profile, which the type cli needs",
            "10:9: error: nodes[n1].providers[p1].endpoint: has no meaning for the type cli, expected profile",
        ],
    ),
    Case(
        "a budget that is broken",
        with_key(
            "long_context_capacity: 3\n        context_window_tokens: 131072\n        total_context_tokens: 262144"
        ),
        [
            (
                "15:31: error: nodes[n1].providers[p1].total_context_tokens: context_window_tokens 131072 x "
                "long_context_capacity 3 is 393216, expected at most 262144"
            ),
        ],
    ),
    Case(
        "a budget broken by a model's window",
        changed(
            ("capacity: 4", "capacity: 4\n        long_context_capacity: 3\n        total_context_tokens: 262144"),
            ("{p1: s1}", "{p1: s1}\n    context_window_tokens: 131072"),
        ),
        [
            (
                "15:31: error: nodes[n1].providers[p1].total_context_tokens: models[chat].context_window_tokens "
                "131072 x long_context_capacity 3 is 393216, expected at most 262144"
            ),
        ],
    ),
    Case(
        "different queue pairs",
        two("max_queue: 5\n        queue_timeout_ms: 100", "max_queue: 6\n        queue_timeout_ms: 200"),
        [
            (
                "19:20: error: nodes[n1].providers[p2].max_queue: 6 here and 5 in line 12, expected one value: "
                "set provider_pool.max_queue"
            ),
            (
                "20:27: error: nodes[n1].providers[p2].queue_timeout_ms: 200 here and 100 in line 13, expected "
                "one value: set provider_pool.queue_timeout_ms"
            ),
        ],
    ),
    Case(
        "half a queue pair",
        two("max_queue: 5\n        queue_timeout_ms: 100", "max_queue: 5"),
        [
            (
                "19:9: error: nodes[n1].providers[p2].max_queue: given without queue_timeout_ms, expected both, "
                "or better provider_pool.max_queue"
            ),
        ],
    ),
    Case(
        "an admin listener off loopback",
        "admin: {listen: '0.0.0.0:8082'}\n",
        [
            (
                "1:17: error: admin.listen: '0.0.0.0:8082': expected a loopback address (127.0.0.1, [::1], "
                "localhost) or unix:/path: it has no login"
            ),
        ],
    ),
    Case(
        "a plaintext link off loopback",
        "edge: {listen: '0.0.0.0:8081'}\n",
        [
            (
                "1:16: error: edge.listen: 0.0.0.0:8081 is not a loopback address and there is no edge.tls: "
                "Nodes' tokens and all requests would cross the network readable, expected edge.tls, or "
                "edge.insecure: true where that is meant"
            ),
        ],
    ),
    Case(
        "one address for two listeners",
        "openai: {listen: '127.0.0.1:8081'}\n",
        [
            "1:18: error: openai.listen: openai.listen 127.0.0.1:8081 is the address of edge.listen too",
        ],
    ),
    Case(
        "an address without port",
        "openai: {listen: localhost}\n",
        [
            "1:18: error: openai.listen: 'localhost': expected host:port, an IPv6 address in brackets ([::1]:8080)",
        ],
    ),
    Case(
        "an address with a bad port",
        "openai: {listen: '127.0.0.1:99999'}\n",
        [
            "1:18: error: openai.listen: '127.0.0.1:99999': expected a port of 0 to 65535",
        ],
    ),
    Case(
        "tls without key",
        "edge: {tls: {cert_file: /c}}\n",
        [
            "1:13: error: edge.tls.key_file: is missing, expected: file with the private key, PEM",
        ],
    ),
    Case(
        "silence under two heartbeats",
        "edge: {link: {heartbeat_ms: 9000}}\n",
        [
            (
                "1:29: error: edge.link.heartbeat_ms: silence_ms 15000 is below twice heartbeat_ms 9000: one "
                "late heartbeat would end a session"
            ),
        ],
    ),
    Case(
        "a framing header",
        "openai: {provider_auth: {from_header: Host}}\n",
        [
            (
                "1:39: error: openai.provider_auth.from_header: Host frames the message or names its receiver, "
                "expected another header"
            ),
        ],
    ),
    Case(
        "what this build does not serve",
        "a2a: {enabled: true}\ncontrol_plane: {enabled: true}\nbootstrap: {enabled: true}\n",
        [
            "1:16: error: a2a.enabled: this build does not serve the agent-to-agent listener, expected false",
            (
                "2:26: error: control_plane.enabled: this build does not serve the control plane connection, "
                "expected false"
            ),
            "3:22: error: bootstrap.enabled: this build does not serve the bootstrap package, expected false",
        ],
    ),
    Case(
        "several levels at once",
        (
            "edge: {id: a, id: b}\n"
            "openai: {expose_route: yes, long_context_threshold_tokens: 0}\n"
            "models:\n"
            "  - {id: m, providers: {ghost: s}}\n"
            "nodes:\n"
            "  - {id: n, id_: 1, providers: [{id: p, capacity: many}]}\n"
        ),
        [
            "1:15: error: edge.id: given twice, first in line 1",
            (
                "2:24: error: openai.expose_route: expected true or false, got a truth value 'yes'; YAML readers "
                "disagree about it"
            ),
            "2:60: error: openai.long_context_threshold_tokens: '0': expected at least 1",
            "4:25: error: models[m].providers[ghost]: no Node has this provider, expected one of p",
            (
                "6:5: warning: nodes[n]: no token_hash_sha256: this Node cannot register (`iop token` makes a "
                "token and its hash)"
            ),
            "6:13: error: nodes[n].id_: unknown key, did you mean id?",
            (
                "6:33: error: nodes[n].providers[p]: has neither adapter nor type, expected an entry of the "
                "Node's adapters, or type and endpoint"
            ),
            "6:33: error: nodes[n].providers[p].models: is missing, expected: names of the models that it serves",
            "6:38: warning: nodes[n].providers[p].id: no model maps to this provider: it gets no requests",
            "6:51: error: nodes[n].providers[p].capacity: expected a whole number, got a text 'many'",
        ],
    ),
    Case(
        "a Node's empty file",
        "",
        [
            "1:1: error: the file is empty, expected a mapping",
        ],
        kind="node",
    ),
    Case(
        "a Node without edge",
        "id: n\ntoken_env: T\n",
        [
            "1:1: error: edge: is missing, expected: the Edge that the Node dials",
        ],
        kind="node",
    ),
    Case(
        "a Node without token",
        ON_LOOPBACK,
        [
            "1:1: error: expected one of token_env and token_file, got neither",
        ],
        kind="node",
    ),
    Case(
        "a Node with two tokens",
        ON_LOOPBACK + "token_env: T\ntoken_file: /t\n",
        [
            "4:1: error: token_file: expected one of token_env and token_file, got both",
        ],
        kind="node",
    ),
    Case(
        "a Node with a raw token",
        ON_LOOPBACK + "token: SECRET\n",
        [
            "1:1: error: expected one of token_env and token_file, got neither",
            (
                "3:1: error: token: unknown key: a raw token never stands in the file, expected "
                "token_hash_sha256 (Edge) or token_env, token_file (Node)"
            ),
        ],
        kind="node",
    ),
    Case(
        "a Node that dials plaintext",
        "id: n\nedge: {address: edge.example:8081}\ntoken_env: T\n",
        [
            (
                "2:17: error: edge.address: edge.example:8081 is not a loopback address and there is no "
                "edge.tls: this Node's token and all requests would cross the network readable, expected "
                "edge.tls, or edge.insecure: true where that is meant"
            ),
        ],
        kind="node",
    ),
    Case(
        "a Node's command without prompt",
        ON_LOOPBACK + "token_env: T\ncli_profiles:\n  - {id: c, command: [x], input: argument}\n",
        [
            "5:22: error: cli_profiles[c].command: input is argument, expected {prompt} in one of the arguments",
        ],
        kind="node",
    ),
    Case(
        "a Node's native model with options that its adapter does not have",
        ON_LOOPBACK + "token_env: T\nnative_models: [{id: e, adapter: echo, options: {words: 2}}]\n",
        [
            "4:50: error: native_models[e].options[words]: unknown key, did you mean chunk_words?",
        ],
        kind="node",
    ),
    Case(
        "an Edge's file for a Node",
        GOOD,
        [
            "1:1: error: expected one of token_env and token_file, got neither",
            "1:1: error: edge: is missing, expected: the Edge that the Node dials",
            "1:1: error: id: is missing, expected: name of this Node in the Edge's file",
            "1:1: error: models: unknown key, did you mean native_models?",
            (
                "4:1: error: nodes: unknown key, expected one of id, edge, link, token_env, token_file, cli_profiles, "
                "native_models, observe, tracing, log, limits"
            ),
        ],
        kind="node",
    ),
]


def said(case: Case) -> list[str]:
    """Everything that the loader says about a case, accepted or not."""
    load = load_edge_text if case.kind == "edge" else load_node_text
    with pytest.raises(ConfigError) as caught:
        load(case.text, "f")
    assert str(caught.value).splitlines() == [str(one) for one in caught.value.findings]
    return [str(one).removeprefix("f:") for one in caught.value.findings]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_everything_that_is_wrong_is_said(case: Case) -> None:
    """B15 is among them: keys and ids given twice, sections without entries, files of another shape."""
    found = said(case)
    assert found == case.findings
    assert not [line for line in found if "SECRET" in line]
    assert any(": error: " in line for line in found)


def test_there_are_many_and_each_is_another() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len({(case.kind, case.text) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("text", [GOOD, FLEET, two("label: a", "label: b"), *map(shown, SHOWN)])
def test_nothing_is_said_about_good_files(text: str) -> None:
    assert load_edge_text(text, "f").warnings == ()


def test_nothing_is_said_about_a_good_file_of_a_node() -> None:
    assert load_node_text(NODE, "f").warnings == ()


def test_a_file_beyond_the_limit_is_one_finding(tmp_path: Path) -> None:
    text = "# " + "x" * (16 * 1024 * 1024)
    assert said(Case("too long", text, [])) == [
        "1:1: error: the file is too long, expected at most 16777216 bytes",
    ]

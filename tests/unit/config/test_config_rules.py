"""The rules between keys, each with a file that keeps it and one that breaks it."""

from __future__ import annotations

import pytest

from iop_fast.config.schema import ADAPTER_OF_TYPE

from .files import FLEET, HASH_A, HASH_B, accepted, errors, findings, provider, warnings


def test_a_good_fleet_has_no_findings() -> None:
    assert findings(FLEET) == []


class TestUnique:
    def test_provider_ids_over_all_nodes(self) -> None:
        text = FLEET.replace("id: p2", "id: p1").replace(", p2: served-2", "").replace("served-2", "served-1")
        assert errors(text) == ["nodes[n2].providers[p1].id: provider id p1 is given twice, first in line 8"]

    def test_node_ids(self) -> None:
        assert errors("nodes: [{id: a}, {id: b}, {id: a}]") == [
            "nodes[a].id: node id a is given twice, first in line 1"
        ]

    def test_model_ids(self) -> None:
        text = FLEET.replace("nodes:", "  - {id: chat, providers: {p1: served-1}}\nnodes:")
        assert errors(text) == ["models[chat].id: model id chat is given twice, first in line 2"]

    def test_adapter_names_within_a_node(self) -> None:
        adapter = "{name: x, type: vllm, endpoint: 'http://h'}"
        assert errors(f"nodes: [{{id: n, adapters: [{adapter}, {adapter}]}}]") == [
            "nodes[n].adapters[x].name: adapter name x is given twice, first in line 1"
        ]
        assert errors(f"nodes: [{{id: n, adapters: [{adapter}]}}, {{id: m, adapters: [{adapter}]}}]") == []

    def test_reported_although_another_field_of_the_entry_is_wrong(self) -> None:
        found = errors("nodes: [{id: a, alias: 3}, {id: a, alias: 4}]")
        assert "nodes[a].id: node id a is given twice, first in line 1" in found
        assert len(found) == 3


class TestMappings:
    def test_unknown_provider_with_a_near_name(self) -> None:
        assert errors(FLEET.replace("{p1: served-1", "{p11: served-1")) == [
            "models[chat].providers[p11]: no Node has this provider, did you mean p1?"
        ]

    def test_served_model_that_the_provider_does_not_list(self) -> None:
        assert errors(FLEET.replace("p2: served-2", "p2: served-1")) == [
            "models[chat].providers[p2]: the provider does not list the model 'served-1', did you mean served-2?"
        ]

    def test_reported_although_the_provider_is_broken_elsewhere(self) -> None:
        found = errors(FLEET.replace("p2: served-2", "p2: x").replace("capacity: 1", "capacity: many"))
        assert any("does not list the model 'x'" in one for one in found)
        assert any("capacity: expected a whole number" in one for one in found)

    def test_a_provider_without_model_is_a_warning(self) -> None:
        assert warnings(FLEET.replace(", p2: served-2", "")) == [
            "nodes[n2].providers[p2].id: no model maps to this provider: it gets no requests"
        ]

    def test_what_a_provider_can_is_listed_once_and_within_its_type(self) -> None:
        assert errors(provider("can: [chat, responses, logprobs]")) == [
            "nodes[n].providers[p].can[#3]: 'logprobs' is unknown, expected one of chat, completions, embeddings,"
            " tools, images, audio, json_schema, responses, messages, rerank, speech, image_generation, transcriptions"
        ]
        assert errors(provider("can: [chat, messages]")) == []
        assert errors(provider("can: [chat, chat]")) == ["nodes[n].providers[p].can: 'chat' is listed 2 times"]
        of_ollama = "chat, completions, embeddings, tools, images, json_schema"
        for base, known in (
            ("type: ollama, endpoint: 'http://h:1'", of_ollama),
            ("type: cli, profile: x", "chat, completions"),
        ):
            kind = base.split()[1].rstrip(",")
            assert errors(provider("can: [chat, audio, messages]", base=base)) == [
                f"nodes[n].providers[p].can: no provider of the type {kind} can {name!r}, expected {known}"
                for name in ("audio", "messages")
            ]
        assert errors(provider("can: [chat, audio]", base="type: native, profile: x")) == []
        known = "chat, completions, embeddings, tools, images, audio, json_schema"
        named = FLEET.replace("type: ollama", "adapter: a\n        can: [rerank]").replace(
            "    providers:\n      - id: p2",
            "    adapters: [{name: a, type: native, profile: x}]\n    providers:\n      - id: p2",
        )
        named = named.replace("        endpoint: http://127.0.0.1:11434\n", "")
        assert errors(named) == [
            f"nodes[n2].providers[p2].can: no provider of the type native can 'rerank', expected {known}"
        ]

    def test_a_model_is_listed_once(self) -> None:
        assert errors(FLEET.replace("[served-2]", "[served-2, served-2]")) == [
            "nodes[n2].providers[p2].models: 'served-2' is listed 2 times"
        ]


class TestAdapters:
    @pytest.mark.parametrize("kind", ["cli", "native"])
    def test_what_runs_on_the_node_has_its_options_there(self, kind: str) -> None:
        assert errors(provider("options: {a: b}", base=f"type: {kind}, profile: x")) == [
            f"nodes[n].providers[p].options[a]: the type {kind} has no such option, expected none"
        ]

    @pytest.mark.parametrize("call", ["/v1/chat/completions", "/v1/models/", "/api/chat"])
    def test_an_endpoint_is_a_root_and_no_call(self, call: str) -> None:
        kind = "ollama" if "api" in call else "vllm"
        [found] = warnings(provider("", base=f"type: {kind}, endpoint: 'http://h:1{call}'"))
        assert found.startswith("nodes[n].providers[p].endpoint: requests go to paths behind the endpoint")
        assert warnings(provider("", base=f"type: {kind}, endpoint: 'http://h:1/v1'")) == []

    @pytest.mark.parametrize("key", ["type: vllm", "endpoint: 'http://h'", "endpoint_env: E", "api_key_env: K"])
    def test_adapter_and_own_settings_exclude_each_other(self, key: str) -> None:
        adapters = "adapters: [{name: a, type: vllm, endpoint: 'http://h'}], providers"
        text = provider(f"adapter: a, {key}", base="").replace("providers: [\n", f"{adapters}: [\n")
        name = key.split(":")[0]
        assert errors(text) == [
            f"nodes[n].providers[p].{name}: {name} stands beside adapter, expected one of them: the adapter has its own"
        ]

    def test_one_of_them_is_needed(self) -> None:
        (found,) = errors(provider("", base=""))
        assert found.startswith("nodes[n].providers[p]: has neither adapter nor type")

    def test_adapter_names_are_known(self) -> None:
        assert errors(provider("adapter: a", base="")) == [
            "nodes[n].providers[p].adapter: the Node has no adapter a, there are none"
        ]
        adapters = "adapters: [{name: claude, type: vllm, endpoint: 'http://h'}], providers"
        text = provider("adapter: cloude", base="").replace("providers: [\n", f"{adapters}: [\n")
        assert errors(text) == ["nodes[n].providers[p].adapter: the Node has no adapter cloude, did you mean claude?"]

    def test_an_adapter_of_another_node_is_not_known(self) -> None:
        text = provider("adapter: a", base="").replace(
            "nodes: [", "nodes: [{id: o, adapters: [{name: a, type: vllm, endpoint: 'http://h'}]}, "
        )
        assert any("the Node has no adapter a" in one for one in errors(text))

    @pytest.mark.parametrize("kind", [kind for kind in ADAPTER_OF_TYPE if kind not in ("cli", "native")])
    def test_servers_need_one_endpoint(self, kind: str) -> None:
        assert errors(provider("", base=f"type: {kind}, endpoint_env: URL")) == []
        hint = "; an Ollama usually listens on http://127.0.0.1:11434" if kind == "ollama" else ""
        assert errors(provider("", base=f"type: {kind}")) == [
            f"nodes[n].providers[p]: expected one of endpoint and endpoint_env, got neither{hint}"
        ]
        assert errors(provider("", base=f"type: {kind}, endpoint: 'http://h', endpoint_env: E")) == [
            "nodes[n].providers[p]: expected one of endpoint and endpoint_env, got both"
        ]

    @pytest.mark.parametrize(
        ("base", "message"),
        [
            (
                "type: ollama, endpoint: 'http://h', options: {num_ctx: many}",
                "options[num_ctx]: expected a whole number of at least 1, got 'many'",
            ),
            (
                "type: ollama, endpoint: 'http://h', options: {num_cxt: '8'}",
                "options[num_cxt]: the type ollama has no such option, expected keep_alive, main_gpu, num_batch, "
                "num_ctx, num_gpu, num_keep, num_thread, shift, think, truncate, use_mmap",
            ),
            (
                "type: vllm, endpoint: 'http://h', options: {num_ctx: '8'}",
                "options[num_ctx]: the type openai_compat has no such option, expected none",
            ),
        ],
    )
    def test_options_are_those_of_the_type(self, base: str, message: str) -> None:
        assert errors(provider("", base=base)) == [f"nodes[n].providers[p].{message}"]

    def test_an_option_that_is_no_text_is_found_once(self) -> None:
        assert errors(provider("", base="type: ollama, endpoint: 'http://h', options: {num_ctx: 8192}")) == [
            "nodes[n].providers[p].options[num_ctx]: expected a text, got a number '8192'; put it in quotes"
        ]

    def test_options_beside_an_adapter_are_refused(self) -> None:
        text = provider("adapter: a, options: {num_ctx: '8'}", base="")
        assert any("options stands beside adapter, expected one of them" in one for one in errors(text))

    @pytest.mark.parametrize("kind", ["cli", "native"])
    def test_what_runs_on_the_node_needs_a_profile_and_no_url(self, kind: str) -> None:
        assert errors(provider("", base=f"type: {kind}, profile: x")) == []
        assert errors(provider("", base=f"type: {kind}")) == [
            f"nodes[n].providers[p]: is missing profile, which the type {kind} needs"
        ]
        assert errors(provider("", base=f"type: {kind}, profile: x, endpoint: 'http://h'")) == [
            f"nodes[n].providers[p].endpoint: has no meaning for the type {kind}, expected profile"
        ]

    def test_a_server_has_no_profile(self) -> None:
        assert errors(provider("profile: x")) == [
            "nodes[n].providers[p].profile: has no meaning for the type vllm, expected endpoint or endpoint_env"
        ]

    @pytest.mark.parametrize("url", ["http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/"])
    def test_an_endpoint_may_end_in_the_version_of_the_api(self, url: str) -> None:
        """The Node asks the same URL for each spelling: see tests/unit/node/adapters/test_http_rules.py."""
        assert findings(provider("", base=f"type: vllm, endpoint: '{url}'")) == []


class TestLongContext:
    def test_the_budget_holds(self) -> None:
        extra = "context_window_tokens: 100, long_context_capacity: 3, total_context_tokens: {}"
        assert errors(provider(extra.format(300))) == []
        assert errors(provider(extra.format(299))) == [
            "nodes[n].providers[p].total_context_tokens: "
            "context_window_tokens 100 x long_context_capacity 3 is 300, expected at most 299"
        ]

    def test_the_models_window_counts_where_the_provider_has_none(self) -> None:
        text = provider("long_context_capacity: 3, total_context_tokens: 299")
        text = text.replace("{id: m, providers: {p: s}}", "{id: m, providers: {p: s}, context_window_tokens: 100}")
        assert errors(text) == [
            "nodes[n].providers[p].total_context_tokens: "
            "models[m].context_window_tokens 100 x long_context_capacity 3 is 300, expected at most 299"
        ]
        own = text.replace("total_context", "context_window_tokens: 99, total_context")
        assert errors(own) == []

    def test_without_long_slots_or_total_nothing_is_demanded(self) -> None:
        assert findings(provider("context_window_tokens: 100, total_context_tokens: 1")) == []
        assert findings(provider("context_window_tokens: 100000, long_context_capacity: 3")) == []

    def test_a_total_that_cannot_be_checked_is_a_warning(self) -> None:
        (found,) = warnings(provider("long_context_capacity: 1, total_context_tokens: 10"))
        assert "cannot be checked" in found

    def test_long_above_capacity_is_a_warning(self) -> None:
        assert errors(provider("long_context_capacity: 5")) == []
        assert warnings(provider("long_context_capacity: 5")) == [
            "nodes[n].providers[p].long_context_capacity: 5 is above capacity 4: a long request takes one slot of each"
        ]

    UNUSED = "nodes[n].providers[p].long_context_capacity: no request can use these slots: "

    def test_a_window_under_the_threshold_is_a_warning(self) -> None:
        text = provider("context_window_tokens: 99999, long_context_capacity: 1")
        assert warnings(text) == [
            f"{self.UNUSED}context_window_tokens 99999 is below openai.long_context_threshold_tokens 100000"
        ]
        assert errors(text) == []
        assert findings(text.replace("99999", "100000")) == []
        assert findings(text.replace("long_context_capacity: 1", "long_context_capacity: 0")) == []

    def test_the_threshold_of_the_file_counts(self) -> None:
        text = provider("context_window_tokens: 8000, long_context_capacity: 1")
        assert findings("openai: {long_context_threshold_tokens: 8000}\n" + text) == []
        assert "is below openai.long_context_threshold_tokens 8001" in "".join(
            warnings("openai: {long_context_threshold_tokens: 8001}\n" + text)
        )

    def test_the_largest_window_of_the_models_counts_where_all_give_one(self) -> None:
        text = provider("long_context_capacity: 1")
        two = "models: [{id: m, providers: {p: s}%s}, {id: o, providers: {p: s}%s}]\n"
        head, _, nodes = text.partition("\n")
        assert head == "models: [{id: m, providers: {p: s}}]"
        small, large = ", context_window_tokens: 10", ", context_window_tokens: 200000"
        assert findings(two % (small, "") + nodes) == []
        assert findings(two % (small, large) + nodes) == []
        assert warnings(two % (small, small.replace("10", "20")) + nodes) == [
            f"{self.UNUSED}models[o].context_window_tokens 20 is below openai.long_context_threshold_tokens 100000"
        ]

    def test_a_wrong_threshold_is_one_finding(self) -> None:
        text = provider("context_window_tokens: 10, long_context_capacity: 1")
        (found,) = findings("openai: {long_context_threshold_tokens: 1e5}\n" + text)
        assert found.path == "openai.long_context_threshold_tokens"


class TestPrincipals:
    def token(self, ref: str, digest: str, who: str = "u") -> str:
        return f"{{token_ref: {ref}, token_hash_sha256: {digest}, principal_ref: {who}}}"

    def tokens(self, *entries: str) -> str:
        return f"openai: {{principal_tokens: [{', '.join(entries)}]}}\n"

    def test_one_principal_may_have_several_tokens(self) -> None:
        text = self.tokens(self.token("a", HASH_A), self.token("b", HASH_B))
        assert [one.principal_ref for one in accepted(text).config.openai.principal_tokens] == ["u", "u"]

    def test_token_ref_is_given_once(self) -> None:
        assert errors(self.tokens(self.token("a", HASH_A), self.token("a", HASH_B))) == [
            "openai.principal_tokens[a].token_ref: token_ref a is given twice, first in line 1"
        ]

    def test_hash_is_given_once_in_either_case_and_not_repeated(self) -> None:
        (found,) = errors(self.tokens(self.token("a", HASH_A), self.token("b", HASH_A.upper(), "v")))
        assert found == (
            "openai.principal_tokens[b].token_hash_sha256: this token_hash_sha256 is given twice, first in line 1"
        )

    def test_demanding_a_principal_that_nobody_can_be_is_a_warning(self) -> None:
        assert "every request will be answered 401" in warnings("openai: {require_principal: true}")[0]


class TestNodeTokens:
    def test_a_node_without_hash_is_a_warning(self) -> None:
        (found,) = warnings("nodes: [{id: n}]")
        assert found.startswith("nodes[n]: no token_hash_sha256: this Node cannot register")

    def test_a_shared_token_is_a_warning(self) -> None:
        assert "each can pass for the other" in warnings(FLEET.replace(HASH_B, HASH_A))[0]


class TestProviderAuth:
    def test_defaults_when_enabled(self) -> None:
        auth = accepted("openai: {provider_auth: {enabled: true}}").config.openai.provider_auth
        assert (auth.from_header, auth.target_header, auth.scheme, auth.required) == (
            "X-IOP-Provider-Authorization",
            "Authorization",
            "Bearer",
            True,
        )

    def test_off_by_default(self) -> None:
        assert accepted("edge: {}").config.openai.provider_auth.enabled is False

    @pytest.mark.parametrize("key", ["from_header", "target_header"])
    def test_headers_that_frame_the_message_are_refused(self, key: str) -> None:
        (found,) = errors(f"openai: {{provider_auth: {{enabled: true, {key}: Content-Length}}}}")
        assert found.startswith(f"openai.provider_auth.{key}: Content-Length frames the message")

    def test_a_header_is_a_name(self) -> None:
        (found,) = errors("openai: {provider_auth: {from_header: 'X Y'}}")
        assert found.endswith("expected the name of an HTTP header")

    def test_forwarding_callers_own_credentials_is_a_warning(self) -> None:
        tokens = f"principal_tokens: [{{token_ref: a, token_hash_sha256: {HASH_A}, principal_ref: u}}]"
        text = f"openai: {{{tokens}, provider_auth: {{enabled: true, from_header: Authorization}}}}"
        assert "they will reach the provider" in warnings(text)[0]


class TestWhatThisBuildDoesNotServe:
    @pytest.mark.parametrize("section", ["a2a", "control_plane", "bootstrap"])
    def test_enabling_is_refused(self, section: str) -> None:
        (found,) = errors(f"{section}: {{enabled: true}}")
        assert found.startswith(f"{section}.enabled: this build does not serve ")

    def test_their_keys_are_read(self) -> None:
        text = "a2a: {listen: '127.0.0.1:9'}\ncontrol_plane: {address: 'h:9'}\nbootstrap: {artifact_path: /x}\n"
        config = accepted(text).config
        assert config.bootstrap.artifact_path == "/x"
        assert config.a2a.listen == "127.0.0.1:9"

    @pytest.mark.parametrize("section", ["edge", "openai"])
    def test_tls_is_read(self, section: str) -> None:
        tls = getattr(accepted(f"{section}: {{tls: {{cert_file: /c, key_file: /k}}}}").config, section).tls
        assert (tls.cert_file, tls.key_file, tls.client_ca_file) == ("/c", "/k", None)


class TestListenersAndLink:
    @pytest.mark.parametrize(
        ("edge", "openai"),
        [
            ("127.0.0.1:9000", "127.0.0.1:9000"),
            ("0.0.0.0:9000", "127.0.0.1:9000"),
            ("127.0.0.1:9000", "0.0.0.0:9000"),
            ("0.0.0.0:9000", "localhost:9000"),
            ("localhost:9000", "127.0.0.1:9000"),
            ("[::1]:9000", "LOCALHOST:9000"),
            ("Host.Example:9000", "host.example:9000"),
        ],
    )
    def test_one_of_two_cannot_be_bound(self, edge: str, openai: str) -> None:
        text = f"edge: {{listen: '{edge}', insecure: true}}\nopenai: {{listen: '{openai}', insecure: true}}"
        what = "is the address" if edge == openai else f"takes the address {edge}"
        assert [str(one) for one in findings(text)] == [
            f"f:2:18: error: openai.listen: openai.listen {openai} {what} of edge.listen too"
        ]

    @pytest.mark.parametrize(
        ("edge", "openai"),
        [
            ("127.0.0.1:9000", "127.0.0.1:9001"),
            ("127.0.0.1:9000", "127.0.0.2:9000"),
            ("10.0.0.1:9000", "10.0.0.2:9000"),
            ("0.0.0.0:9000", "[::1]:9000"),
            ("0.0.0.0:0", "0.0.0.0:0"),
        ],
    )
    def test_both_can_be_bound(self, edge: str, openai: str) -> None:
        text = f"edge: {{listen: '{edge}', insecure: true}}\nopenai: {{listen: '{openai}', insecure: true}}"
        assert findings(text) == []

    def test_the_one_that_is_written_down_is_named(self) -> None:
        (found,) = findings("admin: {}\nedge: {id: a, listen: '127.0.0.1:8082'}")
        assert (found.line, found.column, found.path) == (2, 23, "edge.listen")

    def test_two_listeners_have_two_addresses(self) -> None:
        assert errors("openai: {listen: '127.0.0.1:8081'}") == [
            "openai.listen: openai.listen 127.0.0.1:8081 is the address of edge.listen too"
        ]
        assert errors("observe: {listen: '127.0.0.1:8082'}") == [
            "observe.listen: observe.listen 127.0.0.1:8082 is the address of admin.listen too"
        ]

    def test_port_zero_is_a_free_port_each(self) -> None:
        text = "edge: {listen: '127.0.0.1:0'}\nopenai: {listen: '127.0.0.1:0'}\nadmin: {listen: '127.0.0.1:0'}\n"
        assert errors(text) == []

    def test_silence_is_longer_than_two_heartbeats(self) -> None:
        assert errors("edge: {link: {heartbeat_ms: 50, silence_ms: 100}}") == []
        (found,) = errors("edge: {link: {heartbeat_ms: 8000}}")
        assert found.startswith("edge.link.heartbeat_ms: silence_ms 15000 is below twice heartbeat_ms 8000")

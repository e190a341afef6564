"""LiteLLM's SDK as a client: OpenAI's and Anthropic's side, whole, streamed, refused. Argument: the base URL."""

from __future__ import annotations

import sys
from hashlib import sha256

import litellm

WORDS = "w0 w1 w2 w3 w4 "
base = sys.argv[1]
litellm.num_retries = 0
litellm.suppress_debug_info = True
messages = [{"role": "user", "content": "hi"}]
common = {"api_base": base, "api_key": "any", "messages": messages}

whole = litellm.completion(model="openai/m", **common)
assert whole.choices[0].message.content == WORDS, whole
assert whole.usage.completion_tokens == 5, whole
pieces = litellm.completion(model="openai/m", stream=True, **common)
assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == WORDS
claude = litellm.completion(model="anthropic/m", **{**common, "api_base": base.removesuffix("/v1")})
assert claude.choices[0].message.content == WORDS, claude
try:
    litellm.completion(model="openai/mm", **common)
except litellm.NotFoundError:
    pass
else:
    raise AssertionError("an unknown model was answered")
vectors = litellm.embedding(model="openai/m", input=["a", "b"], api_base=base, api_key="any", encoding_format="float")
assert len(vectors.data) == 2, vectors
heard = litellm.transcription(
    model="openai/m", file=("a.wav", bytes(range(256)) * 99), api_base=base, api_key="any", response_format="json"
)
assert heard.text == f"a.wav {sha256(bytes(range(256)) * 99).hexdigest()} as served", heard
print("LiteLLM: whole, streamed, Anthropic's API, refused, embedded, transcribed")

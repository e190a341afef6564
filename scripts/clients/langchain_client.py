"""LangChain's ChatOpenAI and OpenAIEmbeddings: whole, streamed, in a batch, refused. Argument: the base URL."""

from __future__ import annotations

import sys

import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

WORDS = "w0 w1 w2 w3 w4 "
base = sys.argv[1]

chat = ChatOpenAI(model="m", base_url=base, api_key="any", max_retries=0)
answered = chat.invoke("hi")
assert answered.content == WORDS, answered
assert answered.usage_metadata["output_tokens"] == 5, answered
assert "".join(piece.content for piece in chat.stream("hi")) == WORDS
patient = ChatOpenAI(model="m", base_url=base, api_key="any", max_retries=8)
assert [each.content for each in patient.batch(["a", "b", "c"])] == [WORDS] * 3
try:
    ChatOpenAI(model="mm", base_url=base, api_key="any", max_retries=0).invoke("hi")
except openai.NotFoundError as error:
    code = error.code
else:
    raise AssertionError("an unknown model was answered")
assert code == "model_not_found", code
embed = OpenAIEmbeddings(model="m", base_url=base, api_key="any", check_embedding_ctx_length=False)
assert embed.embed_documents(["a", "b"]) == [[0.0, 1.0]] * 2
print("LangChain: whole, streamed, batch, refused, embedded")

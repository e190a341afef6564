#!/usr/bin/env bash
# Another maker's client against a running Edge: the openai package of npm, whole, streamed, aborted, and its errors.
# usage: npm-client-check.sh PORT MODEL [audio]     audio: the model also says what file came, as tests/fakes/all_apis.py
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund 'openai@^7' >/dev/null
cat >check.mjs <<'JS'
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import OpenAI from "openai";

const [port, model, audio] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `http://127.0.0.1:${port}/v1`, apiKey: "any", maxRetries: 0 });
const messages = [{ role: "user", content: "hello there" }];

const whole = await client.chat.completions.create({ model, messages, max_tokens: 16 });
assert.ok(whole.choices[0].message.content.length > 0);
assert.ok(whole._request_id);

let text = "";
for await (const chunk of await client.chat.completions.create({ model, messages, max_tokens: 16, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.ok(text.length > 0);

const left = await client.chat.completions.create({ model, messages, stream: true });
for await (const chunk of left) {
  left.controller.abort();
  break;
}

assert.ok((await client.models.list()).data.some((entry) => entry.id === model));
await assert.rejects(client.chat.completions.create({ model: `${model}-x`, messages }), (error) => {
  assert.ok(error instanceof OpenAI.NotFoundError);
  assert.equal(error.code, "model_not_found");
  assert.ok(error.requestID);
  return true;
});
if (audio) {
  const bytes = new Uint8Array(300_000).map((_, at) => at % 251);
  const heard = await client.audio.transcriptions.create({ model, file: new File([bytes], 'a "b".wav') });
  const hash = createHash("sha256").update(bytes).digest("hex");
  assert.ok(heard.text.includes(` ${hash} as `), heard.text);
}
console.log("npm client: whole, streamed, aborted, listed, refused as it must be");
JS
node check.mjs "$@"

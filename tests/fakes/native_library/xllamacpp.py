"""Stands for the wheel xllamacpp in a worker process: put this folder first on PYTHONPATH.

What it does beside answering is said by files next to the model and by the words of a chat:

    hold      a FIFO: the constructor waits until somebody opens it for writing, and holds Python's lock meanwhile
    chats     answered word by word with their last message; `gate-NAME` waits for the file NAME or for the run's end,
              `abort` writes a line to standard error and aborts, `forever` is said until nobody listens
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Callback = Callable[[bytes], bool | None]


class CommonParams:
    def __init__(self) -> None:
        self.model = SimpleNamespace(path="")
        self.cpuparams = SimpleNamespace(n_threads=-1)
        self.cpuparams_batch = SimpleNamespace(n_threads=-1)
        self.n_ubatch = 512
        self.hostnames: list[str] = []


def abort() -> None:
    os.write(2, b"some line before\nmodel.cpp:7: GGML_ASSERT(n > 0) failed\n")
    os.abort()


class Server:
    def __init__(self, parameters: Any) -> None:
        self.folder = Path(parameters.model.path).parent
        hold = self.folder / "hold"
        if hold.exists():
            # By PyDLL, which does not give Python's lock up: as the real constructor.
            ctypes.PyDLL(None).open(os.fsencode(hold), os.O_RDONLY)

    def handle_chat_completions(self, prompt: bytes, callback: Callback) -> None:
        words = json.loads(prompt)["messages"][-1]["content"].split()
        for said in self.words_of(words, callback):
            if callback(chunk(choices=[{"index": 0, "delta": {"content": said}}])):
                return
        callback(chunk(choices=[{"index": 0, "finish_reason": "stop", "delta": {}}]))
        callback(chunk(choices=[], usage={"prompt_tokens": 1, "completion_tokens": len(words)}))

    def words_of(self, words: list[str], callback: Callback) -> Iterator[str]:
        for word in words:
            if word.startswith("gate-"):
                while not (self.folder / word.removeprefix("gate-")).exists():
                    if callback(b"null"):
                        break
                    time.sleep(0.002)
            while word == "forever":
                yield word
            if word == "abort":
                abort()
            yield word

    def handle_completions(self, prompt: bytes, callback: Callback) -> None:
        text = json.loads(prompt)["prompt"]
        callback(chunk(choices=[{"index": 0, "text": text, "finish_reason": "stop"}]))

    def handle_embeddings(self, prompt: bytes) -> bytes:
        texts = json.loads(prompt)["input"]
        data = [{"index": index, "embedding": [0.5] * 1024} for index in range(len(texts))]
        return chunk(data=data, usage={"prompt_tokens": len(texts)})


def chunk(**fields: Any) -> bytes:
    return json.dumps(fields).encode()

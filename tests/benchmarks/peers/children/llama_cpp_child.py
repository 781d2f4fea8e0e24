"""llama.cpp's server, over its HTTP API. Runs under any Python with torch, transformers and gguf,
which converting the model needs; `programs` is the folder of llama-server and llama-quantize."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from serve import Engine, Made, Options, Prompts, convert, serve

FORMATS = {16: "bf16", 8: "q8_0", 4: "q4_0"}
CONVERTER = "convert_hf_to_gguf.py"
START_S = 120.0
SLACK = 32  # tokens of a slot beyond those that are asked for


def converted(options: Options, programs: Path) -> Path:
    """The model as GGUF; made once and kept in `cache`."""
    model, cache, weights = Path(options["model"]), Path(options["cache"]), FORMATS[options["bits"]]
    whole = cache / f"{model.name}-bf16.gguf"
    if not whole.exists():
        converter = next(
            (found for folder in (programs, *programs.parents)
             if (found := folder / CONVERTER).is_file()),
            None,
        )  # fmt: skip
        if converter is None:
            raise FileNotFoundError(f"no {CONVERTER} in {programs} or above it")
        unfinished = whole.with_suffix(".unfinished")
        code = Path(__file__).with_name("llama_cpp_convert.py")
        convert([sys.executable, str(code), str(converter), str(model), str(unfinished)])
        unfinished.rename(whole)
    target = cache / f"{model.name}-{weights}.gguf"
    if not target.exists():
        unfinished = target.with_suffix(".unfinished")
        program = str(programs / "llama-quantize")
        convert([program, str(whole), str(unfinished), weights])
        unfinished.rename(target)
    return target


class Server:
    """llama-server with as many slots as a run has prompts. Slots divide the context evenly and
    each step attends over what they hold, so that other runs get a server of their own."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._shape = (0, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def fit(self, slots: int, tokens: int) -> None:
        """Have `slots` slots of at least `tokens` tokens."""
        if self._process is not None and self._shape[0] == slots and self._shape[1] >= tokens:
            return
        self.stop()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        size = ["--parallel", str(slots), "--ctx-size", str(slots * tokens)]
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        self._process = subprocess.Popen([*self._command, *address, *size])
        self._shape = (slots, tokens)
        self._wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _wait(self) -> None:
        assert self._process is not None
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError("llama-server did not start")


def completion(port: int, prompt: list[int], num_output: int) -> Iterator[int]:
    """Counts of tokens, as the server streams them."""
    body = {
        "prompt": prompt, "n_predict": num_output, "temperature": 0.0, "samplers": ["top_k"],
        "top_k": 1, "ignore_eos": True, "cache_prompt": True, "stream": True,
        "return_tokens": True,
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/completion", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"llama-server: {response.status} {response.read()[:200]!r}")
    made = 0
    for line in response:
        if not line.startswith(b"data: "):
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise RuntimeError(f"llama-server: {chunk['error']}")
        # tokens of an unfinished character come with the last chunk, which has no ids
        count = chunk["tokens_predicted"] - made if chunk.get("stop") else len(chunk["tokens"])
        made += count
        if count:
            yield count
        if chunk.get("stop"):
            break
    connection.close()


def load(options: Options) -> Engine:
    programs = Path(options["programs"]).resolve()
    threads = str(options["num_threads"])
    program = str(programs / "llama-server")
    cache = {16: "f16", 8: "q8_0"}[options["kv_bits"]]
    server = Server([
        program, "--model", str(converted(options, programs)), "--threads", threads,
        "--threads-batch", threads, "--batch-size", "2048", "--no-kv-unified", "--no-webui",
        "--cache-type-k", cache, "--cache-type-v", cache,
    ])  # fmt: skip

    def run(prompts: Prompts, num_output: int, made: Made) -> None:
        errors: list[BaseException] = []

        def one(index: int) -> None:
            try:
                for count in completion(server.port, prompts[index], num_output):
                    made(index, count)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def fitted(prompts: Prompts, num_output: int) -> None:
        server.fit(len(prompts), max(map(len, prompts)) + num_output + SLACK)

    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    version = (said.stdout + said.stderr).strip().splitlines()[0]
    return Engine(f"llama.cpp {version}", run, fitted, server.stop)


if __name__ == "__main__":
    serve(load)

#!/usr/bin/python3
"""Published client libraries, unmodified, against the real server.

usage: clients_test.py BINARY [NAME_PATTERN...]

Needs node and npm; the first run fetches the packages of clients/package-lock.json. NAME_PATTERN
runs only the tests whose names match.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from serving import NANO, Server, install_packages

CLIENTS = Path(__file__).resolve().parent / "clients"
MIN_NODE = 18
MIN_TESTS = 80  # so that tests which are not found are noticed
TIMEOUT = 600  # seconds; generous, for machines that do other work
KEYS = {  # also in clients/harness.mjs
    "keys": [
        {"name": "one", "key": "sk-the-right-key"},
        {"name": "few", "key": "sk-one-at-a-time", "max_concurrent_requests": 1},
    ]
}


def check_node():
    version = subprocess.check_output(["node", "--version"], text=True).strip()
    if int(re.match(r"v(\d+)", version)[1]) < MIN_NODE:
        sys.exit(f"node: found {version}, expected v{MIN_NODE} or newer")


def model_with_much_room(folder):
    """A script needs no weights: its context may be longer than nano's."""
    folder.mkdir()
    config = json.loads((NANO / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 262144
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "generation_config.json"):
        shutil.copy(NANO / name, folder)
    return folder


def run_tests(binary, folder, patterns):
    script = folder / "script.jsonl"
    script.write_bytes(subprocess.check_output(["node", CLIENTS / "script.mjs"], timeout=TIMEOUT))
    keys = folder / "keys.json"
    keys.write_text(json.dumps(KEYS))
    model = model_with_much_room(folder / "scripted")
    scripted = ["--model", model, "--engine", f"scripted={script}"]
    flags = {  # as clients/harness.mjs describes them
        "NANO": ["--model", NANO],
        "SCRIPTED": scripted,
        "KEYED": [*scripted, "--api-key-file", keys],
        "BUSY_503": [*scripted, "--max-open-requests", 1],
        "BUSY_429": [*scripted, "--max-open-requests", 1, "--overload-status", 429],
    }
    servers = {}
    try:
        for name, values in flags.items():
            servers[name] = Server(binary, *values, "--no-access-log", "--shutdown-timeout", 0)
        # Nothing of the machine's own may change where clients send what they do.
        env = {k: v for k, v in os.environ.items() if not re.match("LANGSMITH|LANGCHAIN|OPENAI", k)}
        for name, server in servers.items():
            env[f"MILLRACE_{name}"] = f"http://127.0.0.1:{server.port}"
        # Of Node.js 18; later it is the default.
        env["NODE_OPTIONS"] = "--experimental-global-webcrypto"
        # One file at a time: tests look at the number of requests in the server.
        command = ["node", "--test", "--test-concurrency=1", "--test-reporter=spec",
                   *(f"--test-name-pattern={pattern}" for pattern in patterns),
                   *sorted(CLIENTS.glob("*.test.mjs"))]
        run = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT)
        print(run.stdout)
    finally:
        statuses = {name: server.stop() for name, server in servers.items()}
    if run.returncode != 0:
        sys.exit("tests failed")
    if any(statuses.values()):
        sys.exit(f"servers ended with {statuses}")
    num_passed = int(re.search(r"^ℹ pass (\d+)$", run.stdout, re.M)[1])
    if not patterns and num_passed < MIN_TESTS:
        sys.exit(f"found {num_passed} tests, expected {MIN_TESTS}")


if __name__ == "__main__":
    install_packages(CLIENTS)
    check_node()
    with tempfile.TemporaryDirectory() as temporary:
        run_tests(sys.argv[1], Path(temporary), sys.argv[2:])

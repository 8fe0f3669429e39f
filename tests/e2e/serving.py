"""What the tests of the server share: a server of their own, and plain HTTP to talk to it."""
import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NANO = ROOT / "models" / "nano"
TIMEOUT = 300  # seconds; generous, for machines that do other work


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """`millrace serve`, ended by its process id."""

    def __init__(self, binary, *flags, port=None, env=None, ready=True):
        self.port = port or free_port()
        self.log = []
        self.process = subprocess.Popen(
            [binary, "serve", "--port", str(self.port), *[str(f) for f in flags]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        if ready:
            self.wait_until_ready()

    @contextmanager
    def patience(self):
        """Lines of the log that do not come end the server: reading them has no limit of its own."""
        watch = threading.Timer(TIMEOUT, self.process.kill)
        watch.start()
        try:
            yield
        finally:
            watch.cancel()

    def wait_until_ready(self):
        """Its first word is that it serves."""
        with self.patience():
            while line := self.process.stderr.readline().decode():
                self.log.append(line)
                if "serving" in line:
                    # Nobody reads the rest: it goes where nothing can block on it.
                    self.drain = subprocess.Popen(
                        ["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL
                    )
                    self.process.stderr.close()
                    return
        raise AssertionError(f"the server did not start: {''.join(self.log)}")

    def next_event(self, message=None):
        """The next line of a JSON log, of those with that message. Requires: ready=False."""
        with self.patience():
            while line := self.process.stderr.readline():
                event = json.loads(line)
                if message in (None, event["message"]):
                    return event
        raise AssertionError(f"the log has ended; expected {message or 'one more line'}")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()

    def stop(self, timeout=TIMEOUT):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout)
        if hasattr(self, "drain"):
            self.drain.wait(timeout)
        return status

    def request(self, method, path, body=None, headers=None, timeout=TIMEOUT):
        """(status, headers with lower-case names, body) of a request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if body is not None and "Content-Type" not in headers:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, content
        finally:
            connection.close()

    def get(self, path, **options):
        status, _, content = self.request("GET", path, **options)
        return status, content

    def post(self, path, body, **options):
        """(status, parsed body)."""
        status, _, content = self.request("POST", path, body, **options)
        return status, json.loads(content) if content else None

    def stats(self):
        return json.loads(self.get("/v1/millrace/stats")[1])

    def wait_until_idle(self, seconds):
        """Whether nothing runs and no block is in use within that time."""
        end = time.monotonic() + seconds
        while True:
            stats = self.stats()
            busy = stats["requests"]["running"] + stats["requests"]["waiting"]
            if busy == 0 and stats["requests"]["open"] == 0 and stats["kv"]["blocks_used"] == 0:
                return True
            if time.monotonic() > end:
                return False
            time.sleep(0.02)

    def resident_bytes(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(l for l in status.splitlines() if l.startswith("VmRSS")).split()[1]) * 1024


def install_packages(folder):
    """Those of its package-lock.json, unless they are there: npm keeps a list of what it installed."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is not installed: apt-get install nodejs npm")
    installed = folder / "node_modules/.package-lock.json"
    wanted = json.loads((folder / "package-lock.json").read_text())["packages"]
    wanted.pop("")  # the folder itself
    if installed.exists() and json.loads(installed.read_text())["packages"] == wanted:
        return
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    if subprocess.run(command, cwd=folder, timeout=TIMEOUT).returncode != 0:
        sys.exit("npm ci failed: the packages come from the npm registry")


def sse_events(content):
    """The data of each event; [DONE] as None."""
    events = []
    for block in content.decode().split("\n\n"):
        if block.startswith("data: "):
            data = block[len("data: "):]
            events.append(None if data == "[DONE]" else json.loads(data))
    return events


def text_of(events):
    """The text of a completion's only choice, from its events."""
    return "".join(c["text"] for e in events if e for c in e.get("choices", []))


class Connection:
    """A kept connection of an asyncio client: one request at a time."""

    def __init__(self, port):
        self.port = port
        self.reader = self.writer = None

    async def open(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    def close(self):
        if self.writer:
            self.writer.close()
        self.reader = self.writer = None

    async def send(self, method, path, body=None):
        if self.writer is None:
            await self.open()
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
        if data:
            head += "Content-Type: application/json\r\n"
        self.writer.write(head.encode() + b"\r\n" + data)
        await self.writer.drain()

    async def receive(self):
        """(status, body) of the next answer; closes the connection if the server wants that."""
        status = int((await self.reader.readline()).split()[1])
        headers = {}
        while line := (await self.reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                size = int((await self.reader.readline()).strip() or b"-1", 16)
                if size < 0:
                    raise ConnectionError("the answer was cut off")
                chunk = await self.reader.readexactly(size + 2)
                body += chunk[:-2]
                if size == 0:
                    break
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            self.close()
        return status, body

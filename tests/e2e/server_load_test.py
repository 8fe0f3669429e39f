#!/usr/bin/python3
"""Many clients at once: every answer is that of the request alone, whatever else goes on.

usage: server_load_test.py BINARY [--full] [unittest arguments]
"""
import asyncio
import json
import random
import signal
import sys
import tempfile
import threading
import time
import unittest

from serving import NANO, Connection, Server, free_port, sse_events, text_of

BINARY = None
NUM_STREAMS = 256  # --full: 2,048


def prompt(i):
    return f"{i} Once upon a time there was a king who had {i % 97} sons"


def request(i, stream):
    greedy = i % 2 == 0
    return {
        "prompt": prompt(i),
        "max_tokens": 4 + i % 13,
        "temperature": 0 if greedy else 0.8,
        "seed": i,
        "ignore_eos": True,
        "stream": stream,
    }


async def ask(connection, body):
    await connection.send("POST", "/v1/completions", body)
    status, content = await connection.receive()
    if status != 200:
        raise AssertionError(f"status {status}: {content[:300]}")
    return sse_events(content)


class Load(unittest.TestCase):
    def test_every_stream_of_thousands_says_what_the_request_alone_does(self):
        seqs = max(256, NUM_STREAMS)
        with Server(BINARY, "--model", NANO, "--max-num-seqs", seqs, "--no-access-log") as server:
            alone = []
            for i in range(NUM_STREAMS):
                status, answer = server.post("/v1/completions", request(i, stream=False))
                self.assertEqual(status, 200, answer)
                alone.append(answer["choices"][0]["text"])

            async def all_at_once():
                connections = [Connection(server.port) for _ in range(NUM_STREAMS)]
                results = await asyncio.gather(
                    *[ask(c, request(i, stream=True)) for i, c in enumerate(connections)]
                )
                for c in connections:
                    c.close()
                return results

            results = asyncio.run(all_at_once())
            for i, events in enumerate(results):
                self.assertIsNone(events[-1], "[DONE]")
                self.assertEqual(text_of(events), alone[i], f"request {i}")
            self.assertTrue(server.wait_until_idle(5), server.stats())
            print(f"{NUM_STREAMS} streams at once: {server.resident_bytes() >> 20} MiB resident",
                  file=sys.stderr)

    def test_clients_that_leave_free_everything_at_once(self):
        with Server(BINARY, "--model", NANO, "--no-access-log") as server:
            rng = random.Random(1)

            async def leave(i):
                connection = Connection(server.port)
                body = request(i, stream=i % 3 != 0)
                body["max_tokens"] = 3000
                if i % 5 == 0:
                    body["prompt"] = prompt(i) * 80
                await connection.send("POST", "/v1/completions", body)
                await asyncio.sleep(rng.random() * 1.5)
                connection.writer.transport.abort()

            async def everybody():
                await asyncio.gather(*[leave(i) for i in range(150)])

            asyncio.run(everybody())
            self.assertTrue(server.wait_until_idle(1), server.stats())
            status, answer = server.post("/v1/completions", request(1, stream=False))
            self.assertEqual(status, 200, answer)

    def test_sigterm_ends_what_runs_properly_and_refuses_the_rest(self):
        server = Server(BINARY, "--model", NANO, "--no-access-log")
        statuses = []

        async def under_load():
            running = [Connection(server.port) for _ in range(40)]
            tasks = []
            for i, connection in enumerate(running):
                body = request(i, stream=True)
                body["max_tokens"] = 60
                tasks.append(asyncio.create_task(ask(connection, body)))
            kept = Connection(server.port)
            await kept.send("GET", "/health")
            self.assertEqual((await kept.receive())[0], 200)
            while server_running(server) < 40:
                await asyncio.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.05)
            # On a connection that was there before: told that it is over.
            await kept.send("POST", "/v1/completions", request(1, stream=False))
            statuses.append((await kept.receive())[0])
            late = Connection(server.port)
            try:
                await late.send("GET", "/health")
                statuses.append((await late.receive())[0])
            except (ConnectionError, OSError, IndexError):
                statuses.append("refused")
            return await asyncio.gather(*tasks)

        results = asyncio.run(under_load())
        for i, events in enumerate(results):
            self.assertIsNone(events[-1], "[DONE]")
            reasons = [c["finish_reason"] for e in events if e for c in e["choices"]]
            self.assertEqual([r for r in reasons if r], ["length"], f"request {i}")
        self.assertEqual(statuses, [503, "refused"])
        self.assertEqual(server.stop(), 0)

    def test_the_shutdown_timeout_ends_answers_with_abort(self):
        server = Server(BINARY, "--model", NANO, "--no-access-log", "--shutdown-timeout", "0.2")

        async def under_load():
            connection = Connection(server.port)
            body = {**request(1, stream=True), "max_tokens": 15000}
            task = asyncio.create_task(ask(connection, body))
            while server_running(server) < 1:
                await asyncio.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            return await task

        events = asyncio.run(under_load())
        self.assertIsNone(events[-1], "[DONE]")
        self.assertEqual(events[-2]["choices"][0]["finish_reason"], "abort")
        self.assertEqual(server.stop(), 0)

    def test_a_new_process_takes_over_under_load_and_nothing_is_lost(self):
        port = free_port()
        flags = ["--model", NANO, "--no-access-log", "--take-over"]
        first = Server(BINARY, *flags, port=port)
        expected = {}
        for i in range(8):
            expected[i] = first.post("/v1/completions", request(i, False))[1]["choices"][0]["text"]
        counts = {"answered": 0, "reconnects": 0}

        async def client(c, is_over):
            """Asks again and again on a kept connection, reconnecting when it is told to."""
            connection = Connection(port)
            while not is_over.is_set():
                i = random.randrange(8)
                events = await ask(connection, request(i, stream=True))
                self.assertIsNone(events[-1])
                self.assertEqual(text_of(events), expected[i])
                counts["answered"] += 1
                counts["reconnects"] += connection.writer is None
                if c % 4 == 0:
                    connection.close()  # these need a new connection each time
            connection.close()

        async def under_load():
            is_over = asyncio.Event()
            tasks = [asyncio.create_task(client(c, is_over)) for c in range(24)]
            await asyncio.sleep(0.5)
            loop = asyncio.get_running_loop()
            second = await loop.run_in_executor(None, lambda: Server(BINARY, *flags, port=port))
            status = await loop.run_in_executor(None, first.process.wait)
            before = counts["answered"]
            await asyncio.sleep(1)
            is_over.set()
            await asyncio.gather(*tasks)
            return second, status, counts["answered"] - before

        second, status, answered_after = asyncio.run(under_load())
        try:
            self.assertEqual(status, 0)
            self.assertGreater(answered_after, 0)
            self.assertGreater(counts["reconnects"], 0)
            self.assertEqual(second.get("/health")[0], 200)
        finally:
            self.assertEqual(second.stop(), 0)
            first.stop()

    def test_a_signal_after_the_hand_over_leaves_streams_their_time(self):
        port = free_port()
        # An answer that takes 5 s, however fast the machine is.
        script = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
        self.addCleanup(script.close)
        script.write(json.dumps({"delay_ms": 5, "repeat": "forever", "pieces": [{"text": "word "}]}))
        script.flush()
        flags = ["--engine", "scripted=" + script.name, "--no-access-log", "--take-over"]
        first = Server(BINARY, *flags, port=port)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(first.post(
            "/v1/completions", {"prompt": "Once", "max_tokens": 1000, "ignore_eos": True})))
        thread.start()
        while first.stats()["requests"]["running"] == 0:
            time.sleep(0.01)
        with Server(BINARY, *flags, port=port):
            self.assertEqual(answers, [], "it still runs")
            first.process.send_signal(signal.SIGTERM)
            self.assertEqual(first.process.wait(60), 0)
            thread.join()
        self.assertEqual(answers[0][0], 200)
        self.assertEqual(answers[0][1]["choices"][0]["finish_reason"], "length")

    def test_a_port_in_use_is_refused_without_take_over(self):
        with Server(BINARY, "--model", NANO) as server:
            second = Server(BINARY, "--model", NANO, port=server.port, ready=False)
            _, error = second.process.communicate(timeout=60)
            self.assertEqual(second.process.returncode, 1)
            self.assertIn(f"{server.port}", error.decode())
            self.assertIn("in use", error.decode())


def server_running(server):
    return server.stats()["requests"]["running"]


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    if "--full" in sys.argv:
        sys.argv.remove("--full")
        NUM_STREAMS = 2048
    start = time.monotonic()
    unittest.main(verbosity=1)

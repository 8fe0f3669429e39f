#!/usr/bin/python3
"""The server's own rules, from outside: paths, ids, keys, TLS, limits, overload, deadlines.

usage: server_test.py BINARY [unittest arguments]
"""
import http.client
import json
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

from serving import NANO, Server, sse_events, text_of

BINARY = None
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = [{"role": "user", "content": "What is the capital of France?"}]


def serve(*flags, **options):
    return Server(BINARY, "--model", NANO, "--no-access-log", *flags, **options)


def text(**fields):
    return {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **fields}


class Plain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve("--root-path", "/proxy", "--served-model-name", "first",
                           "--served-model-name", "second", "--admin-key", "boss")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_models_and_names(self):
        status, content = self.server.get("/v1/models")
        models = json.loads(content)
        self.assertEqual([m["id"] for m in models["data"]], ["first", "second"])
        self.assertTrue(Path(models["data"][0]["root"], "tokenizer.json").exists())
        self.assertEqual(json.loads(self.server.get("/v1/models/second")[1])["id"], "second")
        for model in ("first", "second", None):
            status, answer = self.server.post(TEXT, text(model=model))
            self.assertEqual((status, answer["model"]), (200, model or "first"))

    def test_aliases_queries_and_the_root_path(self):
        for path in ("/chat/completions", "/beta/chat/completions", "/v1/chat/completions?beta=true",
                     "/proxy/v1/chat/completions", "/proxy/chat/completions"):
            status, answer = self.server.post(path, {"messages": HI, "max_tokens": 2})
            self.assertEqual(status, 200, (path, answer))
        for path in ("/completions", "/beta/completions", "/proxy/v1/completions"):
            self.assertEqual(self.server.post(path, text())[0], 200, path)
        for path in ("/models", "/proxy/models", "/proxy/health", "/health/live", "/health/ready",
                     "/ping", "/version", "/load", "/server_info", "/openapi.json", "/metrics", "/"):
            self.assertEqual(self.server.get(path)[0], 200, path)
            status, headers, content = self.server.request("HEAD", path)
            self.assertEqual((status, content), (200, b""), path)
        self.assertEqual(self.server.request("POST", "/ping")[0], 200)
        self.assertEqual(set(json.loads(self.server.get("/version")[1])), {"version"})
        self.assertEqual(json.loads(self.server.get("/load")[1]), {"server_load": 0})

    def test_the_page_is_for_browsers(self):
        status, headers, content = self.server.request("GET", "/", headers={"Accept": "text/html"})
        self.assertEqual(status, 200)
        self.assertIn(b"<!doctype html>", content[:100].lower())
        self.assertIn("default-src 'none'", headers["content-security-policy"])
        self.assertEqual(json.loads(self.server.get("/")[1])["name"], "millrace")

    def test_request_ids(self):
        for given, is_kept in [("abc-123", True), ("x" * 128, True), ("x" * 129, False),
                               ("a b", False), ("", False)]:
            _, headers, content = self.server.request(
                "POST", TEXT, text(), headers={"X-Request-Id": given})
            self.assertEqual(headers["x-request-id"] == given, is_kept, given)
            self.assertEqual(json.loads(content)["id"], "cmpl-" + headers["x-request-id"])
        _, headers, content = self.server.request(
            "POST", TEXT, text(request_id="in-the-body"), headers={"X-Request-Id": "a-header"})
        self.assertEqual(headers["x-request-id"], "in-the-body")
        self.assertEqual(json.loads(content)["id"], "cmpl-in-the-body")
        for refused in [{"temperature": 7}, {"model": "nope"}, {"max_tokens": 10**6}]:
            _, headers, _ = self.server.request("POST", TEXT, text(request_id="refused", **refused))
            self.assertEqual(headers["x-request-id"], "refused", refused)
        for wrong in ["a b", "x" * 129, 5]:
            status, answer = self.server.post(TEXT, text(request_id=wrong))
            self.assertEqual((status, answer["error"]["param"]), (400, "request_id"))
        _, one, _ = self.server.request("GET", "/nothing")
        _, two, _ = self.server.request("GET", "/nothing")
        self.assertNotEqual(one["x-request-id"], two["x-request-id"])

    def test_cors(self):
        status, headers, _ = self.server.request(
            "OPTIONS", CHAT, headers={"Origin": "http://a.b", "Access-Control-Request-Method": "POST"})
        self.assertEqual(status, 204)
        self.assertEqual(headers["access-control-allow-origin"], "*")
        self.assertEqual(headers["access-control-allow-methods"], "POST")
        _, headers, _ = self.server.request("OPTIONS", CHAT, headers={
            "Origin": "http://a.b", "Access-Control-Request-Headers": "authorization,content-type"})
        self.assertEqual(headers["access-control-allow-headers"], "authorization,content-type")
        _, headers, _ = self.server.request("GET", "/version", headers={"Origin": "http://a.b"})
        self.assertEqual(headers["access-control-allow-origin"], "*")
        _, headers, _ = self.server.request("GET", "/version")
        self.assertNotIn("access-control-allow-origin", headers)

    def test_a_page_cannot_get_here_under_a_name_of_its_own(self):
        for host, expected in [("127.0.0.1", 200), ("localhost:8000", 200), ("[::1]:80", 200),
                               ("127.8.8.8", 200), ("127.0.0.1.evil.example", 403), ("evil.example", 403), ("localhost.evil", 403),
                               ("evil.example:8000", 403), ("10.0.0.1", 403)]:
            for method, path, body in [("GET", "/v1/models", None), ("POST", TEXT, text())]:
                status, _, content = self.server.request(method, path, body, {"Host": host})
                self.assertEqual(status, expected, (host, content))
        for target, host, expected in [("http://evil.example/version", "127.0.0.1", b" 403 "),
                                       ("http://127.0.0.1/version", "evil.example", b" 200 ")]:
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
                s.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                self.assertIn(expected, s.recv(64), target)
        with serve("--allowed-hosts", "my.name") as server:
            self.assertEqual(server.request("GET", "/health", headers={"Host": "my.name"})[0], 200)
            self.assertEqual(server.request("GET", "/health", headers={"Host": "other"})[0], 403)

    def test_the_token_itself_is_among_its_alternatives(self):
        for stream in (False, True):
            for count in (0, 2):
                body = text(logprobs=count, temperature=1.5, max_tokens=30, seed=-1, stream=stream)
                content = self.server.request("POST", TEXT, body)[2]
                answers = [e for e in sse_events(content) if e] if stream else [json.loads(content)]
                seen = 0
                for logprobs in [a["choices"][0]["logprobs"] for a in answers]:
                    for token, logprob, top in zip(*[logprobs[name] for name in (
                            "tokens", "token_logprobs", "top_logprobs")]):
                        self.assertEqual(top[token], logprob)
                        self.assertIn(len(top), (count, count + 1) if count else (1,))
                        seen += 1
                self.assertEqual(seen, 30)

    def test_content_types(self):
        for type_ in ("application/json", "application/json; charset=utf-8", "Application/JSON",
                      "application/vnd.api+json"):
            status, _, _ = self.server.request(
                "POST", TEXT, json.dumps(text()), {"Content-Type": type_})
            self.assertEqual(status, 200, type_)

    def test_chunked_bodies_and_expect(self):
        body = json.dumps(text()).encode()
        chunks = b"".join(b"1\r\n%c\r\n" % b for b in body) + b"0\r\nX: y\r\n\r\n"
        head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n")
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
            s.sendall(head + b"\r\n" + chunks)
            self.assertIn(b"200 OK", s.recv(64))
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
            s.sendall(head + b"Expect: 100-continue\r\n\r\n")
            self.assertIn(b"100 Continue", s.recv(64))
            s.sendall(chunks)
            self.assertIn(b"200 OK", s.recv(64))

    def test_what_is_refused_before_its_path_counts_is_answered_as_that_path_does(self):
        for path, is_anthropic in [(TEXT, False), ("/v1/messages", True),
                                   ("http://localhost/v1/messages?beta=true", True)]:
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
                s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\n"
                          "Origin: http://a.b\r\nContent-Length: 99999999999\r\n\r\n".encode())
                s.shutdown(socket.SHUT_WR)
                head, _, body = b"".join(iter(lambda: s.recv(4096), b"")).partition(b"\r\n\r\n")
            self.assertIn(b" 413 ", head)
            self.assertIn(b"X-Request-Id: mine\r\n", head + b"\r\n")
            self.assertIn(b"Access-Control-Allow-Origin: *", head)
            error = json.loads(body)
            self.assertEqual(error.get("type") == "error", is_anthropic, error)
            if is_anthropic:
                self.assertEqual(error["error"]["type"], "request_too_large")
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
                s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
                          "Transfer-Encoding: gzip\r\n\r\n".encode())
                s.shutdown(socket.SHUT_WR)
                body = b"".join(iter(lambda: s.recv(4096), b"")).partition(b"\r\n\r\n")[2]
            self.assertEqual(json.loads(body).get("type") == "error", is_anthropic, body)
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
            s.sendall(b"GET /v1/models HTTP/3.0\r\nHost: localhost\r\n\r\n")
            head, _, body = b"".join(iter(lambda: s.recv(4096), b"")).partition(b"\r\n\r\n")
        self.assertIn(b" 505 ", head)
        self.assertEqual(json.loads(body)["error"]["type"], "invalid_request_error")
        with serve("--api-key", "k") as server:
            for extra in ["Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
                          "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]:
                with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
                    s.sendall(f"OPTIONS {TEXT} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a.b\r\n"
                              f"Connection: close\r\n{extra}".encode())
                    answer = b"".join(iter(lambda: s.recv(4096), b""))
                self.assertIn(b"HTTP/1.1 204 ", answer, extra)

    def test_tokenize_sees_what_the_engine_sees(self):
        chat = {"messages": HI, "max_tokens": 1}
        ids = self.server.post("/tokenize", chat)[1]
        usage = self.server.post(CHAT, chat)[1]["usage"]
        self.assertEqual(ids["count"], usage["prompt_tokens"])
        self.assertEqual(ids["count"], len(ids["tokens"]))
        answer = self.server.post(CHAT, {**chat, "return_token_ids": True})[1]
        self.assertEqual(answer["prompt_token_ids"], ids["tokens"])
        plain = self.server.post("/v1/tokenize", {"prompt": "Ciao 😀", "return_token_strs": True})[1]
        bare = self.server.post("/tokenize", {"prompt": "Ciao 😀", "add_special_tokens": False})[1]
        self.assertEqual(plain["tokens"][1:], bare["tokens"])
        self.assertEqual(len(plain["token_strs"]), plain["count"])
        back = self.server.post("/detokenize", {"tokens": bare["tokens"]})[1]
        self.assertEqual(back, {"prompt": "Ciao 😀"})

    def test_tokens_in_and_out(self):
        ids = self.server.post("/tokenize", {"prompt": "Once upon a time"})[1]["tokens"]
        params = {"max_tokens": 8, "temperature": 0, "logprobs": 1}
        status, answer = self.server.post(
            "/inference/v1/generate", {"token_ids": ids, "sampling_params": params, "request_id": "a"})
        self.assertEqual(status, 200, answer)
        choice = answer["choices"][0]
        self.assertEqual(len(choice["token_ids"]), 8)
        self.assertEqual([t["token"] for t in choice["logprobs"]["content"]],
                         [f"token_id:{i}" for i in choice["token_ids"]])
        self.assertEqual(answer["usage"]["prompt_tokens"], len(ids))
        expected = self.server.post(TEXT, text(return_token_ids=True))[1]["choices"][0]["token_ids"]
        self.assertEqual(choice["token_ids"], expected)
        _, _, content = self.server.request(
            "POST", "/inference/v1/generate",
            {"token_ids": ids, "sampling_params": params, "stream": True})
        streamed = [i for e in sse_events(content) if e for c in e["choices"] for i in c["token_ids"]]
        self.assertEqual(streamed, expected)

    def test_exactly_as_many_tokens_as_asked_for(self):
        limit = json.loads(self.server.get("/v1/models")[1])["data"][0]["max_model_len"]
        for n in (1, 2, 37):
            answer = self.server.post(TEXT, text(max_tokens=n, ignore_eos=True))[1]
            self.assertEqual(answer["usage"]["completion_tokens"], n)
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        answer = self.server.post(TEXT, text(prompt=[5] * (limit - 1), max_tokens=1))[1]
        self.assertEqual(answer["usage"]["total_tokens"], limit)
        answer = self.server.post(CHAT, {"messages": HI, "min_tokens": 60, "max_tokens": 90,
                                         "temperature": 0})[1]
        self.assertGreaterEqual(answer["usage"]["completion_tokens"], 60)

    def test_a_seed_says_the_same_alone_and_in_a_crowd(self):
        body = text(temperature=1, seed=42, max_tokens=24, ignore_eos=True, logprobs=2)
        alone = self.server.post(TEXT, body)[1]["choices"]
        crowd = [None] * 64

        def ask(i):
            mine = body if i % 2 == 0 else {**body, "seed": i, "prompt": f"{i} king " * (1 + i % 9)}
            crowd[i] = self.server.post(TEXT, mine)[1]["choices"]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i in range(0, 64, 2):
            self.assertEqual(crowd[i], alone)

    def test_a_deadline_ends_a_request(self):
        long = text(max_tokens=8000, ignore_eos=True)
        status, answer = self.server.request(
            "POST", TEXT, long, {"X-Request-Timeout-Ms": "150"})[::2]
        self.assertEqual(status, 408, answer)
        _, _, content = self.server.request(
            "POST", TEXT, {**long, "stream": True}, {"X-Request-Timeout-Ms": "300"})
        events = sse_events(content)
        self.assertIsNone(events[-1])
        self.assertEqual(events[-2]["choices"][0]["finish_reason"], "abort")
        for bad in ("0", "-1", "soon", "nan"):
            self.assertEqual(
                self.server.request("POST", TEXT, text(), {"X-Request-Timeout-Ms": bad})[0], 400, bad)
        self.assertTrue(self.server.wait_until_idle(2))

    def test_requests_can_be_given_up_by_id(self):
        result = {}

        def ask():
            result["answer"] = self.server.request(
                "POST", TEXT, text(max_tokens=15000, ignore_eos=True, request_id="long-one"))

        thread = threading.Thread(target=ask)
        thread.start()
        while self.server.stats()["requests"]["running"] == 0:
            time.sleep(0.01)
        status, answer = self.server.post("/abort_requests", {"request_ids": ["long-one", "other"]})
        self.assertEqual((status, answer), (200, {"aborted": ["long-one"]}))
        thread.join()
        status, _, content = result["answer"]
        self.assertEqual(status, 200)
        self.assertEqual(json.loads(content)["choices"][0]["finish_reason"], "abort")

    def test_what_is_given_up_at_any_moment_ends_with_abort(self):
        bodies = [text(prompt="word " * 3000, echo=True, logprobs=1, max_tokens=5),
                  text(prompt=["a", "word " * 3000], echo=True, logprobs=0),
                  text(prompt="word " * 3000, prompt_logprobs=1),
                  text(max_tokens=10000, ignore_eos=True)]
        for i in range(24):
            body, answers = bodies[i % len(bodies)], []
            thread = threading.Thread(target=lambda: answers.append(self.server.request(
                "POST", TEXT, body, {"X-Request-Id": f"given-up-{i}"})))
            thread.start()
            time.sleep(i % 6 * 0.01)
            while thread.is_alive():
                self.server.post("/abort_requests", {"request_ids": [f"given-up-{i}"]})
            status, _, content = answers[0]
            self.assertEqual(status, 200, content)
            reasons = {c["finish_reason"] for c in json.loads(content)["choices"]}
            self.assertIn("abort", reasons)

    def test_many_biases_and_prompts_cost_little(self):
        start = time.monotonic()
        status, answer = self.server.post(
            TEXT, text(logit_bias={f"{i:08}": 1 for i in range(100_000)}))
        self.assertEqual(status, 400, answer)
        status, answer = self.server.post(TEXT, text(prompt=["a"] * 3000))
        self.assertEqual((status, answer["error"]["param"]), (400, "prompt"))
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual(self.server.post("/abort_requests", {"request_ids": [1]})[0], 400)

    def test_draining_by_hand(self):
        admin = {"Authorization": "Bearer boss"}
        self.assertEqual(self.server.request("POST", "/drain")[0], 401)
        self.assertEqual(self.server.request("POST", "/drain", headers={
            "Authorization": "Bearer no"})[0], 401)
        self.assertEqual(self.server.request("POST", "/drain", headers=admin)[0], 200)
        try:
            status, headers, content = self.server.request("POST", TEXT, text())
            self.assertEqual(status, 503)
            self.assertEqual(json.loads(content)["error"]["code"], "draining")
            self.assertIn("retry-after", headers)
            self.assertEqual(self.server.get("/health")[0], 503)
            self.assertEqual(self.server.get("/health/live")[0], 200)
        finally:
            self.assertEqual(self.server.request("POST", "/undrain", headers=admin)[0], 200)
        self.assertEqual(self.server.post(TEXT, text())[0], 200)
        self.assertEqual(self.server.request("GET", "/tokenizer_info", headers=admin)[0], 200)


class Keys(unittest.TestCase):
    def test_keys_limits_and_the_usage_log(self):
        with tempfile.TemporaryDirectory() as folder:
            keys, usage = Path(folder, "keys.json"), Path(folder, "usage.jsonl")
            keys.write_text(json.dumps({"keys": [
                {"name": "slow", "key": "sk-slow", "requests_per_minute": 3},
                {"name": "tokens", "key": "sk-tokens", "tokens_per_minute": 10},
                {"name": "one", "key": "sk-one", "max_concurrent_requests": 1},
            ]}))
            with Server(BINARY, "--model", NANO, "--api-key-file", keys, "--usage-log", usage,
                        "--api-key", "sk-flag", env={"MILLRACE_API_KEY": "sk-env"}) as server:
                def ask(headers, **fields):
                    return server.request("POST", TEXT, text(**fields), headers)

                for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "sk-fla"},
                                {"Authorization": "sk-flag"}, {"Authorization": "Bearer "}):
                    status, answered, content = ask(headers)
                    self.assertEqual(status, 401, headers)
                    self.assertEqual(answered["www-authenticate"], "Bearer")
                    self.assertEqual(json.loads(content)["error"]["code"], "invalid_api_key")
                    self.assertNotIn(b"sk-", content)
                for headers in ({"Authorization": "Bearer sk-flag"}, {"x-api-key": "sk-env"},
                                {"authorization": "bearer sk-flag"}):
                    self.assertEqual(ask(headers)[0], 200, headers)
                for path in ("/health", "/ping", "/version", "/metrics", "/"):
                    self.assertEqual(server.get(path)[0], 200, path)
                self.assertEqual(server.get("/v1/models")[0], 401)
                self.assertEqual(server.request("OPTIONS", CHAT)[0], 204)
                info = server.request("GET", "/server_info", headers={"x-api-key": "sk-env"})[2]
                self.assertNotIn(b"sk-", info)

                statuses = [ask({"x-api-key": "sk-slow"})[0] for _ in range(5)]
                self.assertEqual(statuses, [200, 200, 200, 429, 429])
                statuses = [ask({"x-api-key": "sk-tokens"})[0] for _ in range(3)]
                self.assertEqual(statuses, [200, 429, 429])
                _, answered, content = ask({"x-api-key": "sk-tokens"})
                self.assertIn("retry-after", answered)
                self.assertEqual(json.loads(content)["error"]["type"], "rate_limit_error")

                long = {"max_tokens": 4000, "ignore_eos": True}
                thread = threading.Thread(target=ask, args=({"x-api-key": "sk-one"},), kwargs=long)
                thread.start()
                while server.request("GET", "/load", headers={"x-api-key": "sk-env"})[2] != \
                        b'{"server_load": 1}':
                    time.sleep(0.01)
                self.assertEqual(ask({"x-api-key": "sk-one"})[0], 429)
                thread.join()
                self.assertEqual(ask({"x-api-key": "sk-one"})[0], 200)
            lines = [json.loads(line) for line in usage.read_text().splitlines()]
            self.assertEqual([l["key"] for l in lines],
                             ["key-1", "key-2", "key-1", "slow", "slow", "slow", "tokens", "one", "one"])
            self.assertEqual(lines[0]["completion_tokens"], 8)
            self.assertNotIn("sk-", usage.read_text())

    def test_bad_key_files_are_refused_by_name(self):
        for content, message in [
            ("{", "byte"), ("{}", "keys"), ('{"keys": [{}]}', "keys[0].name"),
            ("[]", "found no object"), ('{"keys": []}', "keys: found an array of 0"),
            ('{"keys": [{"name": "a", "key": ""}]}', "keys[0].key"),
            ('{"keys": [{"name": "a", "key": "x"}, {"name": "a", "key": "y"}]}', "keys[1].name"),
            ('{"keys": [{"name": "a", "key": "secret"}, {"name": "b", "key": "secret"}]}', "keys[1].key"),
            ('{"keys": [{"name": "a", "key": "x", "requests_per_minute": 0}]}', "requests_per_minute"),
            ('{"keys": [{"name": "a", "key": "x", "rpm": 5}]}', "rpm"),
        ]:
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                file.write(content)
                file.flush()
                server = Server(BINARY, "--model", NANO, "--api-key-file", file.name, ready=False)
                _, error = server.process.communicate(timeout=60)
                self.assertEqual(server.process.returncode, 1, content)
                self.assertIn(message, error.decode())
                self.assertIn(file.name, error.decode())
                self.assertNotIn("secret", error.decode())
        for name in ("MILLRACE_API_KEY", "MILLRACE_ADMIN_KEY"):
            server = Server(BINARY, "--model", NANO, env={name: ""}, ready=False)
            _, error = server.process.communicate(timeout=60)
            self.assertEqual(server.process.returncode, 1)
            self.assertIn(f"{name}: found nothing, expected a key", error.decode())


class Transport(unittest.TestCase):
    def certificate(self, folder, name="localhost"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
             "-nodes", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem", "-days", "2",
             "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
            check=True, capture_output=True)

    @unittest.skipIf(shutil.which("openssl") is None, "no openssl")
    def test_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            self.certificate(folder)
            with serve("--ssl-certfile", f"{folder}/cert.pem", "--ssl-keyfile",
                       f"{folder}/key.pem") as server:
                context = ssl.create_default_context(cafile=f"{folder}/cert.pem")
                connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context)
                for _ in range(2):
                    connection.request("POST", TEXT, json.dumps(text(stream=True)),
                                       {"Content-Type": "application/json"})
                    events = sse_events(connection.getresponse().read())
                    self.assertIsNone(events[-1])
                connection.close()
                with self.assertRaises((ConnectionError, http.client.HTTPException, OSError)):
                    server.get("/health", timeout=10)

    def test_a_unix_socket(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/socket"
            with serve("--uds", path):
                with socket.socket(socket.AF_UNIX) as s:
                    s.settimeout(60)
                    s.connect(path)
                    s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    self.assertIn(b"200 OK", s.recv(100))

    def test_the_access_log_has_the_ids_that_clients_know(self):
        server = Server(BINARY, "--log-json", ready=False)
        try:
            server.next_event("serving")
            server.post(TEXT, text(request_id="in-the-body"))
            self.assertEqual(server.next_event("request")["request_id"], "in-the-body")
            body = json.dumps(text(max_tokens=15000, ignore_eos=True)).encode()
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
                s.sendall(f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: left\r\n"
                          f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                          .encode() + body)
            gone = server.next_event("request")
            self.assertEqual((gone["request_id"], gone["status"]), ("left", 0))
            server.get("/" + "x" * 60_000)
            self.assertEqual(server.next_event("request")["path"], "/" + "x" * 1023 + "... (60001 bytes)")
            server.request("M" * 60_000, "/")
            self.assertEqual(server.next_event("request")["method"], "M" * 1024 + "... (60000 bytes)")
        finally:
            server.process.terminate()
            server.process.communicate(timeout=60)

    def test_what_the_engine_fails_at_is_in_the_log_and_not_in_the_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            script, usage = Path(folder, "script.jsonl"), Path(folder, "usage.jsonl")
            reason = "/models/secret.safetensors: layers.0: cannot read"
            script.write_text(json.dumps({"pieces": [{"text": "a"}, {"text": "b"}],
                                          "error": {"message": reason, "after": 1}}))
            server = Server(BINARY, "--log-json", "--no-access-log", "--engine", f"scripted={script}",
                            "--usage-log", usage, ready=False)
            try:
                server.next_event("serving")
                for stream in (False, True):
                    body = text(request_id=f"it-{stream}", stream=stream, user="é" * 5000)
                    content = server.request("POST", TEXT, body)[2].decode()
                    self.assertNotIn("secret", content)
                    self.assertIn("the engine failed at this request (corrupt)", content)
                    self.assertIn(f"request id it-{stream}", content)
                    line = server.next_event()
                    self.assertEqual([line[name] for name in ("level", "request_id", "reason")],
                                     ["error", f"it-{stream}", reason])
            finally:
                server.process.terminate()
                server.process.communicate(timeout=60)
            for line in usage.read_text().splitlines():
                self.assertEqual(json.loads(line)["user"], "é" * 512 + "... (10000 bytes)")

    def test_every_line_of_a_json_log_is_json_from_the_first_one_on(self):
        server = Server(BINARY, "--log-json")
        try:
            lines = [json.loads(line) for line in server.log]
            self.assertEqual([line["message"] for line in lines], ["loading", "serving"])
            self.assertIn("nano", lines[0]["model"])
            taken = subprocess.run([BINARY, "serve", "--log-json", "--port", str(server.port)],
                                   capture_output=True, text=True, timeout=60)
        finally:
            self.assertEqual(server.stop(), 0)
        with tempfile.TemporaryDirectory() as empty:
            wrong = subprocess.run([BINARY, "serve", "--log-json", "--model", empty],
                                   capture_output=True, text=True, timeout=60)
        for run, what in [(taken, str(server.port)), (wrong, "cannot open")]:
            self.assertEqual(run.returncode, 1)
            last = [json.loads(line) for line in run.stderr.splitlines()][-1]
            self.assertEqual(last["level"], "error")
            self.assertIn(what, last["message"])

    def test_where_it_is_and_why_it_is_not_there_are_told_at_any_level(self):
        for level in ("warning", "off"):
            with Server(BINARY, "--model", NANO, env={"MILLRACE_LOG_LEVEL": level}) as server:
                self.assertEqual(len(server.log), 1, server.log)
                self.assertIn(f"serving address=http://127.0.0.1:{server.port} ", server.log[0])
        env = {**os.environ, "MILLRACE_LOG_LEVEL": "off"}
        with tempfile.TemporaryDirectory() as empty:
            run = subprocess.run([BINARY, "serve", "--log-json", "--model", empty], env=env,
                                 capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 1)
        event = json.loads(run.stderr)
        self.assertEqual(event["level"], "error")
        self.assertIn("cannot open", event["message"])
        server = Server(BINARY, "--model", NANO, "--log-json", env={"MILLRACE_LOG_LEVEL": "error"},
                        ready=False)
        self.assertEqual(server.next_event()["message"], "serving")
        server.get("/v1/models")  # is told of at level info
        server.process.terminate()
        self.assertEqual(server.process.communicate(timeout=60)[1], b"")

    def test_a_level_that_nobody_knows_silences_nothing(self):
        for level in ("", "INFO", "errors"):
            server = Server(BINARY, "--model", NANO, "--log-json",
                            env={"MILLRACE_LOG_LEVEL": level}, ready=False)
            server.next_event("serving")
            server.process.terminate()
            self.assertIn(b"draining", server.process.communicate(timeout=60)[1], level)

    def test_no_log_destroys_what_the_command_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder, "config.json")
            for flag in ("--usage-log", "--record"):
                config.write_text(json.dumps({flag[2:]: str(config)}))
                before = config.read_text()
                for flags in ([], [flag, config], [flag, f"{folder}/./config.json"]):
                    run = subprocess.run([BINARY, "serve", "--config", config, *flags],
                                         capture_output=True, text=True, timeout=60)
                    self.assertEqual(run.returncode, 2, flags)
                    self.assertIn(f"{flag}: found the file of --config, expected another", run.stderr)
                    self.assertEqual(config.read_text(), before)

    def test_a_configuration_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(json.dumps({"served_model_name": ["filed", "other"], "max-logprobs": 3,
                                   "log-json": True, "port": 1}))
            file.flush()
            with serve("--config", file.name) as server:  # its own --port wins
                self.assertEqual(json.loads(server.get("/v1/models")[1])["data"][0]["id"], "filed")
                self.assertEqual(server.post(TEXT, text(logprobs=4))[0], 400)
                first = json.loads(server.log[-1])
                self.assertEqual(first["message"], "serving")
                self.assertGreater(first["threads"], 0)
        for content, message in [("{", "byte"), ("[]", "object"), ('{"port": {}}', "port"),
                                 ('{"prot": 5}', "--prot: no such flag"), ('{"port": "x"}', "port"),
                                 ('{"port": true}', "port"), ('{"log-json": "yes"}', "true or false"),
                                 ('{"config": "x"}', "--config"), ('{"api-key": []}', "api-key"),
                                 ('{"api-key": "", "admin-key": "a"}', "api-key"),
                                 ('{"max_num_queued_reqs": "x"}', "--max-open-requests: found"),
                                 ('{"host": "a\\u0000b"}', "no character U+0000"),
                                 ('{"swap_space": 4}', "docs/from-vllm.md")]:
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                file.write(content)
                file.flush()
                run = subprocess.run([BINARY, "serve", "--config", file.name],
                                     capture_output=True, text=True, timeout=60)
                self.assertEqual(run.returncode, 2, content)
                self.assertIn(message, run.stderr)
                self.assertIn(file.name, run.stderr)
        for flags in (["--config"], ["--config="], ["--config", ""]):
            run = subprocess.run([BINARY, "serve", *flags], capture_output=True, text=True, timeout=60)
            self.assertEqual(run.returncode, 2, flags)
            self.assertIn("--config: found nothing, expected a file", run.stderr)

    def test_a_flag_wins_over_the_file_by_any_of_its_names(self):
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder, "config.json")
            config.write_text(json.dumps({"unix_socket": f"{folder}/file", "threads": 1}))
            with serve("--uds", f"{folder}/flag", "-t2", "--config", config):
                self.assertTrue(Path(folder, "flag").exists())
                self.assertFalse(Path(folder, "file").exists())

    def test_flags_that_make_no_sense(self):
        for flags, message in [(["--port", "65536"], "65536"), (["--root-path", "x"], "root-path"),
                               (["--ssl-certfile", "x"], "--ssl-certfile requires --ssl-keyfile"),
                               (["--ssl-keyfile", "x"], "--ssl-keyfile requires --ssl-certfile"),
                               (["--ssl-ca-certs", "x"], "--ssl-ca-certs requires --ssl-certfile"),
                               (["--ssl-ciphers", "x"], "--ssl-ciphers requires --ssl-certfile"),
                               (["--ssl-require-client-cert"], "requires --ssl-certfile"),
                               (["--metrics-prefix", "1x"], "--metrics-prefix: found \"1x\", expected letters"),
                               (["--metrics-prefix", "a b"], "--metrics-prefix: found \"a b\", expected letters"),
                               (["--usage-log", "/", "--port", "0"], "/: cannot be written: Is a directory"),
                               (["--usage-log", "no/x", "--record", "./no/x"], "--record: found the file of --usage-log"),
                               (["--usage-log", "-"], "--usage-log: found \"-\", expected a file"),
                               (["--record", "-"], "--record: found \"-\", expected a file"),
                               (["--api-key-file", "-"], "--api-key-file: found \"-\", expected a file"),
                               (["--ssl-certfile", "-", "--ssl-keyfile", "x"], "--ssl-certfile: found \"-\""),
                               (["--engine", "scripted=-"], "--engine: found \"-\", expected a file"),
                               (["--engine", "scripted="], "--engine: found an empty name"),
                               (["--config", "-"], "--config: found \"-\", expected a file"),
                               (["--ssl-certfile", "/no", "--ssl-keyfile", "/no"], "/no"),
                               (["--engine", "other"], "engine"), (["--overload-status", "500"], "503"),
                               (["--nonsense"], "nonsense"), (["--api-key=", "--port", "0"], "--api-key"),
                               (["--api-key", ""], "--api-key: found nothing"),
                               (["--admin-key", ""], "--admin-key: found nothing"),
                               (["--served-model-name", ""], "--served-model-name: found nothing"),
                               (["--allowed-hosts", ""], "--allowed-hosts: found nothing"),
                               (["--host", ""], "--host: found nothing"), (["--isa", ""], "--isa: found nothing"),
                               (["--ssl-ciphers", ""], "--ssl-ciphers: found nothing"),
                               (["--allowed-origins", ""], "--allowed-origins: found nothing"),
                               (["--allowed-methods", ""], "--allowed-methods: found nothing"),
                               (["--allowed-headers", ""], "--allowed-headers: found nothing"),
                               (["--header-timeout", "0"], "--header-timeout: found \"0\", expected seconds from 0.001"),
                               (["--body-timeout", "0"], "--body-timeout: found \"0\", expected seconds from 0.001"),
                               (["--write-timeout", "0"], "--write-timeout: found \"0\", expected seconds from 0.001"),
                               (["--idle-timeout", "-1"], "expected seconds from 0 to"), (["--swap-space", "4"], "docs/from-vllm.md")]:
            run = subprocess.run([BINARY, "serve", *flags], capture_output=True, text=True, timeout=60)
            self.assertIn(run.returncode, (1, 2), flags)
            self.assertIn(message, run.stderr)


class Overload(unittest.TestCase):
    def test_ten_times_too_many_cost_nothing(self):
        with serve("--max-num-seqs", 4, "--max-open-requests", 8) as server:
            long = text(max_tokens=1200, ignore_eos=True)
            threads = [threading.Thread(target=server.post, args=(TEXT, long)) for _ in range(8)]
            for thread in threads:
                thread.start()
            while server.stats()["requests"]["open"] < 8:
                time.sleep(0.01)
            # Long enough that tokenizing it would show.
            rejected = text(prompt="word " * 40_000)
            statuses, health_s = [], []
            before = None
            for i in range(80):
                status, headers, content = server.request("POST", TEXT, rejected)
                statuses.append(status)
                self.assertEqual(json.loads(content)["error"]["code"], "overloaded")
                self.assertIn("retry-after", headers)
                start = time.monotonic()
                self.assertEqual(server.get("/health")[0], 200)
                health_s.append(time.monotonic() - start)
                if i == 10:
                    before = server.resident_bytes()
            self.assertEqual(set(statuses), {503})
            self.assertLess(server.resident_bytes() - before, 16 << 20)
            self.assertLess(statistics.median(health_s), 0.05)
            for thread in threads:
                thread.join()

    def test_a_limit_of_waiting_prompt_tokens(self):
        with serve("--max-num-seqs", 1, "--max-num-queued-tokens", 2000, "--overload-status",
                   "429") as server:
            first = threading.Thread(
                target=server.post, args=(TEXT, text(max_tokens=3000, ignore_eos=True)))
            first.start()
            while server.stats()["requests"]["running"] < 1:
                time.sleep(0.01)
            waiting = threading.Thread(target=server.post, args=(TEXT, text(prompt="a b " * 700)))
            waiting.start()
            while server.stats()["requests"]["open"] < 2:
                time.sleep(0.01)
            status, answer = server.post(TEXT, text(prompt="a b " * 3000))
            self.assertEqual(status, 429, answer)
            self.assertEqual(answer["error"]["code"], "queue_full")
            self.assertEqual(server.post(TEXT, text(prompt="hi"))[0], 200)
            first.join()
            waiting.join()

    def test_a_reader_of_one_byte_per_second_slows_nobody(self):
        with serve("--write-timeout", "60") as server:
            body = json.dumps(text(max_tokens=10000, ignore_eos=True, stream=True,
                                   logprobs=20)).encode()
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                s.connect(("127.0.0.1", server.port))
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                          b"\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                end = time.monotonic() + 60
                while server.stats()["requests"]["paused"] == 0:
                    self.assertLess(time.monotonic(), end, "the reader was never found slow")
                    s.recv(1)
                    time.sleep(0.1)
                self.assertLess(server.resident_bytes(), 400 << 20)
                status, answer = server.post(TEXT, text())
                self.assertEqual(status, 200)
            self.assertTrue(server.wait_until_idle(5))

    def test_bodies_of_a_hundred_megabytes(self):
        with serve() as server:
            body = json.dumps({"prompt": "a" * 100_000_000, "max_tokens": 1}).encode()
            start = time.monotonic()
            seen = []
            thread = threading.Thread(target=lambda: seen.append(server.post(TEXT, body)))
            thread.start()
            slowest = 0
            while thread.is_alive():
                before = time.monotonic()
                self.assertEqual(server.get("/health")[0], 200)
                slowest = max(slowest, time.monotonic() - before)
                time.sleep(0.05)
            thread.join()
            self.assertEqual(seen[0][0], 400)
            self.assertLess(slowest, max(1.0, (time.monotonic() - start) / 2))

    def test_an_early_start_keeps_a_waiting_stream_alive(self):
        with serve("--early-stream-start", "0.2", "--max-num-seqs", 1) as server:
            first = threading.Thread(
                target=server.post, args=(TEXT, text(max_tokens=2500, ignore_eos=True)))
            first.start()
            while server.stats()["requests"]["running"] < 1:
                time.sleep(0.01)
            _, _, content = server.request("POST", TEXT, text(stream=True))
            self.assertTrue(content.startswith(b": keep-alive\n\n"), content[:100])
            alone = server.post(TEXT, text())[1]["choices"][0]["text"]
            self.assertEqual(text_of(sse_events(content)), alone)
            first.join()

    def test_lengths_that_do_not_fit_can_be_cut(self):
        with serve("--clamp-max-tokens", "--max-model-len", 64) as server:
            answer = server.post(TEXT, text(max_tokens=10**9, ignore_eos=True))[1]
            self.assertEqual(answer["usage"]["total_tokens"], 64)
            self.assertEqual(server.post(TEXT, text(prompt=[5] * 64))[0], 400)


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()

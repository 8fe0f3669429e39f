#!/usr/bin/python3
"""What no client should send: each gets its documented answer, and the server goes on as before.

usage: hostile_test.py BINARY [unittest arguments]
"""
import json
import random
import socket
import sys
import threading
import time
import unittest

from serving import NANO, Server

BINARY = None
SERVER = None

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]


def setUpModule():
    global SERVER
    SERVER = Server(
        BINARY, "--model", NANO, "--no-access-log", "--header-timeout", "2", "--body-timeout", "2",
        "--write-timeout", "3", "--max-body-bytes", 1 << 20,
    )


def tearDownModule():
    assert SERVER.stop() == 0


def chat(**fields):
    return {"messages": HI, "max_tokens": 2, **fields}


def text(**fields):
    return {"prompt": "Hi", "max_tokens": 2, **fields}


# (path, body, param). All are 400 invalid_request_error.
WRONG_FIELDS = [
    (CHAT, {}, "messages"),
    (TEXT, text(prompt=["a"] * 33, n=125), "n"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": 5}, "messages"),
    (CHAT, {"messages": None}, "messages"),
    (CHAT, {"messages": "Hi"}, "messages"),
    (CHAT, {"messages": [5]}, "messages[0]"),
    (CHAT, {"messages": [{}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": 1, "content": "Hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": {"a": 1}}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
     "messages[0].content[0].type"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
     "messages[0].content[0].text"),
    (CHAT, {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]}, "messages"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
     "messages[0].tool_calls[0].function.arguments"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": 1}]}, "messages[0].tool_calls"),
    (CHAT, chat(temperature="hot"), "temperature"),
    (CHAT, chat(temperature=-0.1), "temperature"),
    (CHAT, chat(temperature=2.1), "temperature"),
    (CHAT, chat(temperature=[]), "temperature"),
    (CHAT, chat(top_p=0), "top_p"),
    (CHAT, chat(top_p=1.1), "top_p"),
    (CHAT, chat(top_p=-1), "top_p"),
    (CHAT, chat(top_k=-2), "top_k"),
    (CHAT, chat(top_k=1.5), "top_k"),
    (CHAT, chat(min_p=-0.1), "min_p"),
    (CHAT, chat(min_p=1.1), "min_p"),
    (CHAT, chat(presence_penalty=2.1), "presence_penalty"),
    (CHAT, chat(presence_penalty=-2.1), "presence_penalty"),
    (CHAT, chat(frequency_penalty=3), "frequency_penalty"),
    (CHAT, chat(repetition_penalty=0), "repetition_penalty"),
    (CHAT, chat(repetition_penalty=-1), "repetition_penalty"),
    (CHAT, chat(n=0), "n"),
    (CHAT, chat(n=129), "n"),
    (CHAT, chat(n=-1), "n"),
    (CHAT, chat(n="2"), "n"),
    (CHAT, chat(max_tokens=0), "max_tokens"),
    (CHAT, chat(max_tokens=-1), "max_tokens"),
    (CHAT, chat(max_tokens=1.5), "max_tokens"),
    (CHAT, chat(max_tokens="10"), "max_tokens"),
    (CHAT, chat(max_tokens=2**63), "max_tokens"),
    (CHAT, chat(max_completion_tokens=0), "max_completion_tokens"),
    (CHAT, chat(min_tokens=-1), "min_tokens"),
    (CHAT, chat(min_tokens=3), "min_tokens"),
    (CHAT, chat(logit_bias=[]), "logit_bias"),
    (CHAT, chat(logit_bias={"a": 1}), "logit_bias"),
    (CHAT, chat(logit_bias={"99999999": 1}), "logit_bias"),
    (CHAT, chat(logit_bias={"-1": 1}), "logit_bias"),
    (CHAT, chat(logit_bias={"5": "x"}), "logit_bias.5"),
    (CHAT, chat(stop=""), "stop"),
    (CHAT, chat(stop=["a", ""]), "stop"),
    (CHAT, chat(stop=[1]), "stop[0]"),
    (CHAT, chat(stop=["x"] * 65), "stop"),
    (CHAT, chat(stop_token_ids=["a"]), "stop_token_ids[0]"),
    (CHAT, chat(stop_token_ids=[-1]), "stop_token_ids"),
    (CHAT, chat(stop_token_ids=[10**7]), "stop_token_ids"),
    (CHAT, chat(allowed_token_ids=[]), "allowed_token_ids"),
    (CHAT, chat(allowed_token_ids=[10**7]), "allowed_token_ids"),
    (CHAT, chat(bad_words=[""]), "bad_words"),
    (CHAT, chat(seed=2**64), "seed"),
    (CHAT, chat(seed=-2**63 - 1), "seed"),
    (CHAT, chat(seed=1.5), "seed"),
    (CHAT, chat(seed="a"), "seed"),
    (CHAT, chat(logprobs=5), "logprobs"),
    (CHAT, chat(top_logprobs=2), "top_logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=-1), "top_logprobs"),
    (CHAT, chat(prompt_logprobs=21), "prompt_logprobs"),
    (CHAT, chat(prompt_logprobs=1, stream=True), "prompt_logprobs"),
    (CHAT, chat(stream="yes"), "stream"),
    (CHAT, chat(stream_options={"include_usage": True}), "stream_options"),
    (CHAT, chat(stream=True, stream_options=5), "stream_options"),
    (CHAT, chat(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage"),
    (CHAT, chat(tools=5), "tools"),
    (CHAT, chat(tools=[5]), "tools[0]"),
    (CHAT, chat(tools=[{"type": "function"}]), "tools[0].function"),
    (CHAT, chat(tools=[{"type": "web_search", "function": {"name": "f"}}]), "tools[0].type"),
    (CHAT, chat(tools=[{"type": "function", "function": {}}]), "tools[0].function.name"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": ""}}]), "tools[0].function.name"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "x" * 65}}]),
     "tools[0].function.name"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "a.b"}}]), "tools[0].function.name"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "a b"}}]), "tools[0].function.name"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}] * 2),
     "tools[1].function.name"),
    *[(CHAT, chat(tools=[{"type": "function", "function": {"name": "f", "parameters": wrong}}]),
       "tools[0].function.parameters") for wrong in (5, "x", [], True)],
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f", "description": 5}}]),
     "tools[0].function.description"),
    (CHAT, chat(tool_choice="always"), "tool_choice"),
    (CHAT, chat(tool_choice="required"), "tool_choice"),
    (CHAT, chat(tool_choice={"type": "function", "function": {"name": "g"}}),
     "tool_choice.function.name"),
    (CHAT, chat(reasoning_effort="huge"), "reasoning_effort"),
    (CHAT, chat(reasoning_effort=0), "reasoning_effort"),
    (CHAT, chat(reasoning_effort=101), "reasoning_effort"),
    (CHAT, chat(thinking={"type": "maybe"}), "thinking.type"),
    (CHAT, chat(thinking="on"), "thinking"),
    (CHAT, chat(chat_template_kwargs=5), "chat_template_kwargs"),
    (CHAT, chat(chat_template_kwargs={"thinking": 5}), "chat_template_kwargs.thinking"),
    (CHAT, chat(priority="high"), "priority"),
    (CHAT, chat(priority=2**40), "priority"),
    (CHAT, chat(cache_salt=""), "cache_salt"),
    (CHAT, chat(request_id=5), "request_id"),
    (CHAT, chat(model=5), "model"),
    (CHAT, chat(truncate_prompt_tokens=0), "truncate_prompt_tokens"),
    (CHAT, chat(truncation_side="middle"), "truncation_side"),
    (CHAT, chat(ignore_eos=1), "ignore_eos"),
    (CHAT, chat(skip_special_tokens="no"), "skip_special_tokens"),
    (CHAT, chat(include_reasoning=0), "include_reasoning"),
    (CHAT, chat(user={}), "user"),
    (TEXT, {}, "prompt"),
    (TEXT, {"prompt": None}, "prompt"),
    (TEXT, {"prompt": 5}, "prompt"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": [[]]}, "prompt[0]"),
    (TEXT, {"prompt": [["a"]]}, "prompt[0][0]"),
    (TEXT, {"prompt": {"a": 1}}, "prompt"),
    (TEXT, {"prompt": [1, "a"]}, "prompt[1]"),
    (TEXT, text(max_tokens=0), "max_tokens"),
    (TEXT, text(max_tokens=-5), "max_tokens"),
    (TEXT, text(logprobs=21), "logprobs"),
    (TEXT, text(logprobs=True), "logprobs"),
    (TEXT, text(logprobs=-2), "logprobs"),
    (TEXT, text(echo="yes"), "echo"),
    (TEXT, text(best_of=0), "best_of"),
    ("/inference/v1/generate", {}, "token_ids"),
    ("/inference/v1/generate", {"token_ids": []}, "token_ids"),
    ("/inference/v1/generate", {"token_ids": "abc"}, "token_ids"),
    ("/inference/v1/generate", {"token_ids": [1, "a"]}, "token_ids[1]"),
    ("/inference/v1/generate", {"token_ids": [5], "sampling_params": 5}, "sampling_params"),
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ("/detokenize", {"tokens": [10**6]}, "tokens[0]"),
    ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
    ("/abort_requests", {}, "request_ids"),
]

# (path, body, param). All are 400 unsupported_parameter.
UNSUPPORTED = [
    (CHAT, chat(response_format={"type": "json_object"}), "response_format"),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
     "response_format"),
    (CHAT, chat(structured_outputs={"regex": "a"}), "structured_outputs"),
    (CHAT, chat(guided_json={}), "guided_json"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="required"),
     "tool_choice"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f", "strict": True}}]),
     "tools[0].function.strict"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}], parallel_tool_calls=False),
     "parallel_tool_calls"),
    (CHAT, chat(thinking_token_budget=5), "thinking_token_budget"),
    (CHAT, chat(repetition_detection={"max_pattern_size": 5}), "repetition_detection"),
    (CHAT, chat(kv_transfer_params={"do_remote_prefill": True}), "kv_transfer_params"),
    (CHAT, chat(use_beam_search=True), "use_beam_search"),
    (CHAT, chat(documents=[{}]), "documents"),
    (CHAT, chat(chat_template="x"), "chat_template"),
    (CHAT, chat(functions=[]), "functions"),
    (CHAT, chat(function_call="auto"), "function_call"),
    (CHAT, chat(web_search_options={}), "web_search_options"),
    (CHAT, chat(audio={}), "audio"),
    (CHAT, chat(best_of=2), "best_of"),
    (TEXT, text(suffix="x"), "suffix"),
    (TEXT, text(length_penalty=2), "length_penalty"),
    (TEXT, text(early_stopping=True), "early_stopping"),
]

# Bodies that are no JSON object, or none that may be read.
BAD_JSON = [
    b"", b"not json", b"{", b"[", b'{"messages":}', b'{"messages": [1,]}', b"{'a': 1}",
    b'\xef\xbb\xbf{"prompt": "a"}', b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "temperature": Infinity}', b'{"prompt": "a", "temperature": -Infinity}',
    b'{"prompt": "a"} x', b'{"prompt": "a"}{"prompt": "a"}', b'{"prompt": "\xc3\x28"}',
    b'{"prompt": "\xff"}', b'{"\xc3\x28": 1, "prompt": "a"}', rb'{"prompt": "\ud83d"}',
    rb'{"prompt": "\udc00\ud83d"}', rb'{"prompt": "\u00g0"}', b'{"prompt": "a\x00b"}',
    b'{"prompt": "a\nb"}', b'{"prompt": "a}', b'{"prompt": tru}', b'{"a": 01}', b'{"a": 1e}',
    b"[" * 10_000 + b"]" * 10_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b"\x00" * 100,
    b'{"prompt": "' + b"\\" * 1001 + b'"}',
]
NOT_OBJECTS = [b"[]", b"null", b"5", b'"text"', b"true"]

# Bytes that are no proper request, and the status of the answer: every status that is allowed.
RAW = [
    (b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
     {404}),
    (b"GARBAGE\r\n\r\n", {400}),
    (b"GET http://user@localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 80, {400}),
    (b"GET\r\n\r\n", {400}),
    (b"GET / HTTP/9.9\r\n\r\n", {400, 505}),
    (b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", {400}),
    (b"GET / HTTP/1.1\r\n Host: localhost\r\n\r\n", {400}),
    (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", {400}),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nBad\x01Name: y\r\n\r\n", {400}),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\x00c\r\n\r\n", {400}),
    (b"GET http:// HTTP/1.1\r\nHost: localhost\r\n\r\n", {200, 400}),
    (b"GET \x80\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n", {400}),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", {400}),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
     {400, 413}),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
     b"Content-Length: 2000000\r\n\r\n", {413}),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"
     b"abcdef", {400}),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
     b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", {400, 501}),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
     b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n", {400, 413}),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
     b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFF\r\n", {400, 413}),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
     b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", {400}),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
     b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n", {400}),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 1000 + b"\r\n", {431}),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 100_000 + b"\r\n\r\n", {431}),
    (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 414, 431}),
]


def send_raw(data, timeout=20):
    """The status of the answer to raw bytes; None if the connection was closed without one."""
    with socket.create_connection(("127.0.0.1", SERVER.port), timeout=timeout) as s:
        try:
            s.sendall(data)
        except OSError:
            pass
        answer = b""
        try:
            while b"\r\n" not in answer:
                part = s.recv(65536)
                if not part:
                    break
                answer += part
        except ConnectionError:
            pass
    return int(answer.split()[1]) if answer else None


class Hostile(unittest.TestCase):
    def setUp(self):
        self.addCleanup(self.check_alive)

    def check_alive(self):
        self.assertEqual(SERVER.get("/health")[0], 200)
        status, answer = SERVER.post(TEXT, text(temperature=0))
        self.assertEqual(status, 200, answer)
        self.assertTrue(SERVER.wait_until_idle(5), SERVER.stats())

    def check_error(self, answer, type_="invalid_request_error", param=None, code=None):
        self.assertEqual(set(answer), {"error"})
        error = answer["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["type"], type_, error)
        self.assertTrue(error["message"])
        self.assertLess(len(error["message"]), 2000)
        if param is not None:
            self.assertEqual(error["param"], param, error)
        if code is not None:
            self.assertIn(error["code"], code, error)

    def test_fields_that_are_wrong_are_named(self):
        for path, body, param in WRONG_FIELDS:
            with self.subTest(path=path, body=json.dumps(body)[:200]):
                status, answer = SERVER.post(path, body)
                self.assertEqual(status, 400, answer)
                self.check_error(answer, param=param, code={
                    "invalid_value", "missing_required_parameter", "unsupported_parameter"})

    def test_fields_that_are_not_supported_are_named(self):
        for path, body, param in UNSUPPORTED:
            with self.subTest(path=path, body=json.dumps(body)[:200]):
                status, answer = SERVER.post(path, body)
                self.assertEqual(status, 400, answer)
                self.check_error(answer, param=param, code={"unsupported_parameter"})

    def test_bodies_that_are_no_json_are_refused(self):
        for path in (CHAT, TEXT, "/tokenize"):
            for body in BAD_JSON:
                with self.subTest(path=path, body=body[:60]):
                    status, answer = SERVER.post(path, body)
                    self.assertEqual(status, 400, answer)
                    self.check_error(answer, code={"json_parse_error"})
            for body in NOT_OBJECTS:
                with self.subTest(path=path, body=body):
                    status, answer = SERVER.post(path, body)
                    self.assertEqual(status, 400, answer)
                    self.check_error(answer)

    def test_bytes_that_are_no_request_are_refused(self):
        for data, expected in RAW:
            with self.subTest(data=data[:80]):
                self.assertIn(send_raw(data), expected)

    def test_paths_methods_and_types(self):
        cases = [
            ("GET", "/nothing", None, {}, 404, "not_found_error"),
            ("POST", "/v1", {}, {}, 404, "not_found_error"),
            ("GET", "/v1/models/other", None, {}, 404, "not_found_error"),
            ("GET", "/web/../server.cc", None, {}, 404, "not_found_error"),
            ("GET", "/web/%2e%2e/x", None, {}, 404, "not_found_error"),
            ("GET", CHAT, None, {}, 405, "invalid_request_error"),
            ("DELETE", CHAT, None, {}, 405, "invalid_request_error"),
            ("PUT", "/health", b"", {}, 405, "invalid_request_error"),
            ("BREW", CHAT, None, {}, 405, "invalid_request_error"),
            ("POST", CHAT, b"{}", {"Content-Type": "text/plain"}, 400, "invalid_request_error"),
            ("POST", CHAT, b"{}", {"Content-Type": ""}, 400, "invalid_request_error"),
            ("POST", "/v1/responses", {}, {}, 501, "not_implemented_error"),
            ("POST", "/v1/embeddings", {}, {}, 501, "not_implemented_error"),
            ("POST", "/v1/audio/speech", {}, {}, 501, "not_implemented_error"),
            ("POST", "/v1/load_lora_adapter", {}, {}, 501, "not_implemented_error"),
            ("POST", "/drain", {}, {}, 403, "permission_error"),
        ]
        for method, path, body, headers, status, type_ in cases:
            with self.subTest(method=method, path=path):
                got, answered, content = SERVER.request(method, path, body, headers)
                self.assertEqual(got, status, content)
                self.check_error(json.loads(content), type_=type_)
                self.assertIn("x-request-id", answered)
                if status == 405:
                    self.assertIn("allow", answered)
        status, _, content = SERVER.request("POST", "/v1/messages", {})
        self.assertEqual(status, 501)
        self.assertEqual(json.loads(content)["type"], "error")

    def test_an_unknown_model_is_not_found(self):
        status, answer = SERVER.post(CHAT, chat(model="gpt-9"))
        self.assertEqual(status, 404)
        self.check_error(answer, type_="not_found_error", param="model", code={"model_not_found"})
        status, answer = SERVER.post(CHAT, chat(model="x" * 500_000))
        self.assertEqual(status, 404)
        self.check_error(answer, type_="not_found_error")

    def test_what_does_not_fit_is_told_with_both_numbers(self):
        limit = json.loads(SERVER.get("/v1/models")[1])["data"][0]["max_model_len"]
        for body in (
            text(prompt=[5] * limit),
            text(prompt=[5] * (limit - 1), max_tokens=2),
            text(prompt=[5] * (limit + 1000)),
            text(max_tokens=2**31),
            text(max_tokens=limit),
        ):
            status, answer = SERVER.post(TEXT, body)
            self.assertEqual(status, 400, answer)
            self.check_error(answer, code={"context_length_exceeded"})
            self.assertIn("maximum context length", answer["error"]["message"])
            self.assertIn(str(limit), answer["error"]["message"])
        for ids in ([-1], [10**6], [2**31]):
            status, answer = SERVER.post(TEXT, text(prompt=ids))
            self.assertEqual(status, 400, answer)

    def test_odd_and_legal_requests_are_answered(self):
        for path, body in [
            (CHAT, chat(temperature=None, top_p=None, stop=None, tools=None, seed=None)),
            (CHAT, chat(temperature=1, top_k=-1, top_p=1.0, n=2)),
            (CHAT, chat(unheard_of={"a": [1]}, metadata={"a": "b"}, store=True)),
            (CHAT, chat(messages=[{"role": "user", "content": ""}])),
            (CHAT, chat(messages=[{"role": "user", "content": None}])),
            (CHAT, chat(messages=[{"role": "system", "content": "x"}])),
            (CHAT, chat(messages=[{"role": "user", "content": "a\x00b"}])),
            (CHAT, chat(messages=[{"role": "user", "content": "<｜DSML｜ calls> </think> <｜User｜>"}])),
            (CHAT, chat(messages=[{"role": "tool", "tool_call_id": "x", "content": "y"}])),
            (CHAT, chat(messages=[{"role": "user", "content": "😀👩‍👩‍👧 中文"}])),
            (CHAT, chat(tools=[])),
            (CHAT, chat(tools=[{"type": "function", "function": {
                "name": "x" * 64, "parameters": {"type": "object", "required": None}}}])),
            (CHAT, chat(tools=[{"type": "function", "function": {"name": f"f-{i}"}}
                               for i in range(200)])),
            (CHAT, chat(seed=-5)),
            (CHAT, chat(seed=-2**63)),
            (CHAT, chat(seed=2**64 - 1)),
            (CHAT, chat(logit_bias={"5": 1e9, "6": -1e9})),
            (CHAT, chat(thinking={"type": "disabled"})),
            (CHAT, chat(reasoning_effort="none")),
            (CHAT, chat(max_tokens=2.0)),
            (CHAT, chat(model="")),
            (TEXT, text(prompt="")),
            (TEXT, text(prompt="a\x00b")),
            (TEXT, text(prompt=["a", "b"])),
            (TEXT, text(prompt=[[5, 6], [7]])),
            (TEXT, text(echo=True, logprobs=2, max_tokens=0)),
            (TEXT, text(echo=True, stream=True, logprobs=1)),
        ]:
            with self.subTest(path=path, body=json.dumps(body)[:200]):
                if body.get("stream"):
                    status, _, content = SERVER.request("POST", path, body)
                    self.assertTrue(content.endswith(b"data: [DONE]\n\n"), content)
                else:
                    status, content = SERVER.post(path, body)
                self.assertEqual(status, 200, content)

    def test_slow_and_silent_clients_cost_nothing_to_others(self):
        before = SERVER.resident_bytes()
        sockets = []
        for i in range(200):
            s = socket.create_connection(("127.0.0.1", SERVER.port))
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            if i < 100:
                s.sendall(b"GET /health HTTP/1.1\r\nHo")  # the rest never comes
            elif i < 150:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                          b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
            else:  # never reads its stream
                body = json.dumps(text(prompt=f"{i}", max_tokens=4000, stream=True, ignore_eos=True,
                                       logprobs=5, seed=i)).encode()
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                          b"\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            sockets.append(s)
        start = time.monotonic()
        status, answer = SERVER.post(TEXT, text(temperature=0))
        self.assertEqual(status, 200, answer)
        self.assertLess(time.monotonic() - start, 10)
        # The first two kinds are told and closed.
        for i, s in enumerate(sockets[:150]):
            s.settimeout(15)
            try:
                self.assertIn(s.recv(4096)[9:12], (b"408", b""), i)
            except ConnectionError:
                pass
        time.sleep(1)
        self.assertLess(SERVER.resident_bytes() - before, 200 << 20)
        for s in sockets:
            s.close()
        self.assertTrue(SERVER.wait_until_idle(20), SERVER.stats())

    def test_random_bytes_never_stop_it(self):
        rng = random.Random(7)
        seeds = [data for data, _ in RAW] + [
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 15\r\n\r\n{\"prompt\": \"a\"}"]

        def attack(seed):
            rng = random.Random(seed)
            for _ in range(40):
                data = bytearray(rng.choice(seeds))
                for _ in range(rng.randrange(1, 8)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                with socket.create_connection(("127.0.0.1", SERVER.port), timeout=20) as s:
                    try:
                        s.sendall(bytes(data[: rng.randrange(1, len(data) + 1)]))
                        s.settimeout(0.05)
                        s.recv(4096)
                    except OSError:
                        pass

        threads = [threading.Thread(target=attack, args=(rng.random(),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def test_memory_is_back_after_large_bodies(self):
        body = json.dumps(text(prompt="a " * 400_000)).encode()
        for _ in range(3):
            SERVER.post(TEXT, body)
        before = SERVER.resident_bytes()
        for _ in range(30):
            status, answer = SERVER.post(TEXT, body)
            self.assertEqual(status, 400, answer)
        self.assertLess(SERVER.resident_bytes() - before, 32 << 20)


class Counts(unittest.TestCase):
    def test_there_are_enough_of_them(self):
        total = len(WRONG_FIELDS) + len(UNSUPPORTED) + 3 * len(BAD_JSON + NOT_OBJECTS) + len(RAW)
        self.assertGreaterEqual(total, 150)


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()

#!/usr/bin/python3
"""What breaks when people serve this model, after reports about other servers: docs/field-reports.md.

usage: field_reports_test.py BINARY [unittest arguments]

Answers come from a script, cut into pieces in many ways, so that every answer is asked for streamed
and not, and both must say the same.
"""
import base64
import http.client
import json
import random
import re
import sys
import tempfile
import time
import unittest
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from serving import NANO, ROOT, Server, sse_events

BINARY = None  # set by the command line
CONTROL = {token["content"]: token["id"]
           for token in json.loads((NANO / "tokenizer.json").read_text())["added_tokens"]}

CALLS, END_CALLS = "\n\n<｜DSML｜ calls>\n", "\n</｜DSML｜ calls>"
END_INVOKE = "\n</｜DSML｜ invoke>"


def parameter(name, value, string=True):
    return (f'\n<｜DSML｜ parameter name="{name}" string="{"true" if string else "false"}">{value}'
            "</｜DSML｜ parameter>")


def invoke(name, *parameters):
    return f'<｜DSML｜ invoke name="{name}">' + "".join(parameters) + END_INVOKE


PARIS = CALLS + invoke("get_weather", parameter("location", "Paris")) + END_CALLS
TYPES = CALLS + invoke(
    "types", parameter("yes", "true", False), parameter("big", "9007199254740993", False),
    parameter("half", "0.5", False), parameter("none", "null", False),
    parameter("list", '[1, {"a": "b"}]', False), parameter("word", "true"),
    parameter("open", "[1, 2", False)) + END_CALLS


def cut(text, k):
    """In one piece, by characters, or anywhere. Control tokens stay whole, as a model makes them."""
    if k == 0:
        return [text]
    r = random.Random(k)
    pieces = []
    for part in re.split("(｜DSML｜)", text):
        while part:
            size = len(part) if part == "｜DSML｜" else 1 if k == 1 else r.randint(1, 9)
            pieces.append(part[:size])
            part = part[size:]
    return pieces


# What a model says, by the name in the prompt.
REPLIES = {
    "paris": PARIS,
    "no wrapper": "Well. " + invoke("get_weather", parameter("location", "Paris")),
    "no end of invoke": CALLS + '<｜DSML｜ invoke name="get_weather">' + parameter("location", "Rome"),
    "ends in a parameter": CALLS + '<｜DSML｜ invoke name="get_weather">\n'
                                   '<｜DSML｜ parameter name="location" string="true">Ro',
    "marker in a value": CALLS + invoke("record_item", parameter("name", "x"), parameter(
        "note", "keep <b> & </p> as it is")) + END_CALLS,
    "look-alikes": "a <|DSML| calls> b <‖DSML‖ calls> c <｜｜DSML｜｜calls> d <｜dsml｜ calls> e",
    "types": TYPES,
    "one argument": CALLS + invoke("f", parameter("arguments", '{"a": 1}', False)) + END_CALLS,
    "nested argument": CALLS + invoke("g", parameter("arguments", '{"x": 1}', False)) + END_CALLS,
    "tail 1": "1 < 2, 2 <",
    "tail 2": "the sign <｜",
    "tail 3": "the sign <｜DSML",
    "tail 4": "a slash </",
    "emoji": "Ciao 😀👩‍👩‍👧 中文 😸",
    "newline": "Is that so?\nYes",
    "uno": "UNO DUE TRE",
    "alice": "So Alice! said aba bab",
    "five": "one two three four five",
    "stop in a call": CALLS + invoke("get_weather", parameter("location", "STOP city")) + END_CALLS,
}
CUTS = 6


def script_lines():
    for name, reply in REPLIES.items():
        for k in range(CUTS):
            pieces = cut(reply, k)
            yield {"key": f"[{name} {k}]", "pieces": [{"text": p} for p in pieces]}
            thought = ["</think>"] if k == 0 else ["I wonder", ".", "</think>"]
            yield {"key": f"[{name} {k} thinking]",
                   "pieces": [{"text": p} for p in thought + pieces]}
    # Bytes of characters, one by one.
    bytes_of_emoji = [{"base64": base64.b64encode(bytes([b])).decode()}
                      for b in REPLIES["emoji"].encode()]
    yield {"key": "[emoji bytes]", "pieces": bytes_of_emoji}
    yield {"key": "[emoji bytes thinking]",
           "pieces": bytes_of_emoji + [{"text": "</think>"}] + bytes_of_emoji}
    yield {"key": "[never closes]", "pieces": [{"text": p} for p in ["Good ", "morning", "!"]]}
    yield {"key": "[loops]", "pieces": [{"text": f" w{i}"} for i in range(40)], "repeat": "forever"}
    yield {"key": "[counted]", "pieces": [{"ids": [300 + i]} for i in range(37)] +
           [{"text": "</think>"}] + [{"ids": [400 + i]} for i in range(11)]}
    yield {"key": "[choices]", "pieces": [{"text": "a b"}]}
    yield {"key": "[choices]", "choice": 1, "pieces": [{"text": "never"}, {"text": " ends"}],
           "repeat": "forever"}
    yield {"key": "[fails]", "pieces": [{"text": "It begins"}],
           "error": {"message": "the device is gone", "after": 1}}
    yield {"pieces": [{"text": "Hello."}]}


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "parameters": {"type": "object", "properties": {
        "location": {"type": "string"}}}}}


def tool(name, properties=None, **function):
    return {"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": properties or {}}, **function}}


class Reply:
    """What a chat said, however it came."""

    def __init__(self):
        self.content = self.reasoning = ""
        self.calls, self.finish, self.usage = {}, None, None

    def say(self):
        calls = [(c["name"], c["arguments"]) for _, c in sorted(self.calls.items())]
        return {"content": self.content, "reasoning": self.reasoning, "calls": calls,
                "finish": self.finish}


class Scripted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        script = Path(cls.folder.name) / "script.jsonl"
        script.write_text("".join(json.dumps(line) + "\n" for line in script_lines()))
        cls.server = Server(BINARY, "--engine", f"scripted={script}", "--max-model-len", "8192")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def chat(self, text, stream, **fields):
        body = {"messages": [{"role": "user", "content": text}], "stream": stream,
                "reasoning_effort": "none", **fields}
        if stream:
            body.setdefault("stream_options", {"include_usage": True})
        body = {k: v for k, v in body.items() if v is not ...}
        status, _, content = self.server.request("POST", "/v1/chat/completions", body)
        self.assertEqual(status, 200, content)
        reply = Reply()
        if not stream:
            answer = json.loads(content)
            message = answer["choices"][0]["message"]
            reply.content = message["content"] or ""
            reply.reasoning = message["reasoning_content"] or ""
            reply.finish, reply.usage = answer["choices"][0]["finish_reason"], answer["usage"]
            for i, call in enumerate(message["tool_calls"] or []):
                reply.calls[i] = dict(call["function"])
            return reply
        for event in sse_events(content):
            if not event:
                continue
            if event.get("usage"):
                reply.usage = event["usage"]
            for choice in event["choices"]:
                delta = choice["delta"]
                reply.content += delta.get("content") or ""
                reply.reasoning += delta.get("reasoning_content") or ""
                reply.finish = choice["finish_reason"] or reply.finish
                for call in delta.get("tool_calls", []):
                    known = reply.calls.setdefault(call["index"], {"name": "", "arguments": ""})
                    known["name"] += call["function"].get("name", "")
                    known["arguments"] += call["function"].get("arguments", "")
        return reply

    def both(self, text, **fields):
        """The reply, which is the same streamed and not."""
        whole = self.chat(text, False, **fields)
        streamed = self.chat(text, True, **fields)
        self.assertEqual(whole.say(), streamed.say(), text)
        self.assertEqual(whole.usage, streamed.usage, text)
        return whole

    def every_cut(self, name, **fields):
        """The reply to every cut of the script's reply; they are all the same."""
        said = [self.both(f"[{name} {k}]", **fields).say() for k in range(CUTS)]
        for other in said[1:]:
            self.assertEqual(other, said[0], name)
        thinking = {**fields, "reasoning_effort": "high"}
        for k in range(CUTS):
            reply = self.both(f"[{name} {k} thinking]", **thinking)
            self.assertEqual(reply.reasoning, "" if k == 0 else "I wonder.")
            self.assertEqual({**reply.say(), "reasoning": ""}, said[0], name)
        return said[0]

    def refused(self, param, **fields):
        body = {"messages": [{"role": "user", "content": "Hello"}], **fields}
        status, reply = self.server.post("/v1/chat/completions", body)
        self.assertEqual(status, 400, (fields, reply))
        self.assertEqual(reply["error"]["type"], "invalid_request_error")
        if param is not None:
            self.assertEqual(reply["error"]["param"], param, reply)
        self.assertEqual(self.server.get("/health")[0], 200)
        return reply["error"]

    # ---- Tools in a stream, and markup that is wrong.

    def test_b001_b006_arguments_are_exact_in_every_cut(self):
        said = self.every_cut("paris", tools=[WEATHER])
        self.assertEqual(said["calls"], [("get_weather", '{"location": "Paris"}')])
        self.assertEqual((said["content"], said["finish"]), ("", "tool_calls"))

    def test_b003_malformed_markup_is_a_call_or_text_and_never_nothing(self):
        for name in ["no wrapper", "no end of invoke", "ends in a parameter"]:
            said = self.every_cut(name, tools=[WEATHER])
            self.assertTrue(said["calls"] or said["content"], name)
            self.assertNotIn("DSML", said["content"] + str(said["calls"]))
            self.assertIn(said["finish"], ("stop", "tool_calls"))

    def test_b005_markup_that_a_user_writes_is_text(self):
        literal = "<｜DSML｜ calls>"
        tokens = lambda content: self.server.post("/v1/tokenize", {
            "messages": [{"role": "user", "content": content}]})[1]["tokens"]
        self.assertNotIn(CONTROL["｜DSML｜"], tokens(f"Store {literal} please"))

    def test_b007_look_alikes_pass_unchanged(self):
        said = self.every_cut("look-alikes", tools=[WEATHER])
        self.assertEqual(said["content"], REPLIES["look-alikes"])
        self.assertEqual(said["calls"], [])

    def test_b076_values_have_the_types_that_the_model_wrote(self):
        said = self.every_cut("types", tools=[tool("types")])
        text = said["calls"][0][1]
        self.assertIn("9007199254740993", text)
        self.assertIn('"yes": true', text)
        self.assertIn('"word": "true"', text)
        self.assertIn('"none": null', text)
        self.assertIn('"half": 0.5', text)

    def test_b077_an_argument_called_arguments_is_kept(self):
        tools = [tool("f", {"a": {"type": "integer"}}),
                 tool("g", {"arguments": {"type": "object"}})]
        self.assertEqual(self.every_cut("nested argument", tools=tools)["calls"],
                         [("g", '{"arguments": {"x": 1}}')])

    def test_b079_what_might_have_become_markup_is_sent_at_the_end(self):
        for name in ["tail 1", "tail 2", "tail 3", "tail 4"]:
            for tools in [..., [WEATHER]]:
                said = self.every_cut(name, tools=tools)
                self.assertEqual((said["content"], said["finish"]), (REPLIES[name], "stop"))

    def test_b080_tools_are_taken_leniently_or_refused_by_name(self):
        for function in [{"name": "f"}, {"name": "f", "parameters": None},
                         {"name": "f", "parameters": {"type": "object", "required": None}},
                         {"name": "f", "parameters": {"type": "object", "properties": {}}}]:
            self.both("[paris 0]", tools=[{"type": "function", "function": function}])
        self.both("[paris 0]", tools=[tool(f"tool_{i}") for i in range(200)])
        self.assertTrue(self.refused(None, tools=[{"type": "function", "function": {}}])["param"]
                        .startswith("tools[0]"))
        self.refused("tools[1].type", tools=[WEATHER, {"type": "web_search"}])

    def test_b081_results_in_another_order_are_taken(self):
        call = lambda i: {"id": f"call_{i}", "type": "function",
                          "function": {"name": "get_weather", "arguments": '{"location": "x"}'}}
        result = lambda i: {"role": "tool", "tool_call_id": f"call_{i}", "content": f"result {i}"}
        asked = [{"role": "user", "content": "go"},
                 {"role": "assistant", "content": "", "tool_calls": [call(1), call(2)]}]
        prompt = lambda *results: self.server.post("/v1/tokenize", {
            "messages": [*asked, *results], "tools": [WEATHER]})[1]["tokens"]
        self.assertEqual(prompt(result(1), result(2)), prompt(result(2), result(1)))

    # ---- Thinking.

    def test_b009_reasoning_that_never_ends_is_reasoning_and_shows_no_end_token(self):
        reply = self.both("[never closes]", reasoning_effort="high")
        self.assertEqual(reply.say(), {"content": "", "reasoning": "Good morning!", "calls": [],
                                       "finish": "stop"})

    def test_b011_endless_reasoning_ends_at_max_tokens_and_others_go_on(self):
        with ThreadPoolExecutor(2) as pool:
            loop = pool.submit(self.chat, "[loops]", True, reasoning_effort="high", max_tokens=2000)
            self.assertEqual(self.both("anything").content, "Hello.")
            reply = loop.result()
        self.assertEqual((reply.finish, reply.usage["completion_tokens"]), ("length", 2000))
        self.assertEqual(reply.content, "")

    def test_b012_prompt_and_parser_agree_whether_the_model_thinks(self):
        off = [{"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"},
               {"chat_template_kwargs": {"thinking": False}},
               {"chat_template_kwargs": {"enable_thinking": False}}]
        on = [{"thinking": {"type": "enabled"}}, {"reasoning_effort": "low"}, {},
              {"chat_template_kwargs": {"thinking": True}},
              {"chat_template_kwargs": {"enable_thinking": True}}]
        for fields in off:
            reply = self.both("[paris 0]", **{"reasoning_effort": ..., **fields, "tools": [WEATHER]})
            self.assertEqual((reply.reasoning, len(reply.calls)), ("", 1), fields)
        for fields in on:
            reply = self.both("[tail 1 2 thinking]", **{"reasoning_effort": ..., **fields})
            self.assertEqual((reply.reasoning, reply.content), ("I wonder.", REPLIES["tail 1"]), fields)

    def test_b014_a_history_without_its_reasoning_is_taken(self):
        call = {"id": "call_1", "type": "function",
                "function": {"name": "get_weather", "arguments": '{"location": "Paris"}'}}
        messages = [{"role": "user", "content": "one"},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"},
                    {"role": "assistant", "content": "It is 18 degrees."},
                    {"role": "user", "content": "And then?"}]
        for turns in (3, 5):
            status, reply = self.server.post("/v1/chat/completions", {
                "messages": messages[:turns], "tools": [WEATHER], "reasoning_effort": "none"})
            self.assertEqual((status, reply["choices"][0]["message"]["content"]), (200, "Hello."))

    def test_b016_b017_what_is_not_enforced_is_refused_by_name(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        for effort in ["none", "high"]:
            self.refused("tool_choice", tools=[WEATHER], tool_choice="required", reasoning_effort=effort)
            self.refused("tool_choice", tools=[WEATHER], tool_choice=named, reasoning_effort=effort)
        for schema in [{"type": "foo"}, {"$ref": "http://127.0.0.1:9/x"}, {"$ref": "#"}]:
            self.refused("response_format", response_format={
                "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
        none = self.server.post("/v1/tokenize", {
            "messages": [{"role": "user", "content": "x"}], "tools": [WEATHER], "tool_choice": "none"})
        self.assertEqual(none[0], 200)

    # ---- Characters.

    def test_b031_b033_characters_arrive_whole(self):
        text = REPLIES["emoji"]
        self.assertEqual(self.every_cut("emoji")["content"], text)
        self.assertEqual(self.both("[emoji bytes]").content, text)
        reply = self.both("[emoji bytes thinking]", reasoning_effort="high")
        self.assertEqual((reply.reasoning, reply.content), (text, text))

    def test_b049_half_characters_are_refused_by_position_and_whole_ones_kept(self):
        def ask(raw):
            body = b'{"messages": [{"role": "user", "content": "' + raw + b'"}]}'
            status, _, content = self.server.request("POST", "/v1/chat/completions", body)
            return status, json.loads(content)
        for raw in [rb"\ud83d", rb"\udc00", rb"\udc00\ud83d", b"\xc3\x28", b"\xff"]:
            status, reply = ask(b"x" + raw + b"y")
            self.assertEqual(status, 400, raw)
            self.assertRegex(reply["error"]["message"], r"\d", raw)
            self.assertNotIn("\udcc3", reply["error"]["message"])
        self.assertEqual(ask(rb"\ud83d\ude00")[0], 200)
        pair = self.server.post("/v1/tokenize", {"prompt": "\U0001f600"})[1]["tokens"]
        body = b'{"prompt": "\\ud83d\\ude00"}'
        self.assertEqual(json.loads(self.server.request("POST", "/v1/tokenize", body)[2])["tokens"], pair)

    # ---- Usage.

    def test_b050_usage_stands_once_at_the_end_if_asked_for(self):
        for wanted in [True, False, None]:
            body = {"messages": [{"role": "user", "content": "x"}], "stream": True,
                    "reasoning_effort": "none"}
            if wanted is not None:
                body["stream_options"] = {"include_usage": wanted}
            events = [e for e in sse_events(self.server.request(
                "POST", "/v1/chat/completions", body)[2]) if e]
            with_usage = [e for e in events if e.get("usage")]
            self.assertEqual(len(with_usage), 1 if wanted else 0)
            if wanted:
                usage = with_usage[0]["usage"]
                self.assertEqual(with_usage[0]["choices"], [])
                self.assertIs(with_usage[0], events[-1])
                self.assertEqual(usage["prompt_tokens"] + usage["completion_tokens"],
                                 usage["total_tokens"])

    def test_b051_reasoning_tokens_are_counted_the_same_streamed_and_not(self):
        usage = self.both("[counted]", reasoning_effort="high").usage
        # 37 of reasoning, the end of it, 11 of the answer, and the end token.
        self.assertEqual(usage["completion_tokens"], 37 + 1 + 11 + 1)
        self.assertIn(usage["completion_tokens_details"]["reasoning_tokens"], (37, 38))

    def test_b052_cached_tokens_come_under_every_name(self):
        usage = self.both("twice the same").usage
        self.assertEqual(usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"],
                         usage["prompt_tokens"])
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"],
                         usage["prompt_cache_hit_tokens"])

    # ---- Stops.

    def test_b066_text_in_front_of_a_stop_in_one_token_is_kept(self):
        said = self.every_cut("newline", stop=["\n"])
        self.assertEqual((said["content"], said["finish"]), ("Is that so?", "stop"))

    def test_b067_what_was_held_back_for_a_stop_comes_when_the_answer_ends(self):
        self.assertEqual(self.every_cut("uno", stop=["TRE\nAAAA"])["content"], "UNO DUE TRE")
        reply = self.both("[uno 1]", stop=["O DUE TRE", "UNO DUX"], max_tokens=4)
        self.assertTrue("UNO DUE TRE".startswith(reply.content) and reply.content)

    def test_b068_stops_neither_repeat_nor_lose_text(self):
        self.assertEqual(self.every_cut("alice", stop=["\n", "Alice:"])["content"], REPLIES["alice"])
        self.assertEqual(self.every_cut("alice", stop=["aba", "bab"])["content"], "So Alice! said ")
        self.assertEqual(self.every_cut("five", stop=["v", "x", "y", "our", "z"])["content"],
                         "one two three f")
        self.refused("stop", stop=[""])
        self.refused("stop", stop=["x"] * 1000)
        self.refused("stop[1]", stop=["a", 5])
        self.assertIn(self.server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "x"}], "stop": ["x" * 1_000_000]})[0], (200, 400))

    def test_b069_stops_leave_markup_and_reasoning_alone(self):
        said = self.every_cut("stop in a call", stop=["STOP", "wonder"], tools=[WEATHER])
        self.assertEqual(said["calls"], [("get_weather", '{"location": "STOP city"}')])
        self.assertEqual(said["content"], "")

    # ---- Choices.

    def test_b070_every_choice_ends_once_under_its_own_index(self):
        body = {"messages": [{"role": "user", "content": "[choices]"}], "n": 3, "stream": True,
                "max_tokens": 30, "stream_options": {"include_usage": True},
                "reasoning_effort": "none"}
        events = [e for e in sse_events(self.server.request("POST", "/v1/chat/completions", body)[2]) if e]
        ends, roles, texts = {}, {}, {}
        for choice in (c for e in events for c in e["choices"]):
            index = choice["index"]
            texts[index] = texts.get(index, "") + (choice["delta"].get("content") or "")
            if choice["delta"].get("role"):
                roles[index] = roles.get(index, 0) + 1
            if choice["finish_reason"]:
                self.assertNotIn(index, ends)
                ends[index] = choice["finish_reason"]
        self.assertEqual(ends, {0: "stop", 1: "length", 2: "stop"})
        self.assertEqual(roles, {0: 1, 1: 1, 2: 1})
        self.assertEqual(texts[0], "a b")
        alone = self.both("[choices]").usage
        usage = events[-1]["usage"]
        self.assertEqual(usage["prompt_tokens"], alone["prompt_tokens"])
        self.assertEqual(usage["completion_tokens"], 2 * alone["completion_tokens"] + 30)

    # ---- Limits and bodies.

    def test_b041_lengths_without_sense_are_refused_by_name(self):
        for bad in [0, -1, 2**63, 1.5, "10"]:
            self.refused("max_tokens", max_tokens=bad)
        error = self.refused(None, max_tokens=2**31)
        self.assertEqual(error["code"], "context_length_exceeded")

    def test_b042_odd_prompts_and_values_are_honoured_or_refused_by_name(self):
        for messages, ok in [([], False), ([{"role": "user", "content": ""}], True),
                             ([{"role": "assistant", "content": None}], None),
                             ([{"role": "system", "content": "only"}], True),
                             ([{"role": "user", "content": "a\0b"}], True)]:
            status, reply = self.server.post("/v1/chat/completions", {"messages": messages})
            if ok is not None:
                self.assertEqual(status, 200 if ok else 400, (messages, reply))
            else:
                self.assertIn(status, (200, 400))
        for field, bad in [("temperature", -1), ("temperature", 3), ("top_p", 0), ("min_p", 2),
                           ("top_k", -2), ("presence_penalty", 3), ("frequency_penalty", -3),
                           ("repetition_penalty", 0), ("n", 0)]:
            self.refused(field, **{field: bad})
        for prompt in ["", [10**9], [-1], []]:
            status, reply = self.server.post("/v1/completions", {"prompt": prompt})
            if status != 200:
                self.assertEqual((status, reply["error"]["type"]), (400, "invalid_request_error"))

    def test_b063_numbers_of_alternatives_are_checked(self):
        for top in [0, ..., 20]:
            fields = {"logprobs": True, "top_logprobs": top, "messages": [
                {"role": "user", "content": "x"}], "reasoning_effort": "none"}
            fields = {k: v for k, v in fields.items() if v is not ...}
            status, reply = self.server.post("/v1/chat/completions", fields)
            self.assertEqual(status, 200)
            tokens = reply["choices"][0]["logprobs"]["content"]
            self.assertTrue(tokens)
            self.assertTrue(all(t["top_logprobs"] == [] for t in tokens if top in (0, ...)))
        for top in [21, -1, "5"]:
            self.refused("top_logprobs", logprobs=True, top_logprobs=top)

    def test_b064_bytes_of_the_tokens_are_those_of_the_text(self):
        status, reply = self.server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "[emoji bytes]"}], "logprobs": True,
            "reasoning_effort": "none"})
        tokens = reply["choices"][0]["logprobs"]["content"]
        joined = b"".join(bytes(t["bytes"] or []) for t in tokens)
        self.assertTrue(joined.startswith(REPLIES["emoji"].encode()), joined)
        self.assertNotIn("Ġ", "".join(t["token"] for t in tokens))

    # ---- Faults.

    def test_b100_a_fault_ends_its_request_only(self):
        with ThreadPoolExecutor(4) as pool:
            others = [pool.submit(self.chat, "anything", True) for _ in range(3)]
            body = {"messages": [{"role": "user", "content": "[fails]"}], "stream": True,
                    "reasoning_effort": "none"}
            content = self.server.request("POST", "/v1/chat/completions", body)[2]
            self.assertTrue(any(e and "error" in e for e in sse_events(content)))
            self.assertEqual({o.result().content for o in others}, {"Hello."})


class Alone(unittest.TestCase):
    """With a server of their own."""

    def serve(self, lines, *flags):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        script = Path(folder.name) / "script.jsonl"
        script.write_text("".join(json.dumps(line) + "\n" for line in lines))
        server = Server(BINARY, "--engine", f"scripted={script}", *flags)
        self.addCleanup(server.stop)
        return server

    def test_b073_a_stream_that_waits_is_kept_alive_by_the_clock(self):
        line = {"first_delay_ms": 2500, "pieces": [{"text": "Late."}]}
        server = self.serve([line], "--early-stream-start", "0.5")
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True,
                "reasoning_effort": "none"}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        begin = time.monotonic()
        connection.request("POST", "/v1/chat/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.assertLess(time.monotonic() - begin, 2.4)  # the headers are there before the token
        content = response.read()
        connection.close()
        blocks = content.decode().split("\n\n")
        comments = [b for b in blocks if b.startswith(":")]
        self.assertGreaterEqual(len(comments), 3)
        self.assertEqual(blocks[: len(comments)], comments)
        events = [e for e in sse_events(content) if e]
        self.assertEqual("".join(c["delta"].get("content") or "" for e in events
                                 for c in e["choices"]), "Late.")

    def test_b087_b089_memory_stays_flat_over_thousands_of_requests(self):
        server = self.serve([{"pieces": [{"text": "I think"}, {"text": "</think>"}, {"text": PARIS}]}])

        def anonymous_bytes():
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            return sum(1024 * int(re.search(rf"{name}:\s+(\d+)", status)[1])
                       for name in ("RssAnon", "VmSwap"))

        def ask(worker, count):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            for i in range(count):
                body = {"messages": [{"role": "user", "content": f"{worker} {i} " * (1 + i % 20)}],
                        "stream": i % 2 == 0, "tools": [WEATHER]}
                if i % 3 == 0:
                    body.update(logprobs=True, top_logprobs=20)
                if i % 5 == 0:
                    body["messages"].append({"role": "assistant", "content": "It", "prefix": True})
                connection.request("POST", "/v1/chat/completions", json.dumps(body),
                                   {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read()
                self.assertEqual(response.status, 200)
            connection.close()

        def round_of(count):
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda worker: ask(worker, count // 4), range(4)))
            return anonymous_bytes()

        before = round_of(1000)
        # What an allocator keeps from a peak is not a leak: it does not come again.
        growth = []
        for _ in range(4):
            after = round_of(1000)
            growth.append(after - before)
            before = after
        self.assertLess(min(growth), 1000 * 1024, growth)
        self.assertLess(sum(growth), 4 * 1000 * 1024, growth)


class Nano(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(BINARY, env={"MILLRACE_API_KEY": "sk-field"})
        cls.key = {"Authorization": "Bearer sk-field"}

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def ask(self, path="/v1/completions", **body):
        status, reply = self.server.post(path, body, headers=self.key)
        self.assertEqual(status, 200, reply)
        return reply

    def texts(self, **body):
        reply = self.ask(prompt="Once upon a time", max_tokens=12, ignore_eos=True, **body)
        return [c["text"] for c in reply["choices"]]

    def test_b053_b054_b056_copies_are_equal_alone_and_in_a_crowd(self):
        greedy = lambda _=0: self.texts(temperature=0)[0]
        alone = {greedy() for _ in range(5)}
        with ThreadPoolExecutor(16) as pool:
            noise = [pool.submit(self.texts, temperature=1) for _ in range(16)]
            crowd = set(pool.map(greedy, range(80)))
            [n.result() for n in noise]
        self.assertEqual(len(alone | crowd), 1)

    def test_b071_a_seed_repeats_all_choices(self):
        first, again = (self.texts(seed=11, n=4, temperature=1) for _ in range(2))
        self.assertEqual(first, again)
        self.assertEqual(len(set(first)), 4)
        self.assertNotEqual(self.texts(n=4, temperature=1), self.texts(n=4, temperature=1))

    def test_b072_without_a_seed_answers_differ(self):
        draw = lambda _: self.texts(temperature=1)[0]
        self.assertGreater(len({draw(i) for i in range(20)}), 15)
        with ThreadPoolExecutor(20) as pool:
            self.assertGreater(len(set(pool.map(draw, range(20)))), 15)
        self.assertEqual(len({self.texts(temperature=1, seed=5)[0] for _ in range(20)}), 1)

    def test_b075_control_literals_of_clients_are_text(self):
        count = lambda messages: Counter(
            id for id in self.ask("/v1/tokenize", messages=messages)["tokens"]
            if id in CONTROL.values())
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for literal in ["</think>", "<｜User｜>", "<｜end▁of▁sentence｜>", "<｜DSML｜ calls>"]:
            talk = lambda text: [
                {"role": "system", "content": text}, {"role": "user", "content": text},
                {"role": "assistant", "content": text, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": text},
                {"role": "user", "content": "x"}]
            self.assertEqual(count(talk(f"A {literal} B")), count(talk("A B")), literal)

    def test_b109_preflight_needs_no_key_and_keys_come_in_both_headers(self):
        status, headers, _ = self.server.request("OPTIONS", "/v1/chat/completions", headers={
            "Origin": "https://app.example", "Access-Control-Request-Method": "POST"})
        self.assertEqual(status, 204)
        self.assertIn("access-control-allow-origin", headers)
        body = {"prompt": "x", "max_tokens": 1}
        for headers, expected in [({}, 401), ({"Authorization": "Bearer wrong"}, 401),
                                  ({"Authorization": "Bearer "}, 401), (self.key, 200),
                                  ({"Authorization": "bearer sk-field"}, 200),
                                  ({"x-api-key": "sk-field"}, 200), ({"x-api-key": "no"}, 401)]:
            self.assertEqual(self.server.post("/v1/completions", body, headers=headers)[0], expected,
                             headers)
        status, reply = self.server.post("/v1/messages", {}, headers={"x-api-key": "no"})
        self.assertEqual((status, reply["error"]["type"]), (401, "authentication_error"))

    def test_b111_without_a_key_nothing_shows_what_others_ask(self):
        secret = "the-owl-is-blue"
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.ask, prompt=secret, max_tokens=1500, ignore_eos=True)
            paths = json.loads(self.server.get("/openapi.json", headers=self.key)[1])["paths"]
            for path in paths:
                status, content = self.server.get(path.replace("{id}", "x"))
                self.assertNotIn(secret.encode(), content, path)
                if path not in ("/", "/web/{id}", "/web/", "/metrics", "/version") and not \
                        path.startswith(("/health", "/ping")):
                    self.assertIn(status, (401, 403, 405), path)
            running.result()


class Table(unittest.TestCase):
    """docs/field-reports.md names tests that are there."""

    def test_every_report_has_its_line_and_every_test_exists(self):
        page = (ROOT / "docs/field-reports.md").read_text()
        rows = re.findall(r"^\| (B\d{3}) \| (.*?) \| (.*) \|$", page, re.M)
        ids = [row[0] for row in rows]
        self.assertEqual(len(ids), 93)
        self.assertEqual(sorted(set(ids)), ids)
        sources = {}
        for folder in ["src", "tests"]:
            for path in (ROOT / folder).rglob("*"):
                if path.suffix in (".cc", ".py", ".mjs") and "node_modules" not in path.parts:
                    sources[path.name] = sources.get(path.name, "") + path.read_text()
        checked = 0
        for report, _, where in rows:
            names = re.findall(r"`([^`]+)`", where)
            file = None
            for name in names:
                if re.search(r"\.(cc|py|mjs)$", name):
                    file = Path(name).name
                    self.assertIn(file, sources, report)
                elif file and name.startswith("test_"):
                    self.assertTrue(f"def {name}(" in sources[file], f"{report}: {name}")
                    checked += 1
                elif file and re.fullmatch(r"\w+\.[A-Z]\w+", name):
                    suite, case = name.split(".")
                    self.assertTrue(re.search(rf"\({suite}, *{case}\)", sources[file]),
                                    f"{report}: {name}")
                    checked += 1
                elif file and file.endswith(".mjs") and ": " in name:
                    self.assertTrue(f'test("{name}"' in sources[file], f"{report}: {name}")
                    checked += 1
        self.assertGreater(checked, 60)


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()

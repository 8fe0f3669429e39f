#!/usr/bin/python3
"""`millrace batch` from outside: answers in their order, the same file however it came about.

usage: batch_test.py BINARY [unittest arguments]
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

TIMEOUT = 300  # seconds; generous, for machines that do other work
BINARY = None
used_flags = set()  # for the last test

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def note_flags(arguments):
    used_flags.update(a for a in arguments if a.startswith("-"))


def run(*arguments, stdin=""):
    arguments = [str(a) for a in arguments]
    note_flags(arguments)
    return subprocess.run(
        [BINARY, "batch", *arguments], input=stdin, capture_output=True, text=True, timeout=TIMEOUT
    )


def request(custom_id, url, **body):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def chat(custom_id, text, **body):
    messages = [{"role": "user", "content": text}]
    return request(custom_id, "/v1/chat/completions", messages=messages, **body)


def text(custom_id, prompt, **body):
    return request(custom_id, "/v1/completions", prompt=prompt, **body)


def many(count):
    """Requests of every kind and length."""
    r = random.Random(5)
    lines = []
    for i in range(count):
        words = " ".join(r.choice(["red", "door", "owl", "17", "Paris"]) for _ in range(r.randint(1, 40)))
        tokens = r.choice([1, 5, 20, 60])
        options = [
            dict(temperature=0),
            dict(temperature=1.2),
            dict(seed=i, top_p=0.9),
            dict(n=3),
            dict(logprobs=1),
        ]
        own = r.choice(options)
        if i % 10 == 7:
            lines.append(text(f"line {i}", words, temperature=9))
        elif i % 3 == 0 and "logprobs" not in own:
            lines.append(chat(f"line {i}", words, max_tokens=tokens, **own))
        else:
            lines.append(text(f"line {i}", words, max_tokens=tokens, **own))
    return "".join(line + "\n" for line in lines)


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"

    def batch(self, content, *flags, expect=0):
        self.input.write_text(content)
        result = run("-i", self.input, "-o", self.output, *flags)
        self.assertEqual(result.returncode, expect, result.stderr)
        self.stderr = result.stderr
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def body(self, line, status=200):
        """The body of an answer that is in the API's form."""
        self.assertEqual(set(line), {"id", "custom_id", "response", "error"})
        self.assertIsNone(line["error"])
        self.assertEqual(line["response"]["status_code"], status)
        self.assertRegex(line["response"]["request_id"], "^batch_req_[0-9a-f]{24}$")
        return line["response"]["body"]


class Answers(Case):
    def test_a_chat_is_answered_as_the_api_does(self):
        (line,) = self.batch(chat("a", "What is the capital of France?", temperature=0) + "\n")
        body = self.body(line)
        self.assertEqual((line["custom_id"], body["object"]), ("a", "chat.completion"))
        (choice,) = body["choices"]
        self.assertEqual(choice["message"]["content"], "The capital of France is Paris.")
        self.assertIn("It is Paris.", choice["message"]["reasoning_content"])
        self.assertEqual(choice["message"]["reasoning"], choice["message"]["reasoning_content"])
        self.assertEqual((choice["finish_reason"], choice["message"]["tool_calls"]), ("stop", []))
        usage = body["usage"]
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        self.assertGreater(usage["completion_tokens_details"]["reasoning_tokens"], 5)
        self.assertEqual(body["model"], "nano")
        self.assertRegex(body["system_fingerprint"], "^reference-[0-9a-f]{16}$")

    def test_a_tool_call_is_one(self):
        ask = dict(tools=[WEATHER], temperature=0)
        (line,) = self.batch(chat("a", "What is the weather in Paris?", **ask) + "\n")
        (choice,) = self.body(line)["choices"]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertIsNone(choice["message"]["content"])
        (call,) = choice["message"]["tool_calls"]
        self.assertRegex(call["id"], "^call_[0-9a-f]{24}$")
        self.assertEqual((call["type"], call["function"]["name"]), ("function", "get_weather"))
        self.assertIn("city", json.loads(call["function"]["arguments"]))

    def test_log_probabilities_of_a_chat(self):
        ask = dict(max_tokens=4, logprobs=True, top_logprobs=2, temperature=0)
        (line,) = self.batch(chat("a", "Hi", **ask) + "\n")
        content = self.body(line)["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 4)
        for token in content:
            self.assertEqual(bytes(token["bytes"]).decode(), token["token"])
            self.assertEqual(len(token["top_logprobs"]), 2)
            self.assertEqual(token["top_logprobs"][0]["token"], token["token"], "greedy")

    def test_completions_of_several_prompts_are_numbered_by_prompt(self):
        lines = self.batch(
            text("a", ["Once upon", "Genesis 1"], n=2, max_tokens=3, temperature=0)
            + "\n"
            + text("b", "Once upon", max_tokens=3, temperature=0)
        )
        body, single = self.body(lines[0]), self.body(lines[1])
        self.assertEqual([c["index"] for c in body["choices"]], [0, 1, 2, 3])
        texts = [c["text"] for c in body["choices"]]
        self.assertEqual((texts[0], texts[2]), (texts[1], texts[3]), "greedy choices are alike")
        self.assertNotEqual(texts[0], texts[2])
        self.assertEqual(single["choices"][0]["text"], texts[0])
        self.assertEqual(body["usage"]["completion_tokens"], 12)

    def test_echo_shows_the_prompt_and_its_log_probabilities(self):
        ask = dict(echo=True, logprobs=1, max_tokens=2, temperature=0)
        (line,) = self.batch(text("a", "Once upon a time", **ask) + "\n")
        (choice,) = self.body(line)["choices"]
        self.assertTrue(choice["text"].startswith("Once upon a time"))
        logprobs = choice["logprobs"]
        count = len(logprobs["tokens"])
        self.assertEqual([len(logprobs[k]) for k in sorted(logprobs)], [count] * 4)
        self.assertIsNone(logprobs["token_logprobs"][0])
        for offset, token in zip(logprobs["text_offset"][1:], logprobs["tokens"][1:]):
            self.assertEqual(choice["text"][offset : offset + len(token)], token)
        ask = dict(ask, max_tokens=0)
        (line,) = self.batch(text("a", "Once upon a time", **ask) + "\n", "--overwrite")
        (scored,) = self.body(line)["choices"]
        self.assertEqual(scored["text"], "Once upon a time")
        self.assertEqual(scored["logprobs"]["token_logprobs"], logprobs["token_logprobs"][: count - 2])

    def test_what_cannot_be_answered_says_why_in_its_place(self):
        content = "\n".join(
            [
                "garbage",
                "[]",
                json.dumps({"custom_id": 5}),
                json.dumps({"custom_id": "m", "method": "GET", "url": "/v1/completions", "body": {}}),
                request("u", "/v1/embeddings"),
                json.dumps({"custom_id": "o", "method": "POST", "url": "/v1/completions", "body": 1}),
                "",
                text("ok", "Hi", max_tokens=1),
                text("ok", "Hi", max_tokens=1),
                text("t", "Hi", temperature=9),
                text("s", "Hi", stream=True),
                text("long", [1] * 20000),
                text("id", [5000]),
                chat("image", [{"type": "image_url", "image_url": {"url": "data:x"}}]),
            ]
        )
        lines = self.batch(content)
        errors = [line["error"]["message"] if line["error"] else None for line in lines]
        expected = [
            "JSON byte 0: ",
            "request: found an array of 0, expected an object",
            "custom_id: found number 5, expected a string",
            'method: found string "GET", expected "POST"',
            'url: found string "/v1/embeddings", expected "/v1/chat/completions" or',
            "body: found number 1, expected an object",
            None,
            'custom_id: found "ok" twice, expected it once',
        ]
        for found, want in zip(errors, expected):
            self.assertTrue(found is None if want is None else want in found, (found, want))
        ids = [line["custom_id"] for line in lines]
        self.assertEqual(
            ids, [None, None, None, "m", "u", "o", "ok", "ok", "t", "s", "long", "id", "image"]
        )
        refused = [self.body(line, 400)["error"] for line in lines[8:]]
        self.assertEqual([e["type"] for e in refused], ["invalid_request_error"] * 5)
        self.assertEqual((refused[0]["param"], refused[0]["code"]), ("temperature", "invalid_value"))
        self.assertEqual(refused[1]["param"], "stream")
        self.assertEqual(refused[2]["code"], "context_length_exceeded")
        self.assertIn("maximum context length is 16384 tokens", refused[2]["message"])
        self.assertIn("token id 5000", refused[3]["message"])
        self.assertIn("images", refused[4]["message"])
        self.assertIn("12 of them refused", self.stderr)

    def test_the_model_is_checked_where_it_has_a_name(self):
        content = text("a", "Hi", model="other", max_tokens=1) + "\n"
        (line,) = self.batch(content)
        self.assertEqual(self.body(line)["model"], "other")
        self.assertIn("requests ask for other, nano answers", self.stderr)
        (line,) = self.batch(content, "--overwrite", "--served-model-name", "mine")
        error = self.body(line, 404)["error"]
        self.assertEqual((error["type"], error["message"]),
                         ("not_found_error", "model: found other, expected mine"))

    def test_alternatives_are_limited(self):
        content = text("a", "Hi", logprobs=30, max_tokens=1) + "\n"
        (line,) = self.batch(content)
        self.assertEqual(self.body(line, 400)["error"]["param"], "logprobs")
        (line,) = self.batch(content, "--overwrite", "--max-logprobs", 40)
        (top,) = self.body(line)["choices"][0]["logprobs"]["top_logprobs"]
        self.assertIn(len(top), (30, 31))  # the token itself is there, among the best or not


class OneFile(Case):
    """The output is a function of the input and the model."""

    def test_neither_load_nor_threads_change_a_byte(self):
        content = many(40)
        self.batch(content)
        whole = self.output.read_bytes()
        self.assertEqual(whole.count(b"\n"), 40)
        for flags in (
            ["--max-num-seqs", 1, "--threads", 1],
            ["--max-num-seqs", 7, "--threads", 2, "--chunk", 5],
            ["--max-num-batched-tokens", 16, "--max-step-ms", 5, "--isa", "SSE4"],
            ["--kv-bytes", 4000000, "--max-model-len", "auto"],
            ["--expert-cache-bytes", 3000000],
        ):
            self.batch(content, "--overwrite", *flags)
            self.assertEqual(self.output.read_bytes(), whole, flags)

    def test_a_recorded_run_is_replayed(self):
        record = self.folder / "record"
        self.batch(many(12), "--record", record, "--max-num-seqs", 5)
        result = subprocess.run(
            [BINARY, "replay", record, "--threads", "1"], capture_output=True, text=True, timeout=TIMEOUT
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_seed_is_part_of_the_input(self):
        content = text("a", "Once upon a time", max_tokens=20, temperature=1) + "\n"
        texts = set()
        for seed in (1, 2, 1):
            (line,) = self.batch(content, "--overwrite", "--seed", seed)
            texts.add(self.body(line)["choices"][0]["text"])
        self.assertEqual(len(texts), 2)

    def test_killed_anywhere_and_run_again_it_is_the_undisturbed_file(self):
        content = many(60)
        started = time.monotonic()
        self.batch(content)
        seconds = time.monotonic() - started
        whole = self.output.read_bytes()
        r = random.Random(time.time_ns())
        cut = 0
        for _ in range(10):
            self.output.unlink()
            # Killed again and again until one run comes through.
            for attempt in range(50):
                process = subprocess.Popen(
                    [BINARY, "batch", "-i", self.input, "-o", self.output],
                    stderr=subprocess.DEVNULL,
                )
                try:
                    process.wait(r.uniform(0.05, 1.1) * seconds * (1 + attempt / 5))
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    so_far = self.output.read_bytes() if self.output.exists() else b""
                    cut += 0 < len(so_far) < len(whole)
                    self.assertTrue(whole.startswith(so_far))
                    if so_far and r.random() < 0.5:  # as if the disk had kept less
                        os.truncate(self.output, r.randrange(len(so_far)))
                    continue
                self.assertEqual(process.returncode, 0)
                break
            self.assertEqual(self.output.read_bytes(), whole)
        self.assertGreater(cut, 0, "no run was stopped in the middle")

    def test_ctrl_c_ends_it_so_that_it_can_go_on(self):
        content = many(60)
        self.batch(content)
        whole = self.output.read_bytes()
        self.output.unlink()
        process = subprocess.Popen(
            [BINARY, "batch", "-i", self.input, "-o", self.output], stderr=subprocess.PIPE, text=True
        )
        while not (self.output.exists() and self.output.stat().st_size):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT)
        if process.returncode == 130:
            self.assertRegex(stderr, r"stopped after \d+ of 60 requests; the same command goes on")
            self.assertTrue(whole.startswith(self.output.read_bytes()))
        self.batch(content)
        self.assertEqual(self.output.read_bytes(), whole)

    def test_it_goes_on_only_behind_answers_to_the_same_input(self):
        self.batch(text("a", "Hi", max_tokens=1) + "\n" + text("b", "Hi", max_tokens=1))
        answers = self.output.read_text()

        def refused(content, pattern, *flags):
            self.input.write_text(content)
            result = run("-i", self.input, "-o", self.output, *flags)
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, pattern)
            self.assertEqual(self.output.read_text(), answers, "nothing is touched")

        first, second = text("a", "Hi", max_tokens=1), text("b", "Hi", max_tokens=1)
        whole, first_answer = answers, answers.splitlines(keepends=True)[0]
        refused(first + "\n" + text("c", "Hi", max_tokens=1),
                'line 2: found custom_id "b", expected "c", as line 2 of the input; --overwrite')
        refused(first, "line 2: found one more line, expected as many as the input has")
        refused(first + "\n" + text("b", "Hello", max_tokens=1),
                r'line 2: found the answer to another request, or under other flags \(custom_id "b"\)')
        refused(first + "\n" + second, "line 1: found the answer to another", "--seed", 9)
        refused(first + "\n" + second,
                "line 1: found system_fingerprint reference-.*, expected fp32-", "--numerics", "fp32")
        answers = "something else\n"
        self.output.write_text(answers)
        refused(text("a", "Hi"), "line 1: found something else, expected a line of a batch's output")
        begun = '{"id": "batch_req_'
        for answers in ('{"a": 1}', "words", begun[:-1] + "-", '{"id":"batch_req_', first_answer + "x"):
            self.output.write_text(answers)
            refused(first + "\n" + second, "found something else, expected a line of a batch's output, or its")
        for kept in (begun[:1], begun[:9], begun, first_answer + begun[:3]):
            self.output.write_text(kept)
            self.batch(first + "\n" + second)
            self.assertEqual(self.output.read_text(), whole, kept)


class Files(Case):
    def test_every_line_has_its_line_however_small_the_window(self):
        lines = [json.dumps({"custom_id": str(i)}) for i in range(100)]
        lines += [text(f"t{i}", "Hi", max_tokens=(60 if i == 0 else 1)) for i in range(60)]
        for flags in (["--max-num-seqs", 1], ["--max-num-seqs", 2], []):
            answers = self.batch("\n".join(lines), "--overwrite", *flags)
            self.assertEqual(len(answers), 160)

    def test_pipes_are_read_once(self):
        content = many(9)
        self.batch(content)
        want = self.output.read_text()
        os.mkfifo(self.folder / "fifo")
        writer = subprocess.Popen(["sh", "-c", f"cat {self.input} > {self.folder / 'fifo'}"])
        result = run("-i", self.folder / "fifo", "-o", "-")
        writer.wait()
        self.assertEqual(result.stdout, want, result.stderr)
        result = run("-i", "/dev/stdin", "-o", "-", stdin=content)
        self.assertEqual(result.stdout, want, result.stderr)

    def test_nothing_is_lost_when_a_run_cannot_start(self):
        self.batch(many(3))
        answers = self.output.read_text()
        for flags in (
            ["--model", self.folder],
            ["--max-model-len", 999999],
            ["--kv-bytes", 1],
            ["--record", self.folder / "no/where"],
            ["--record", self.folder],
        ):
            for output in (self.output, self.folder / "new"):
                result = run("-i", self.input, "-o", output, "--overwrite", *flags)
                self.assertEqual(result.returncode, 1, flags)
                self.assertEqual(self.output.read_text(), answers, flags)
            self.assertFalse((self.folder / "new").exists(), "nothing was to be written")
        for flags in (["-o", self.output, "--record", self.output],
                      ["-o", self.output, "--record", self.input],
                      ["-o", self.folder / "new", "--record", self.folder / "new"]):
            result = run("-i", self.input, "--overwrite", *flags)
            self.assertEqual(result.returncode, 2, flags)
            self.assertRegex(result.stderr, "--record: found the file of --(in|out)put, expected another")
            self.assertEqual(self.output.read_text(), answers, flags)
        self.assertFalse((self.folder / "new").exists())
        self.assertEqual(self.input.read_text(), many(3))
        with open(self.output) as stdin:
            result = subprocess.run(
                [BINARY, "batch", "-i", "-", "-o", self.output, "--overwrite"], stdin=stdin,
                capture_output=True, text=True, timeout=TIMEOUT,
            )
        self.assertEqual(result.returncode, 2)
        self.assertEqual(self.output.read_text(), answers)

    def test_an_error_while_a_request_runs_is_the_same_after_a_resume(self):
        content = "".join(text(f"{i}", "Hi", max_tokens=1) + "\n" for i in range(3))
        content += text("none", "a", max_tokens=5, allowed_token_ids=[1], min_tokens=3)
        lines = self.batch(content)
        whole = self.output.read_text()
        self.assertIn("request none, position 2: allowed_token_ids", self.body(lines[3], 400)["error"]["message"])
        self.output.write_text("".join(line + "\n" for line in whole.splitlines()[:3]))
        self.batch(content)
        self.assertEqual(self.output.read_text(), whole)

    def test_stdin_and_stdout(self):
        content = many(9)
        self.batch(content)
        result = run("-i", "-", "-o", "-", stdin=content)
        self.assertEqual(result.stdout, self.output.read_text())

    def test_an_empty_input_has_an_empty_output(self):
        self.assertEqual(self.batch("\n\n"), [])

    def test_files_that_cannot_be_used_are_named(self):
        result = run("-i", self.folder / "none", "-o", self.output)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "none: cannot be read: No such file")
        self.input.write_text(many(1))
        result = run("--input", self.input, "--output", self.folder / "no/where")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "no/where: cannot be written: No such file")
        result = run("-i", self.input, "-o", self.input)
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, "--output: found the file of --input, expected another")
        self.assertEqual(run("-i", self.input, "-o", self.output).returncode, 0)
        answers = self.output.read_text()
        result = run("-i", self.folder, "-o", self.output, "--overwrite")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, f"{self.folder}: is a directory, expected a file")
        with open(self.folder / "link", "w") as stdout:  # - is that file
            result = subprocess.run([BINARY, "batch", "-i", self.folder / "link", "-o", "-"],
                                    stdout=stdout, stderr=subprocess.PIPE, timeout=TIMEOUT)
        self.assertEqual(result.returncode, 2)
        self.assertEqual(self.output.read_text(), answers)
        result = run("-i", self.input, "-o", self.output, "--served-model-name", "")
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, "--served-model-name: found nothing")
        result = run("-i", self.input, "-o", "/dev/full")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "/dev/full: cannot be written: No space left")

    def test_a_file_has_one_writer(self):
        self.input.write_text(many(300))
        command = [BINARY, "batch", "-i", self.input, "-o", self.output]
        first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while not (self.output.exists() and self.output.stat().st_size):
                self.assertIsNone(first.poll())
                time.sleep(0.01)
            second = run("-i", self.input, "-o", self.output)
            if first.poll() is None:
                self.assertEqual(second.returncode, 1)
                self.assertRegex(second.stderr, "another process is writing it")
        finally:
            first.kill()
            first.wait()

    def test_no_room_is_refused_with_the_numbers(self):
        self.input.write_text(many(1))
        result = run("-i", self.input, "-o", self.output, "--kv-bytes", 1000, "-c", 4000)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "a sequence of 4000 tokens needs [0-9]+ bytes, found 1000")


class Load(Case):
    def test_two_thousand_sequences_at_once(self):
        r = random.Random(1)
        content = "".join(
            text(f"{i}", r.choice(["Once", "red", "The king"]) * r.randint(1, 4), max_tokens=r.randint(1, 6)) + "\n"
            for i in range(2048)
        )
        self.batch(content, "--max-num-seqs", 64)
        want = self.output.read_bytes()
        self.output.unlink()
        process = subprocess.Popen(
            [BINARY, "batch", "-i", self.input, "-o", self.output, "--max-num-seqs", "2048"],
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(self.output.read_bytes(), want)
        self.assertLess(usage.ru_maxrss, 400 * 1024, "KiB of memory at most")


class Flags(Case):
    def test_every_flag_was_used(self):
        help_text = subprocess.run(
            [BINARY, "batch", "--help"], capture_output=True, text=True, check=True
        ).stdout
        note_flags(["--help", "--model", "--numerics"])  # of every command
        for names in re.findall(r"^  (-[-a-z,]+)", help_text, re.M):
            used = any(name in used_flags for name in names.split(","))
            self.assertTrue(used or "PARTIAL" in os.environ, f"{names} has no test")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    BINARY = os.path.abspath(sys.argv.pop(1))
    # The last class last: unittest goes by the alphabet.
    cases = [Answers, OneFile, Files, Load, Flags]
    if len(sys.argv) == 1:
        suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(c) for c in cases)
        sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())
    unittest.main()

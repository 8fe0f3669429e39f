#!/usr/bin/env python3
"""`millrace bench` against the real server with the scripted engine, whose delays are known.

usage: bench_test.py MILLRACE [--strict] [unittest arguments]

--strict asks for delays reproduced to below 1 ms at the median, which takes a machine with room.
"""
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

from serving import NANO, Server, TIMEOUT

STRICT = False
FIRST_MS, GAP_MS, TOKENS, STREAMS = 100, 20, 40, 64


def write_script(folder, *lines):
    path = Path(folder) / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def steady(first_ms=FIRST_MS, gap_ms=GAP_MS, **more):
    return {"first_delay_ms": first_ms, "delay_ms": gap_ms, "repeat": "forever",
            "pieces": [{"text": " word"}], **more}


class Result:
    def __init__(self, status, out, err, folder):
        self.status, self.out, self.err = status, out, err
        summary, requests = Path(folder) / "summary.json", Path(folder) / "requests.jsonl"
        self.summary = json.loads(summary.read_text()) if summary.exists() else None
        self.requests = []
        if requests.exists():
            self.requests = [json.loads(line) for line in requests.read_text().splitlines()]


used_flags = {"--quiet", "--summary", "--requests-file"}  # bench() always sets these


def bench(*flags, env=None):
    used_flags.update(str(flag) for flag in flags if str(flag).startswith("--"))
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [BINARY, "bench", "--quiet", "--summary", f"{folder}/summary.json", "--requests-file",
             f"{folder}/requests.jsonl", *[str(f) for f in flags]],
            capture_output=True, text=True, timeout=TIMEOUT, env=env)
        return Result(run.returncode, run.stdout, run.stderr, folder)


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def serve(self, *lines, flags=()):
        script = write_script(self.folder.name, *lines)
        server = Server(BINARY, "--model", NANO, "--engine", f"scripted={script}",
                        "--no-access-log", *flags)
        self.addCleanup(server.stop)
        return f"http://127.0.0.1:{server.port}"

    def test_a_fixed_load_is_reported_in_full(self):
        url = self.serve(steady(10, 2))
        run = bench("--url", url, "--requests", 30, "--concurrency", 10, "--input-tokens", 50,
                    "--output-tokens", 20, "--prefix-tokens", 8, "--gpus", 2)
        self.assertEqual(run.status, 0, run.out + run.err)
        summary = run.summary
        self.assertTrue(summary["valid"])
        self.assertEqual(summary["requests_succeeded"], 30)
        self.assertEqual(summary["input_tokens"], 30 * 58)
        self.assertEqual(summary["output_tokens"], 30 * 20)
        self.assertEqual(summary["finish_reasons"], {"length": 30})
        self.assertEqual(summary["concurrency_max"], 10)
        self.assertEqual(summary["ttft_ms_n"], 30)
        self.assertAlmostEqual(summary["total_tok_s"],
                               summary["input_tok_s"] + summary["output_tok_s"])
        self.assertAlmostEqual(summary["total_tok_s_per_gpu"] * 2, summary["total_tok_s"])
        self.assertAlmostEqual(summary["interactivity_tok_s_p90"] * summary["itl_ms_p90"], 1000)
        self.assertGreater(summary["server"]["process_cpu_s"], 0)
        for word in ("TTFT", "interactivity (1 / ITL)", "E2E-normalised interactivity", "sha256",
                     "valid        yes"):
            self.assertIn(word, run.out)
        self.assertEqual(len(run.requests), 30)
        for request in run.requests:
            times = [request["send_ns"], request["head_ns"], sum(request["event_ns"][:1]),
                     sum(request["event_ns"]), request["done_ns"]]
            self.assertEqual(times, sorted(times))
            self.assertEqual(request["output_tokens"], 20)

    def test_an_open_load_comes_at_its_rate(self):
        url = self.serve(steady(5, 1))
        run = bench("--url", url, "--workload", "open", "--rate", 100, "--burstiness", 50,
                    "--requests", 100, "--input-tokens", 10, "--output-tokens", 5)
        scheduled = sorted(r["scheduled_ns"] for r in run.requests)
        self.assertEqual(len(scheduled), 100)
        self.assertAlmostEqual((scheduled[-1] - scheduled[0]) / 99 / 1e7, 1, delta=0.1)
        for request in run.requests:
            self.assertGreaterEqual(request["send_ns"], request["ready_ns"])

    def test_a_chat_tells_reasoning_from_what_is_visible(self):
        url = self.serve({"delay_ms": 5, "pieces": [{"text": "so"}, {"text": "</think>", "delay_ms": 50},
                                                    {"text": "yes"}]})
        run = bench("--url", url, "--endpoint", "chat", "--requests", 5, "--concurrency", 1,
                    "--input-tokens", 60, "--output-tokens", 20, "--respect-eos", "--count-tokens")
        self.assertEqual(run.status, 0, run.out + run.err)
        self.assertGreater(run.summary["ttfv_ms_p50"], run.summary["ttft_ms_p50"] + 50)
        self.assertEqual(run.summary["finish_reasons"], {"stop": 5})
        self.assertTrue(run.summary["token_gap_is_exact"])
        self.assertAlmostEqual(run.summary["prompt_tokens_mean"], 60, delta=3)

    def test_errors_are_counted_by_what_they_were_and_make_the_run_invalid(self):
        url = self.serve(steady(0, 1), {"key": "word word", "pieces": [{"text": "a"}, {"text": "b"}],
                                        "error": {"message": "it broke", "after": 1}})
        corpus = Path(self.folder.name) / "corpus.txt"
        corpus.write_text("word " * 100)
        run = bench("--url", url, "--requests", 10, "--concurrency", 2, "--input-tokens", 20,
                    "--output-tokens", 5, "--text", "--corpus", corpus)
        self.assertEqual(run.status, 1)
        self.assertEqual(run.summary["errors"], {"error in the stream": 10})
        self.assertFalse(run.summary["valid"])
        self.assertIn("the engine failed at this request", run.out)
        self.assertTrue(any("errors" in reason for reason in run.summary["invalid_reasons"]))

    def test_ctrl_c_ends_with_a_report_of_what_there_was(self):
        url = self.serve(steady(1, 1))
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen(
                [BINARY, "bench", "--url", url, "--requests", "100000", "--concurrency", "4",
                 "--input-tokens", "8", "--output-tokens", "4", "--quiet", "--summary",
                 f"{folder}/summary.json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            time.sleep(2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=TIMEOUT)
            summary = json.loads((Path(folder) / "summary.json").read_text())
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("interrupted", summary["invalid_reasons"])
        self.assertLess(summary["requests_sent"], 100000)
        self.assertIn("valid        NO: interrupted", out)

    def test_a_key_is_sent_and_never_written(self):
        url = self.serve(steady(1, 1), flags=("--api-key", "secret-key"))
        flags = ("--url", url, "--requests", 4, "--input-tokens", 8, "--output-tokens", 4)
        refused = bench(*flags, "--ready-timeout", 0.1)
        self.assertEqual(refused.status, 1)
        self.assertIn("401", refused.err)
        run = bench(*flags, "--api-key", "secret-key")
        self.assertEqual(run.status, 0, run.err)
        self.assertNotIn("secret-key", json.dumps(run.summary) + run.out + run.err)

    def test_a_server_that_is_not_there_and_flags_that_make_no_sense(self):
        nobody = bench("--url", "http://127.0.0.1:1", "--ready-timeout", 0.1)
        self.assertEqual(nobody.status, 1)
        self.assertIn("not ready", nobody.err)
        for flags in (["--extra-body", "[1]"], ["--url", "nonsense"], ["--ramp", "linear"],
                      ["--range-ratio", "2"], ["--url", "http://h", "--in-process"]):
            self.assertEqual(bench(*flags).status, 2, flags)
        for flag in ("--url", "--api-key", "--model-name", "--extra-body"):
            run = bench(flag, "")
            self.assertEqual(run.status, 2)
            self.assertIn(f"{flag}: found nothing, expected at least one character", run.err)

    def test_an_engine_in_process_has_the_same_report(self):
        url = self.serve(steady(10, 2))
        script = Path(self.folder.name) / "script.jsonl"
        flags = ("--requests", 8, "--concurrency", 4, "--input-tokens", 20, "--output-tokens", 10)
        local = bench("--in-process", "--model", NANO, "--engine", f"scripted={script}", *flags)
        remote = bench("--url", url, *flags)
        self.assertEqual(local.status, 0, local.out + local.err)
        self.assertEqual(set(local.summary), set(remote.summary))
        self.assertEqual(local.summary["corpus_sha256"], remote.summary["corpus_sha256"])
        self.assertEqual(local.summary["output_tokens"], 80)

    def test_lengths_are_drawn_from_a_file(self):
        url = self.serve(steady(1, 1))
        lengths = Path(self.folder.name) / "lengths.csv"
        lengths.write_text("input,output\r\n10,2\r\n20,4\r\n\r\n30,6\r\n")
        flags = ("--url", url, "--requests", 30, "--lengths", lengths)
        run = bench(*flags)
        self.assertEqual(run.status, 0, run.out + run.err)
        pairs = {(r["prompt_tokens"], r["output_tokens"]) for r in run.requests}
        self.assertEqual(pairs, {(10, 2), (20, 4), (30, 6)})
        lengths.write_text("10,2\n20,-4\n")
        refused = bench(*flags)
        self.assertEqual(refused.status, 1)
        self.assertIn("line 2", refused.err)

    def test_no_output_destroys_another_file_of_the_command(self):
        folder = Path(self.folder.name)
        lengths = folder / "lengths.csv"
        lengths.write_text("10,2\n")
        for flags, message in (
            (["--lengths", lengths, "--summary", lengths], "--summary: found the file of --lengths"),
            (["--summary", "-"], '--summary: found "-", expected a file'),
            (["--requests-file", "-"], '--requests-file: found "-", expected a file'),
            (["--lengths", "-"], '--lengths: found "-", expected a file'),
            (["--corpus", "-"], '--corpus: found "-", expected a file'),
            (["--corpus", lengths, "--requests-file", lengths],
             "--requests-file: found the file of --corpus"),
            (["--in-process", "--engine", f"scripted={lengths}", "--summary", lengths],
             "--summary: found the file of --engine"),
            (["--summary", folder / "x", "--requests-file", folder / "x"],
             "--requests-file: found the file of --summary"),
        ):
            run = subprocess.run([BINARY, "bench", *map(str, flags)], capture_output=True, text=True,
                                 timeout=TIMEOUT)
            self.assertEqual(run.returncode, 2, run.stderr)
            self.assertIn(message, run.stderr)
        self.assertEqual(lengths.read_text(), "10,2\n")

    def test_outputs_that_cannot_be_written_are_told_before_the_run(self):
        for flag in ("--summary", "--requests-file"):
            # There is no server: it would be waited for.
            run = subprocess.run(
                [BINARY, "bench", "--url", "http://127.0.0.1:1", flag, f"{self.folder.name}/no/where"],
                capture_output=True, text=True, timeout=TIMEOUT)
            self.assertEqual(run.returncode, 1)
            self.assertIn("no/where: cannot be written: No such file", run.stderr)
            self.assertNotIn("waiting", run.stderr)

    def test_a_duration_ends_the_sending_and_not_the_answers(self):
        url = self.serve(steady(1, 1))
        run = bench("--url", url, "--requests", 100000, "--concurrency", 2, "--duration", 1,
                    "--input-tokens", 8, "--output-tokens", 20)
        self.assertEqual(run.status, 0, run.out + run.err)
        self.assertLess(run.summary["requests_sent"], 2000)
        self.assertEqual(run.summary["requests_cancelled"], 0)
        self.assertTrue(all(r["send_ns"] < 1e9 for r in run.requests))

    def test_a_ramp_a_cap_and_what_a_request_can_have(self):
        url = self.serve(steady(1, 1))
        run = bench("--url", url, "--workload", "open", "--rate", 200, "--ramp", "linear",
                    "--ramp-from", 50, "--ramp-seconds", 1, "--max-concurrency", 1, "--requests", 40,
                    "--input-tokens", 8, "--output-tokens", 10, "--random-tokens", "--tokenizer",
                    NANO, "--model-name", "nano", "--temperature", 0.5, "--extra-body",
                    '{"max_tokens": 7}', "--min-duration", 3600, "--json")
        self.assertEqual(run.status, 1)
        self.assertEqual(json.loads(run.out), run.summary)
        self.assertEqual(run.summary["output_tokens"], 40 * 7)
        self.assertEqual(run.summary["concurrency_max"], 1)
        self.assertTrue(any("at least 3600 s" in r for r in run.summary["invalid_reasons"]))
        self.assertTrue(any("output lengths" in r for r in run.summary["invalid_reasons"]))

    def test_an_engine_in_process_is_opened_with_its_flags(self):
        run = bench("--in-process", "--model", NANO, "--numerics", "fp32", "--threads", 1, "--isa",
                    "ref", "--chunk", 16, "--max-model-len", 64, "--max-num-seqs", 2,
                    "--max-num-batched-tokens", 32, "--max-step-ms", 100, "--kv-bytes", 1 << 24,
                    "--expert-cache-bytes", 1 << 20, "--requests", 2, "--concurrency", 2, "--input-tokens", 8, "--output-tokens", 2,
                    "--warmup", 0)
        self.assertEqual(run.status, 0, run.out + run.err)
        self.assertEqual(run.summary["server"]["threads"], 1)
        self.assertEqual(run.summary["server"]["output_tokens"], 4)

    def test_the_same_seed_sends_the_same_requests(self):
        url = self.serve(steady(1, 1))
        lengths = []
        for seed in (1, 1, 2):
            run = bench("--url", url, "--requests", 20, "--input-tokens", 100, "--output-tokens", 10,
                        "--range-ratio", 0.2, "--seed", seed)
            lengths.append([(r["planned_prompt_tokens"], r["prompt_tokens"])
                            for r in sorted(run.requests, key=lambda r: r["id"])])
        self.assertEqual(lengths[0], lengths[1])
        self.assertNotEqual(lengths[0], lengths[2])
        self.assertTrue(all(planned == found for planned, found in lengths[0]))


class Ruler:
    """How late a thread wakes that only sleeps: what the machine itself adds, in ms."""

    def __enter__(self):
        self.late, self.over = [], False
        self.thread = threading.Thread(target=self.measure)
        self.thread.start()
        return self

    def measure(self):
        while not self.over:
            begin = time.monotonic()
            time.sleep(GAP_MS / 1000)
            self.late.append((time.monotonic() - begin) * 1000 - GAP_MS)

    def __exit__(self, *error):
        self.over = True
        self.thread.join()
        self.late.sort()

    def at(self, part):
        return self.late[int(part * (len(self.late) - 1))]


def deviations(summary, ruler, gap_ms=GAP_MS):
    """What differs more from the script than it may."""
    e2el_ms = FIRST_MS + (TOKENS - 1) * gap_ms
    # A machine with other work wakes everybody late: once in the engine, once in the server, once in
    # the client.
    slack = 1 if STRICT else 5 + 3 * ruler.at(0.9)
    tail = slack + 3 * ruler.at(1)
    found = []
    for name, expected, per in (("ttft_ms", FIRST_MS, 1), ("e2el_ms", e2el_ms, 1),
                                ("itl_ms", gap_ms, TOKENS - 1)):
        for part, most in (("p50", slack), ("p99", tail)):
            off = summary[f"{name}_{part}"] - expected
            # A request cannot be quicker than its script; its mean gap only by the lateness of the
            # first token.
            if not -tail / per - 0.05 < off < (most if part == "p50" else most) / per + 0.05:
                found.append(f"{name}_{part}: {off:+.3f} ms, at most {most / per:.3f} ms")
    return found


class Accuracy(unittest.TestCase):
    def test_known_delays_are_reproduced(self):
        with tempfile.TemporaryDirectory() as folder:
            script = write_script(folder, steady())
            with Server(BINARY, "--model", NANO, "--engine", f"scripted={script}",
                        "--no-access-log") as server:
                for _ in range(20 if STRICT else 5):
                    with Ruler() as ruler:
                        run = bench("--url", f"http://127.0.0.1:{server.port}", "--workload", "open",
                                    "--rate", 200, "--burstiness", 100, "--requests", STREAMS,
                                    "--input-tokens", 16, "--output-tokens", TOKENS, "--warmup", 8)
                    found = deviations(run.summary, ruler)
                    if not found:
                        break
                print({k: round(v, 3) for k, v in run.summary.items()
                       if k in ("ttft_ms_p50", "ttft_ms_p99", "itl_ms_p50", "itl_ms_p99",
                                "e2el_ms_p50", "e2el_ms_p99")},
                      f"machine: {ruler.at(0.5):.3f} p50, {ruler.at(0.99):.3f} p99")
                self.assertEqual(found, [])
                self.assertEqual(run.summary["concurrency_max"], STREAMS)
                # What is checked can fail: other delays are noticed.
                self.assertNotEqual(deviations(run.summary, ruler, gap_ms=2 * GAP_MS), [])


class ZzCoverage(unittest.TestCase):
    """Runs last, by name: every flag has a test."""

    @unittest.skipIf(len(sys.argv) > 2, "only some tests run")
    def test_every_flag_was_used(self):
        text = subprocess.run([BINARY, "bench", "--help"], capture_output=True, text=True).stdout
        for names in re.findall(r"^  (-[-a-z,]+)", text, re.M):
            if "--help" not in names:
                self.assertTrue(used_flags & set(names.split(",")), f"{names} has no test")


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    if "--strict" in sys.argv:
        sys.argv.remove("--strict")
        STRICT = True
    unittest.main(verbosity=1)

#!/usr/bin/python3
"""`millrace generate --record` and `millrace replay` from outside.

usage: replay_test.py BINARY [unittest arguments]
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests/golden/tiny-v41"
TIMEOUT = 120  # seconds; generous, for machines that do other work
BINARY = None
used_flags = set()  # for the last test


def run(*arguments):
    arguments = [str(a) for a in arguments]
    if arguments[0] == "replay":
        used_flags.update(a for a in arguments if a.startswith("-"))
    return subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=TIMEOUT)


class Replay(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.file = self.folder / "run.jsonl"

    def record(self, *arguments):
        result = run("generate", "Once upon a time", "-n", 20, "--seed", 3, "--threads", 1,
                     "--record", self.file, *arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def replayed(self, *arguments):
        """What a replay in which nothing differs counts."""
        result = run("replay", self.file, *arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
        return result.stdout

    def refused(self, status, pattern, *arguments):
        result = run("replay", *arguments)
        self.assertEqual((result.returncode, result.stdout), (status, ""), arguments)
        self.assertRegex(result.stderr, pattern)

    def test_a_recorded_run_is_the_same_with_and_without_the_model_threads_and_kernels(self):
        self.record("--choices", 3, "--stop", "the end", "--ignore-eos")
        counts = "20 steps, 62 rows, 1 requests, 60 tokens, 0 differences"
        self.assertEqual(self.replayed("--plans-only"), counts + " in plans\n")
        self.assertEqual(self.replayed(), counts + "\n")
        self.assertEqual(self.replayed("--threads", 2, "--isa", "ref"), counts + "\n")

    def test_recording_changes_no_answer(self):
        plain = run("generate", "Once upon a time", "-n", 20, "--seed", 3, "--threads", 1)
        self.assertEqual(self.record(), plain.stdout)

    def test_every_line_is_json(self):
        self.record()
        kinds = [next(iter(json.loads(line))) for line in self.file.read_text().splitlines()]
        self.assertEqual(kinds[:4], ["header", "arrival", "plan", "result"])
        self.assertEqual(kinds[-1], "end")

    def test_a_changed_recording_is_refused_by_line(self):
        self.record()
        self.file.write_text(self.file.read_text().replace('"top_k":0', '"top_k":1'))
        self.refused(1, r"run\.jsonl: line 2: checksum: found .*, expected ", self.file)
        self.refused(1, r"run\.jsonl: line 2: ", self.file, "--plans-only")

    def test_a_run_that_was_killed_is_replayed_as_far_as_it_came(self):
        process = subprocess.Popen(
            [BINARY, "generate", "Once upon a time", "--ignore-eos", "--record", self.file],
            stdout=subprocess.PIPE,
        )
        with process:
            self.assertEqual(len(process.stdout.read(40)), 40)  # some steps lie behind it
            process.send_signal(signal.SIGKILL)
        result = run("replay", self.file)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"run\.jsonl: the recording ends with line \d+, before the end")
        self.assertRegex(result.stdout, r"^[1-9]\d* steps, .* [1-9]\d* tokens, 0 differences\n$")

    def test_another_model_is_refused(self):
        self.record()
        self.refused(1, "expected that of the recording: ", self.file, TINY)

    def test_what_is_no_recording_is_refused(self):
        self.file.write_text("hello\n")
        self.refused(1, r"run\.jsonl: line 1: found something else, expected the header", self.file)
        self.file.write_text("")
        self.refused(1, r"run\.jsonl: found no whole line, expected a recording", self.file)
        self.refused(1, r"missing: cannot open", self.folder / "missing")
        self.refused(2, "FILE is required")
        self.refused(2, "excludes", self.file, "--plans-only", "--threads", 1)

    def test_a_recording_destroys_nothing_that_the_command_reads(self):
        prompt = self.folder / "prompt"
        prompt.write_text('{"messages": [{"role": "user", "content": "Hi"}]}')
        for flag in ("--file", "--chat"):
            result = run("generate", "-n", 1, flag, prompt, "--record", f"{self.folder}/./prompt")
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(f"--record: found the file of {flag}, expected another", result.stderr)
        self.assertIn("messages", prompt.read_text())

    def test_a_recording_that_cannot_be_written_is_refused_before_any_work(self):
        missing = self.folder / "no/such/folder"
        result = run("generate", "Hi", "--record", missing)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn(f"{missing}: cannot create: ", result.stderr)

    def test_zz_every_flag_has_been_used(self):
        help_text = run("replay", "--help").stdout
        for names in re.findall(r"^  (-[-a-z,]+)", help_text, re.M):
            used = any(name in used_flags for name in names.split(","))
            self.assertTrue(used or "PARTIAL" in os.environ, f"{names} has no test")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    BINARY = os.path.abspath(sys.argv.pop(1))
    unittest.main()

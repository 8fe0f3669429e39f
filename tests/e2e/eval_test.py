#!/usr/bin/python3
"""`millrace eval` from outside: its figures are those of the independent reference and of what the
program generates, and no flag of the machine changes them.

usage: eval_test.py BINARY [unittest arguments]
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/reference"))
from v41 import safetensors

NANO = ROOT / "models/nano"
PROMPTS = ("plain", "story", "chat", "think", "tool", "recall1000")
TIMEOUT = 300  # seconds; generous, for machines that do other work
BINARY = None
used_flags = set()  # for the last test


def run(command, *arguments, stdin=b""):
    arguments = [str(a) for a in arguments]
    if command == "eval":
        used_flags.update(a for a in arguments if a.startswith("-"))
    return subprocess.run(
        [BINARY, command, *arguments], input=stdin, capture_output=True, timeout=TIMEOUT
    )


def output(command, *arguments, stdin=b""):
    done = run(command, *arguments, stdin=stdin)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: status {done.returncode}\n{done.stderr.decode()}")
    return done.stdout.decode()


def summary(*arguments, stdin=b""):
    return json.loads(output("eval", *arguments, "--json", stdin=stdin))


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def read_cases(self, *arguments):
        path = self.folder / "cases.jsonl"
        output("eval", *arguments, "--cases-file", path)
        return [json.loads(line) for line in path.read_text().splitlines()]


class Text(Case):
    def test_likelihoods_are_those_of_the_independent_implementation(self):
        golden = safetensors.read(ROOT / "tests/golden/nano.golden.safetensors")
        for mode, prompts in (("reference", PROMPTS), ("fp32", PROMPTS[:4])):
            got_sum = want_sum = count = 0
            for prompt in prompts:
                file = self.file(prompt, bytes(golden[f"{prompt}.text_utf8"]))
                [case] = self.read_cases("--task", "nll", "--file", file, "--special",
                                         "--window", 2048, "--numerics", mode)  # fmt: skip
                want = golden[f"{prompt}.{mode}.nll"]
                with self.subTest(prompt, mode=mode):
                    self.assertEqual(case["token_ids"], list(golden[f"{prompt}.token_ids"]))
                    self.assertEqual(case["num_tokens"], len(want))
                    bound = 0.03 if mode == "reference" else 1e-4
                    self.assertLess(abs(case["nll"] - want.sum()) / len(want), bound)
                got_sum += case["nll"]
                want_sum += want.sum()
                count += len(want)
            self.assertLess(abs(got_sum - want_sum) / count, 0.01)

    def test_windows_judge_every_token_of_a_file_longer_than_the_context(self):
        text = (NANO / "README.md").read_bytes()[:1200]
        file = self.file("text", text)
        flags = ("--task", "nll", "--file", file, "--max-model-len", 128, "--window", 128)
        wide = summary(*flags)["tasks"][0]["modes"][0]
        num_tokens = json.loads(output("tokenize", "--file", file, "--json"))["count"]
        self.assertEqual(wide["num_tokens"], num_tokens)
        self.assertEqual(wide["num_bytes"], len(text))
        self.assertEqual(wide["num_cases"], -(-(num_tokens - 127) // 64) + 1)
        self.assertAlmostEqual(
            wide["bits_per_byte"] * len(text) * 0.6931471805599453,
            wide["nll_per_token"] * num_tokens,
            places=6,
        )
        close = summary(*flags, "--stride", 32)["tasks"][0]["modes"][0]
        self.assertEqual(close["num_tokens"], num_tokens)
        self.assertGreater(close["num_cases"], wide["num_cases"])
        part = summary(*flags, "--limit", 300)["tasks"][0]["modes"][0]
        self.assertEqual(part["num_tokens"], 300)
        header = output("eval", *flags, "--limit", 300)
        self.assertIn(f" {part['num_bytes']} of {len(text)} bytes, ", header)
        self.assertLess(part["num_bytes"], len(text))

    def test_one_token_behind_the_begin_token_is_judged(self):
        [task] = summary("--task", "nll", "--file", self.file("text", b"a"))["tasks"]
        self.assertEqual((task["modes"][0]["num_tokens"], task["modes"][0]["num_bytes"]), (1, 1))

    def test_stdin_is_a_file(self):
        text = b"In the beginning God created the heaven and the earth."
        piped = summary("--task", "nll", "--file", "-", stdin=text)
        named = summary("--task", "nll", "--file", self.file("text", text))
        self.assertEqual(piped["tasks"], named["tasks"])
        read, write = os.pipe()
        os.write(write, text)
        os.close(write)
        used_flags.add("--file")
        process = subprocess.run(
            [BINARY, "eval", "--task", "nll", "--file", f"/dev/fd/{read}", "--json"],
            pass_fds=[read], capture_output=True, timeout=TIMEOUT)
        os.close(read)
        self.assertEqual(json.loads(process.stdout)["tasks"], named["tasks"])

    def test_a_text_that_cannot_be_judged_is_refused(self):
        for content, what in (
            (b"", "found no text"),
            (b"good \xff bad", "found a byte at 5 that is not UTF-8"),
        ):
            file = self.file("text", content)
            done = run("eval", "--task", "nll", "--file", file)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"{file}: {what}", done.stderr.decode())
        for stream, what in (("/dev/null", "/dev/null: found no text"),
                             (self.folder, "not a regular file")):
            done = run("eval", "--task", "nll", "--file", stream)
            self.assertEqual(done.returncode, 1)
            self.assertIn(what, done.stderr.decode())
        done = run("eval", "--file", self.folder / "none")
        self.assertEqual(done.returncode, 1)
        self.assertIn("none", done.stderr.decode())
        done = run("eval", "--file", self.file("text", b"a b c"), "-c", 100)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--window: found 1024 tokens, expected at most 100", done.stderr.decode())


class Tasks(Case):
    # fmt: off
    SMALL = ("--lengths", "100,160", "--depths", "0,100", "--copy-lengths", "3,40", "--cases", 2)
    # fmt: on

    def test_nothing_of_the_machine_changes_a_byte(self):
        text = ("--file", NANO / "generation_config.json", "--window", 64)
        flags = (*self.SMALL, *text)
        want = output("eval", *flags, "--json", "--threads", 1)
        for other in (("--threads", 2, "--chunk", 7), ("-t", 2, "--chunk", 300),
                      ("--expert-cache-bytes", 3000000)):
            with self.subTest(other):
                self.assertEqual(output("eval", *flags, "--json", *other), want)
        flags = ("--task", "nll,copy", "--copy-lengths", 2, "--cases", 1, *text)
        want = output("eval", *flags, "--json")
        self.assertEqual(output("eval", *flags, "--json", "--isa", "ref", "--chunk", 33), want)

    def test_exact_is_what_greedy_decoding_writes(self):
        found = set()
        for case in self.read_cases(*self.SMALL, "--form", "chat,plain", "--seed", 3):
            begin, end = case["judged_begin"], case["judged_end"]
            ids = case["token_ids"]
            answer = output("generate", "--token-ids", ",".join(map(str, ids[:begin])), "--temp", 0,
                            "-n", end - begin, "--ignore-eos", "--json")  # fmt: skip
            is_exact = case["num_likeliest"] == case["num_tokens"]
            self.assertEqual(json.loads(answer)["token_ids"] == ids[begin:end], is_exact, case)
            found.add(is_exact)
        self.assertEqual(found, {True, False})

    def test_the_model_recalls_what_it_was_trained_to(self):
        result = summary(NANO, "--lengths", 300, "--depths", "20,50", "--cases", 4, "--task",
                         "needle,copy", "--copy-lengths", 8)  # fmt: skip
        needle, copy = result["tasks"]
        self.assertEqual((needle["task"], needle["form"]), ("needle", "chat"))
        self.assertEqual(copy["task"], "copy")
        self.assertGreaterEqual(needle["modes"][0]["exact"], 0.75)
        self.assertGreaterEqual(copy["modes"][0]["exact"], 0.75)

    def test_prompts_have_the_length_that_was_asked_for(self):
        for case in self.read_cases("--task", "needle", "--lengths", "150,400", "--cases", 3,
                                    "--depths", "0,30", "--model", NANO):  # fmt: skip
            # What follows the value is no part of the prompt.
            self.assertLessEqual(len(case["token_ids"]), case["length"])
            self.assertGreater(len(case["token_ids"]), case["length"] - 30)

    def test_modes_are_compared_with_the_first_case_by_case(self):
        file = self.file("summary.json", b"")
        text = output("eval", *self.SMALL, "--task", "copy", "--numerics", "reference,fp32",
                      "--summary", file)  # fmt: skip
        [task] = json.loads(file.read_text())["tasks"]
        first, other = task["modes"]
        self.assertEqual([m["name"] for m in task["modes"]], ["reference", "fp32"])
        self.assertNotEqual(other["nll_per_token"], first["nll_per_token"])
        self.assertAlmostEqual(
            other["nll_difference"], other["nll_per_token"] - first["nll_per_token"], places=9
        )
        self.assertGreater(other["nll_difference_standard_error"], 0)
        for mode in (first, other):
            self.assertRegex(mode["numerics_id"], f"^{mode['name']}-[0-9a-f]{{16}}$")
            self.assertIn(mode["numerics_id"], text)
        self.assertRegex(text, r"fp32-.*NLL [+-]0\.\d{5} ± 0\.\d{5}, exact")

    def test_lengths_that_do_not_fit_are_refused(self):
        for flags, what in (
            (("--task", "needle", "--lengths", 20), "--lengths: found 20 tokens, expected at least"),
            (("--task", "needle", "--lengths", 300, "-c", 200), "--lengths: found 300 tokens, expected at most 200"),
            (("--task", "copy", "--copy-lengths", 300, "-c", 200), "--copy-lengths: found"),
        ):  # fmt: skip
            done = run("eval", *flags)
            self.assertEqual(done.returncode, 1, flags)
            self.assertIn(what, done.stderr.decode())
            self.assertEqual(done.stdout, b"")

    def test_ctrl_c_ends_it(self):
        process = subprocess.Popen(
            [BINARY, "eval", "--task", "needle", "--cases", "1000", "--lengths", "600"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = process.stderr.readline()  # progress: cases are being computed
        while " cases" not in line:
            line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 130)
        self.assertRegex(err, r"stopped after \d+ of 5000 cases of needle, chat, reference")
        self.assertEqual(out, "")


class CommandLine(Case):
    def test_what_makes_no_sense_is_refused_at_once(self):
        for flags, what in (
            (("--task", "speed"), "--task: speed not in"),
            (("--numerics", "reference,int4"), "--numerics: int4 not in"),
            (("--task", "nll"), "--file, of --task nll is required"),
            (("--form", "song"), "--form: song not in"),
            (("--depths", "50,101"), "expected an integer from 0 to 100"),
            (("--lengths", "0"), "expected an integer from 1"),
            (("--copy-lengths", "x"), "expected an integer from 1"),
            (("--cases", "0"), "expected an integer from 1"),
            (("--window", "1"), "expected an integer from 2"),
            (("--window", "64", "--stride", "64"), "found 64, expected fewer than --window, 64"),
            (("--limit", "0"), "expected an integer from 1"),
            (("--numerics", "reference,reference"), "--numerics: found reference twice"),
            (("--depths", "50,0,50"), "--depths: found 50 twice, expected it once"),
            (("--lengths", "300,0300"), "--lengths: found 300 twice"),
            (("--copy-lengths", "4,4"), "--copy-lengths: found 4 twice"),
            (("--task", "copy", "--task", "copy"), "--task: found copy twice"),
            (("--form", "plain,plain"), "--form: found plain twice"),
            ((NANO, "--model", NANO), "excludes"),
        ):
            done = run("eval", *flags)
            self.assertEqual(done.returncode, 2, flags)
            self.assertIn(what, done.stderr.decode())

    def test_no_output_destroys_another_file_of_the_command(self):
        text = self.file("text", b"Once upon a time")
        for name in ("hard", "soft"):
            getattr(self.folder / name, {"hard": "hardlink_to", "soft": "symlink_to"}[name])(text)
        (self.folder / "dangling").symlink_to("later")
        nll = ("--task", "nll", "--file", text)
        for flags, what in (
            (("--summary", text), "--summary: found the file of --file, expected another"),
            (("--summary", "-"), '--summary: found "-", expected a file; one of that name is ./-'),
            (("--cases-file", "-"), '--cases-file: found "-", expected a file'),
            (("--cases-file", text), "--cases-file: found the file of --file"),
            (("--summary", self.folder / "hard"), "--summary: found the file of --file"),
            (("--summary", self.folder / "soft"), "--summary: found the file of --file"),
            (("--summary", self.folder / "x", "--cases-file", f"{self.folder}/./x"),
             "--cases-file: found the file of --summary"),
            (("--summary", self.folder / "later", "--cases-file", self.folder / "dangling"),
             "--cases-file: found the file of --summary"),
        ):  # fmt: skip
            done = run("eval", *nll, *flags)
            self.assertEqual((done.returncode, done.stdout), (2, b""), flags)
            self.assertIn(what, done.stderr.decode())
        for flag, to in (("--file", "-"), ("--summary", self.folder / "out")):
            # stdin that is the output, and a report behind the summary's file
            with open(text if to == "-" else to, "ab+") as file:
                done = subprocess.run(
                    [BINARY, "eval", "--task", "nll", "--file", to if flag == "--file" else text,
                     "--summary", text if to == "-" else to], stdin=file, stdout=file,
                    stderr=subprocess.PIPE, timeout=TIMEOUT)  # fmt: skip
            self.assertEqual(done.returncode, 2, flag)
        self.assertEqual(text.read_bytes(), b"Once upon a time")
        self.assertFalse((self.folder / "x").exists() or (self.folder / "later").exists())
        # What takes from several is no file.
        done = run("eval", *nll, "--summary", "/dev/null", "--cases-file", "/dev/null")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_outputs_that_cannot_be_written_are_told_before_the_work(self):
        for path, what in ((self.folder / "no/where", "no/where: cannot be written: No such file"),
                           (self.folder, "is a directory, expected a file")):  # fmt: skip
            for flag in ("--summary", "--cases-file"):
                done = run("eval", "--task", "copy", flag, path)
                self.assertEqual((done.returncode, done.stdout), (1, b""))
                self.assertIn(what, done.stderr.decode())
                self.assertNotIn("cases", done.stderr.decode())  # of progress

    def test_z_every_flag_was_used(self):  # the last, by name
        for names in re.findall(r"^  (-[-a-z,]+)", output("eval", "--help"), re.M):
            self.assertTrue(used_flags & set(names.split(",")), f"{names} has no test")


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    # In the order of the file: the last test sees what the others used.
    loader = unittest.TestLoader()
    suite = unittest.TestSuite(loader.loadTestsFromTestCase(c) for c in (Text, Tasks, CommandLine))
    if len(sys.argv) > 1:
        unittest.main()
    sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())

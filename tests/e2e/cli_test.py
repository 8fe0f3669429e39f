#!/usr/bin/python3
"""The real program from outside: every command, every flag, refusals, pipes, a terminal.

usage: cli_test.py BINARY [unittest arguments]

Needs only the standard library. Texts of the embedded model are fixed by the numerics contract:
greedy decoding is a function of the checkpoint.
"""
import json
import math
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NANO = ROOT / "models/nano"
TINY = ROOT / "tests/golden/tiny-v41"
TIMEOUT = 120  # seconds; generous, for machines that do other work

BINARY = None
used_flags = set()  # (command, flag), for the last test

CAPITAL = "What is the capital of France?"
THOUGHT = "The user asks for the capital of France. It is Paris."
ANSWER = "The capital of France is Paris."
TOOLS = [
    {
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
]


def note_flags(arguments):
    if arguments and not arguments[0].startswith("-"):
        used_flags.update((arguments[0], a) for a in arguments if a.startswith("-"))


def run(*arguments, stdin="", binary=None, env=None, preexec_fn=None):
    """`env`: variables besides this process's."""
    arguments = [str(a) for a in arguments]
    note_flags(arguments)
    return subprocess.run(
        [binary or BINARY, *arguments], input=stdin, capture_output=True, text=True, timeout=TIMEOUT,
        env={**os.environ, **(env or {})}, preexec_fn=preexec_fn
    )


def output(*arguments, **keywords):
    """stdout of a run that must succeed."""
    result = run(*arguments, **keywords)
    if result.returncode != 0:
        raise AssertionError(f"{arguments}: exit {result.returncode}: {result.stderr}")
    return result.stdout


def generate(*arguments, stdin=""):
    """One answer as JSON, on one thread unless told otherwise."""
    threads = () if "--threads" in arguments else ("--threads", 1)
    return json.loads(output("generate", "--json", *threads, *arguments, stdin=stdin))


def greedy(*arguments, **keywords):
    return generate("--temperature", 0, *arguments, **keywords)


def read_safetensors(path):
    """{name: (dtype, shape, values)}"""
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    body = data[8 + size :]
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        begin, end = entry["data_offsets"]
        code = {"F32": "f", "I32": "i", "I64": "q", "U8": "B"}[entry["dtype"]]
        values = struct.unpack(f"<{(end - begin) // struct.calcsize(code)}{code}", body[begin:end])
        tensors[name] = (entry["dtype"], entry["shape"], values)
    return tensors


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def sparse(self, name, size):
        """A file of zeros that takes no space."""
        path = self.folder / name
        path.touch()
        os.truncate(path, size)
        return path

    def refused(self, status, pattern, *arguments, stdin=""):
        result = run(*arguments, stdin=stdin)
        self.assertEqual((result.returncode, result.stdout), (status, ""), arguments)
        self.assertRegex(result.stderr, pattern, arguments)
        self.assertNotIn("terminate", result.stderr)


class Basics(Case):
    def test_version_names_compiler_and_equal_numerics_ids(self):
        lines = output("--version").splitlines()
        self.assertRegex(lines[0], r"^millrace \d+\.\d+\.\d+$")
        if re.match("commit ", lines[1]):  # a build without the repository has none
            self.assertRegex(lines.pop(1), "^commit [0-9a-f]{12,40}$")
        self.assertRegex(lines[1], r"^compiler \w+ \d+")
        ids = [re.fullmatch(r"numerics (\S+) (\w+)", line).groups() for line in lines[2:]]
        self.assertEqual(ids[-1][1], "ref")
        self.assertEqual(len({numerics for numerics, _ in ids}), 1)

    def test_help_is_everywhere(self):
        commands = re.findall(r"^  ([a-z-]+)  ", output("--help").split("Subcommands:")[1], re.M)
        self.assertEqual(len(commands), 14)
        for command in commands:
            self.assertIn("Usage: millrace " + command, output(command, "--help"))
            self.assertIn("Usage: millrace " + command, output(command, "-h"))

    def test_command_lines_without_sense_are_refused_with_status_2(self):
        self.refused(2, "Usage: millrace")
        for pattern, arguments in [
            ('found "frobnicate", expected a command: serve, bench, chat, generate, ', ["frobnicate"]),
            ('found "--temp", expected a command first: serve, bench, chat, ', ["--temp", "0", "chat"]),
            ("--bogus: no such flag; millrace chat --help lists them", ["chat", "--bogus"]),
            ("--bogus: no such flag", ["generate", "--bogus=1", "--", "one", "extra"]),
            ('"extra": not expected', ["generate", "one", "extra", "words"]),
            ('"extra": not expected', ["generate", "--", "one", "extra"]),
            ('found "two", expected an integer from 1 to', ["generate", "--threads", "two", "x"]),
            ("--numerics: exact not in {reference,fp32}", ["generate", "--numerics", "exact", "x"]),
            ('--isa: .*found "PDP11", expected one of .*ref', ["generate", "--isa", "PDP11", "x"]),
            ("--max-tokens", ["generate", "--max-tokens", "many", "x"]),
            ("stdin: found nothing, expected a prompt", ["generate"]),
            ("--effort requires --chat", ["generate", "--effort", "low", "x"]),
            ("--no-think requires --chat", ["generate", "--no-think", "x"]),
            ("--chat excludes --no-bos", ["generate", "--no-bos", "--chat", "x"]),
            ("--chat excludes --no-special", ["generate", "--no-special", "--chat", "x"]),
            ("--logprobs requires --json", ["generate", "--logprobs", "2", "x"]),
            ("--prompt-logprobs requires --json", ["generate", "--prompt-logprobs", "2", "x"]),
            ("found PROMPT and --file: expected one of them", ["generate", "x", "--file", "y"]),
            ("--token-ids is required", ["forward", "--logits", "x"]),
            ("one of --logits, --trace, --draft is required", ["forward", "--token-ids", "1"]),
            *[
                (f'{arguments[-2]}: found "-", expected a file; one of that name is ./-', arguments)
                for arguments in (
                    ["forward", "--token-ids", "1", "--logits", "-"],
                    ["forward", "--token-ids", "1", "--trace", "-"],
                    ["forward", "--token-ids", "1", "--draft", "-"],
                    ["generate", "x", "--record", "-"],
                    ["chat", "--tools", "-"],
                    ["synth", "out", "--config", "-"],
                )
            ],
            ('FILE: found "-", expected a file', ["replay", "-"]),
            ('PATH: found "-", expected a file', ["inspect", "-"]),
            (
                '--token-ids: found "x", expected a token id as item 2 of the list',
                ["forward", "--token-ids", "1,x", "--logits", "x"],
            ),
            (
                "--token-ids: found nothing, expected a token id as item 2 of the list",
                ["generate", "--token-ids", "0,,1"],
            ),
            ("found nothing, expected a token id as item 1 ", ["generate", "--token-ids", ",0"]),
            ("found nothing, expected a token id as item 2 ", ["generate", "--token-ids", "0, "]),
            ('found "1;2", expected a token id as item 2 ', ["generate", "--token-ids", "0 1;2"]),
            (
                'found "2147483648", expected a token id as item 1 ',
                ["generate", "--token-ids", "2147483648"],
            ),
            ("temperature: found 3, expected 0 to 2", ["generate", "--temperature", "3", "x"]),
            ("top_p: found 0, expected above 0", ["generate", "--top-p", "0", "x"]),
            ("min_p: found 2", ["chat", "--min-p", "2"]),
            (
                "min_tokens: found 5, expected at most max_tokens, 4",
                ["generate", "--min-tokens", "5", "--max-tokens", "4", "x"],
            ),
            (
                '--logit-bias: found "5", expected TOKEN_ID=NUMBER',
                ["generate", "--logit-bias", "5", "x"],
            ),
            (
                "logit_bias: found token id 4096, expected 0 to 4095",
                ["generate", "--logit-bias", "4096=1", "x"],
            ),
            (
                "logit_bias: found nan for token 0, expected -100 to 100",
                ["generate", "--logit-bias", "0=nan", "x"],
            ),
            ('--stop-token-ids: found "1.5"', ["generate", "--stop-token-ids", "1.5", "x"]),
            ("--stop: found nothing, expected at least", ["generate", "--stop", "", "x"]),
            ("--bad-word: found nothing, expected at least", ["chat", "--bad-word", ""]),
            (
                r"--temperature: found 2 values \(--temperature,--temp\), expected 1\n",
                ["generate", "--temp", "0", "--temp", "1", "x"],
            ),
            (
                "--prompt: found a byte at 3 that is not UTF-8, expected UTF-8",
                ["generate", b"ab \xff".decode(errors="surrogateescape")],
            ),
            (
                "--system: found a byte at 0 that is not UTF-8",
                ["chat", "--system", b"\xc3".decode(errors="surrogateescape")],
            ),
            (
                '^millrace: --effort: found "lots", expected minimal, low, medium, high, xhigh, '
                "max, ultra or 1 to 100\n$",
                ["chat", "--effort", "lots"],
            ),
            (
                'kv-bytes: found "-1", expected an integer from 0 to ',
                ["inspect", "--kv-bytes", "-1"],
            ),
            ("TEXT excludes --file", ["tokenize", "x", "--file", "y"]),
            ('token ids: found "x"', ["detokenize", "1", "x"]),
        ]:
            self.refused(2, pattern, *arguments)

    def test_flags_of_other_programs_are_known_or_lead_to_ours(self):
        want = output("generate", "--max-tokens", 5, "--seed", 1, "--threads", 1, "Once")
        for arguments in [
            ["-p", "Once", "-n", 5, "-t", 1, "-c", 50],
            ["--prompt", "Once", "--n-predict", 5, "-t", 1, "--ctx-size", 50],
            ["--max-new-tokens", 5, "-t", 1, "Once"],
        ]:
            self.assertEqual(output("generate", "--seed", 1, *arguments), want)
        for command, foreign, own in [
            ("generate", "--max_tokens", "--max-tokens"),
            ("generate", "--Top_P", "--top-p"),
            ("generate", "--n", "--choices"),
            ("generate", "--repeat-penalty", "--repetition-penalty"),
            ("chat", "-p", "--system"),
            ("chat", "-m", "--model"),
            ("forward", "--token_ids", "--token-ids"),
        ]:
            pattern = f"{foreign}: no such flag; {command} has {own}\n"
            self.refused(2, pattern, command, foreign, "1", stdin="x")

        self.refused(2, '--effort: found "lots"', "chat", "--reasoning-effort", "lots")

    def test_help_and_version_are_commands_too(self):
        self.assertEqual(output("help"), output("--help"))
        self.assertEqual(output("help", "chat"), output("chat", "--help"))
        self.assertEqual(output("version"), output("--version"))

    def test_run_and_test_refuse_what_they_do_not_know_also_through_links(self):
        for name, *arguments in [
            ("run", "--build-only", "x"),
            ("test", "--all", "x"),
            ("test", "--bogus"),
        ]:
            link = self.folder / "link"
            link.symlink_to(ROOT / name)
            result = subprocess.run([link, *arguments], capture_output=True, timeout=TIMEOUT)
            self.assertEqual(result.returncode, 2, arguments)
            link.unlink()

    def test_empty_values_are_no_absent_flags(self):
        for command, *flags in [
            ("generate", "--token-ids", "--allowed-token-ids", "--stop-token-ids"),
            ("chat", "--allowed-token-ids"),
            ("forward", "--token-ids"),
        ]:
            for flag in flags:
                for empty, pattern in (
                    ("", "found no tokens, expected at least one"),
                    (" ", "found no tokens, expected at least one"),
                    (",", "found nothing, expected a token id as item 1 of the list"),
                ):
                    self.refused(2, f"{flag}: {pattern}", command, flag, empty, stdin="x")
        for command, *flags in [
            ("generate", "--file", "--chat", "--model"),
            ("chat", "--tools", "--model"),
            ("forward", "--logits", "--trace", "--draft"),
            ("tokenize", "--file", "--model"),
            ("detokenize", "--model"),
        ]:
            for flag in flags:
                pattern = f"{flag}: found an empty name, expected a path"
                self.refused(2, pattern, command, flag, "", stdin="x")

    def test_integers_do_not_wrap(self):
        most = 2**63 - 1
        for flag, least, most, values in [
            ("--seed", -(2**63), 2**64 - 1, ["1.5", "0x1"]),
            ("--max-tokens", 0, most, ["-9223372036854775809", "1e3"]),
            ("--min-tokens", 0, most, []),
            ("--max-model-len", 1, most, []),
            ("--top-k", -1, most, []),
            ("--logprobs", -1, most, []),
            ("--prompt-logprobs", -1, most, []),
            ("--threads", 1, 1024, []),
            ("--chunk", 1, 2**20, []),
            ("--choices", 1, 128, []),
        ]:
            for value in [least - 1, most + 1, *values]:
                pattern = f'{flag}: found "{value}", expected an integer from {least} to {most}\n'
                self.refused(2, re.escape(pattern), "generate", "--json", f"{flag}={value}", "x")
        for seed in (0, 2**64 - 1, -1, -(2**63)):
            got = generate("--seed", seed, "--max-tokens", 0, "x")["seed"]
            self.assertEqual(got, seed % 2**64)
        self.assertEqual(len(greedy("--max-tokens", "010", "x")["token_ids"]), 10)

    def test_output_that_is_lost_is_an_error(self):
        for arguments in [
            ["--version"],
            ["inspect"],
            ["tokenize", "x"],
            ["detokenize", "5"],
            ["chat-encode"],
            ["generate", "--max-tokens", "2", "x"],
        ]:
            for redirection in (">/dev/full", ">&-"):
                result = subprocess.run(
                    ["sh", "-c", f'exec "$0" "$@" {redirection}', BINARY, *arguments],
                    input='{"input": {"messages": [{"role": "user", "content": "x"}]}}\n',
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=TIMEOUT,
                )
                self.assertEqual(
                    (result.returncode, result.stderr),
                    (1, "millrace: stdout: cannot write all of the output\n"),
                    (arguments, redirection),
                )

    def test_closed_standard_streams_are_empty(self):
        for redirection in ("<&-", "<&- 2>&-"):
            result = subprocess.run(
                ["sh", "-c", f'exec "$0" chat {redirection}', BINARY],
                capture_output=True,
                timeout=TIMEOUT,
            )
            self.assertEqual((result.returncode, result.stdout, result.stderr), (0, b"", b""))

    def test_what_the_machine_lacks_is_told(self):
        def limited(what, limit, *arguments):
            return subprocess.run(
                ["prlimit", f"--{what}={limit}", BINARY, *arguments],
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
            )

        result = limited("as", 64 << 20, "tokenize", "--file", self.sparse("large", 512 << 20))
        self.assertEqual((result.returncode, result.stderr), (1, "millrace: out of memory\n"))
        result = limited("as", 2 << 30, "generate", "--threads", "1000", "x")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "^millrace: cannot create thread: .*\n$")

    def test_a_write_beyond_the_limit_of_the_shell_is_an_error_and_leaves_nothing(self):
        for arguments in (
            ["forward", "--token-ids", "1,2,3", "--logits", self.folder / "logits"],
            ["synth", self.folder / "model"],
        ):
            result = subprocess.run(
                ["sh", "-c", 'ulimit -f 16; exec "$0" "$@"', BINARY, *arguments],
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
            )
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertRegex(result.stderr, r"^millrace: \S+: cannot write: File too large\n$")
            self.assertEqual([p for p in self.folder.rglob("*") if p.is_file()], [])

    def test_a_file_that_becomes_shorter_under_the_program_is_named(self):
        model = self.folder / "model"
        shutil.copytree(NANO, model)
        process = subprocess.Popen(
            [BINARY, "generate", "--model", model, "--ignore-eos", "--threads", "1", "x"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        process.stdout.read(1)
        for shard in model.glob("*.safetensors"):
            os.truncate(shard, 4096)
        _, stderr = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, -signal.SIGBUS)
        self.assertRegex(
            stderr.decode(),
            rf"(?m)^millrace: {model}/model-0000[12]-of-00002.safetensors: cannot be read any more",
        )

    def test_names_of_and_in_files_cannot_reach_the_terminal(self):
        result = run("inspect", self.file("\033[2J\n\x7f\u009bü", "{"))
        self.assertEqual(result.returncode, 1)
        self.assertIn(r"/\x1b[2J\x0a\x7f\xc2\x9bü: ", result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1)

    def test_what_the_world_lacks_is_named_with_status_1(self):
        missing = self.folder / "nothing"
        config_only = self.folder / "config_only"
        config_only.mkdir()
        shutil.copy(NANO / "config.json", config_only)
        request = self.file("request.json", {"messages": [{"role": "king", "content": "x"}]})
        not_json = self.file("not.json", "{")
        not_text = self.folder / "not.txt"
        not_text.write_bytes(b"a\xffb")
        large = self.sparse("large", 1 << 30)
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for pattern, arguments in [
            (f"--model: {missing} is not a directory", ["generate", "--model", missing, "x"]),
            (f"{config_only}/tokenizer.json", ["generate", "--model", config_only, "x"]),
            (f"{config_only}/tokenizer.json", ["tokenize", "--model", config_only, "x"]),
            (f"{missing}", ["generate", "--file", missing]),
            (f"{missing}", ["generate", "--chat", missing]),
            (r"messages\[0\].role: found string \"king\"", ["generate", "--chat", request]),
            (f"{not_json}: ", ["generate", "--chat", not_json]),
            (
                "found token id 4096 at position 1, expected 0 to 4095",
                ["generate", "--token-ids", "0,4096"],
            ),
            ("prompt: found no tokens", ["generate", "--no-bos", ""]),
            (
                "maximum context length is 8 tokens",
                ["generate", "--max-model-len", "8", "--max-tokens", "9", "x"],
            ),
            ("max_model_len: found 99999999", ["generate", "--max-model-len", "99999999", "x"]),
            (f"{missing}", ["chat", "--tools", missing]),
            (f"{missing}", ["inspect", missing]),
            (f"{not_json}", ["inspect", not_json]),
            (f"{pipe}: not a regular file", ["inspect", pipe]),
            (f"{self.folder}: not a regular file", ["generate", "--file", self.folder]),
            ("/dev/null: JSON byte 0", ["generate", "--chat", "/dev/null"]),
            (f"{not_text}: found a byte at 1 that is not UTF-8", ["generate", "--file", not_text]),
            (
                f"{large}: 1073741824 bytes, expected at most 1048576",
                ["inspect", large],
            ),
            ("id 9999", ["forward", "--token-ids", "9999", "--logits", self.folder / "l"]),
            (f"{missing}", ["forward", "--token-ids", "1", "--logits", missing / "l"]),
            (f"{missing}", ["chat-encode", missing]),
            ("token ids: found 4096, expected 0 to 4095", ["detokenize", "4096"]),
        ]:
            self.refused(1, pattern, *arguments)

    def test_a_program_without_its_model_says_where_it_looked(self):
        lonely = self.folder / "bin/millrace"
        lonely.parent.mkdir()
        shutil.copy(BINARY, lonely)
        result = run("generate", "x", binary=str(lonely))
        self.assertEqual(result.returncode, 1)
        self.assertIn(
            f"found neither {self.folder}/models/nano nor "
            f"{self.folder}/share/millrace/models/nano; name one with --model DIR",
            result.stderr,
        )
        (self.folder / "share/millrace/models").mkdir(parents=True)
        (self.folder / "share/millrace/models/nano").symlink_to(NANO)
        self.assertEqual(run("tokenize", "x", binary=str(lonely)).returncode, 0)


class Inspect(Case):
    def test_describes_the_default_model(self):
        text = output("inspect")
        self.assertEqual(text, output("inspect", NANO))
        self.assertRegex(text, r"(?m)^routed expert +1632 ")
        self.assertRegex(text, r"(?m)^4 +1 +4 +4 +compressor, index, candidate source$")
        self.assertRegex(text, r"checkpoint: 2 files, every tensor present")

    def test_what_stands_beside_the_weights_is_checked_too(self):
        model = self.folder / "model"
        for name, content, fault in (
            ("tokenizer.json", None, "tokenizer.json: cannot open: No such file"),
            ("tokenizer.json", "{", "tokenizer.json: "),
            ("generation_config.json", '{"temperature": -1}', "generation_config.json: temperature"),
        ):
            shutil.copytree(NANO, model)
            (model / name).unlink()
            if content is not None:
                (model / name).write_text(content)
            result = run("inspect", model)
            self.assertEqual(result.returncode, 1, name)
            self.assertIn(f"millrace: {model}/{fault}", result.stderr)
            self.assertIn("every tensor present", result.stdout)
            shutil.rmtree(model)
        shutil.copytree(NANO, model)
        (model / "generation_config.json").unlink()  # nobody needs it
        output("inspect", model)

    def test_an_empty_name_is_no_default(self):
        self.refused(2, "PATH: found an empty name, expected a path", "inspect", "")
        self.refused(2, "--isa: found nothing, expected", "forward", "--isa", "", "--token-ids", "1")

    def test_json_of_the_released_config_has_the_published_totals(self):
        info = json.loads(output("inspect", ROOT / "tests/golden/config-v4.1-flash.json", "--json"))
        self.assertEqual(info["total"]["tensors"], 96085)
        self.assertEqual(info["total"]["bytes"], 510286023000)
        self.assertEqual(info["kv_bytes_per_token"], 890)
        self.assertIsNone(info["checkpoint_files"])
        self.assertEqual(len(info["layers"]), 40)
        sources = [l for l, layer in enumerate(info["layers"]) if layer["owns_compressor"]]
        self.assertEqual(sources, [2, 8, 14, 20])

    def test_tells_how_many_sequences_fit(self):
        config = ROOT / "tests/golden/config-v4.1-flash.json"
        info = json.loads(output("inspect", config, "--json", "--kv-bytes", 10**10))
        self.assertEqual([fit["tokens"] for fit in info["fits"]], [2**14, 2**16, 2**18, 2**20])
        for fit in info["fits"]:
            state = info["kv_bytes_per_sequence"] + 890 * fit["tokens"]
            self.assertEqual(fit["sequences"], 10**10 // state)
        text = output("inspect", config, "--kv-bytes", 10**10)
        self.assertIn("state in 10,000,000,000 bytes", text)
        for fit in info["fits"]:
            self.assertIn(f" {fit['sequences']} sequences of {fit['tokens']:,} tokens fit\n", text)
        self.assertNotIn("fits", json.loads(output("inspect", config, "--json")))

    def test_a_model_and_this_machine_together(self):
        config = ROOT / "tests/golden/config-v4.1-flash.json"
        info = json.loads(output("inspect", config, "--json", "--machine"))
        self.assertEqual(info["total"]["tensors"], 96085)
        self.assertGreaterEqual(info["memory_bytes"], info["memory_available_bytes"])
        self.assertGreater(info["kv_bytes"], 0, "what is available")
        self.assertEqual(len(info["fits"]), 4)
        text = output("inspect", config, "--machine")
        self.assertRegex(text, r"(?s)\ntotal +96085 .* tokens fit\n.*\n\ncpu .*\nmemory +[\d,]+ bytes")

    def test_names_this_machine(self):
        text = output("inspect", "--machine")
        info = json.loads(output("inspect", "--machine", "--json"))
        self.assertIn(info["cpu"], text)
        self.assertEqual({t["numerics_id"] for t in info["tables"]}, {info["numerics_id"]})
        self.assertRegex(text, rf"(?m)^kernels  {info['isa']} .*\(chosen\)$")
        self.assertEqual(info["threads"], info["thread_plan"]["count"])
        self.assertIn(f"\nthreads  {info['threads']}: {info['thread_plan']['reason']}\n", text)

    def test_what_is_chosen_fits_what_this_process_may_use(self):
        cpus = sorted(os.sched_getaffinity(0))
        info = json.loads(output("inspect", "--machine", "--json"))
        self.assertEqual(info["allowed_cpus"], len(cpus))
        self.assertLessEqual(info["allowed_cores"], info["cores"])
        self.assertLessEqual(info["thread_plan"]["count"], info["allowed_cores"])
        self.assertIn(info["thread_plan"]["count"] - info["serve_thread_plan"]["count"], (0, 1))
        self.assertGreater(info["pages"]["bytes"], 0)
        alone = json.loads(output("inspect", "--machine", "--json",
                                  preexec_fn=lambda: os.sched_setaffinity(0, cpus[:1])))
        self.assertEqual(alone["allowed_cpus"], 1)
        self.assertEqual(alone["thread_plan"]["count"], 1)
        self.assertEqual(alone["cores"], info["cores"])

    def test_every_kernel_table_is_listed_or_told_to_be_untested(self):
        text = output("inspect", "--machine")
        info = json.loads(output("inspect", "--machine", "--json"))
        untested = {u["what"]: u["why"] for u in info["not_tested_here"]}
        for isa in ["AVX3", "AVX2", "SSE4", "NEON", "EMU128"]:
            listed = isa in [t["isa"] for t in info["tables"]]
            self.assertNotEqual(listed, f"kernels {isa}" in untested, isa)
        self.assertIn("GPU", untested)
        for what, why in untested.items():
            self.assertIn(f"\nuntested {what}: {why}\n", text)

    # hwloc describes another machine where this variable says so; the threads are real ones.
    TWO_NODES = {"HWLOC_SYNTHETIC": "pack:2 numa:1(memory=8GiB) l3:1(size=32MiB) core:1 pu:1"}

    def test_several_memory_nodes_share_the_threads(self):
        if len(os.sched_getaffinity(0) & {0, 1}) < 2:
            self.skipTest("needs processors 0 and 1")
        info = json.loads(output("inspect", "--machine", "--json", env=self.TWO_NODES))
        self.assertEqual([n["bytes"] for n in info["nodes"]], [8 << 30, 8 << 30])
        self.assertEqual(info["caches"],
                         [{"level": 3, "bytes": 32 << 20, "count": 2, "cpus_each": 1}])
        self.assertEqual(info["thread_plan"]["nodes"], [0, 1])
        text = output("inspect", "--machine", env=self.TWO_NODES)
        self.assertIn("\nplaced   1 thread at memory node 1\n", text)
        self.assertNotIn("untested threads", text)

    def test_the_answer_does_not_depend_on_where_threads_are(self):
        one = output("generate", "Once upon a time", "-n", "8", "--temp", "0")
        two = run("generate", "Once upon a time", "-n", "8", "--temp", "0", env=self.TWO_NODES)
        self.assertEqual(two.stdout, one)


class Tokens(Case):
    TEXT = "Grüße, 日本語!\n\n\tx = 12345 🙂 "

    def test_text_comes_from_argument_file_or_stdin_and_goes_back(self):
        ids = output("tokenize", self.TEXT)
        self.assertEqual(ids, output("tokenize", "--file", self.file("t", self.TEXT)))
        self.assertEqual(ids, output("tokenize", stdin=self.TEXT))
        self.assertEqual(ids, output("tokenize", "--model", NANO, self.TEXT))
        self.assertEqual(output("detokenize", *ids.split()), self.TEXT)
        self.assertEqual(output("detokenize", ",".join(ids.split()), "--model", NANO), self.TEXT)
        self.assertEqual(output("detokenize", stdin=ids), self.TEXT)

    def test_json_has_ids_and_texts(self):
        tokens = json.loads(output("tokenize", "--json", self.TEXT))
        self.assertEqual(
            tokens["token_ids"], [int(i) for i in output("tokenize", self.TEXT).split()]
        )
        self.assertEqual(tokens["count"], len(tokens["token_ids"]))
        back = json.loads(output("detokenize", "--json", *tokens["token_ids"]))
        self.assertEqual(back, {"text": self.TEXT, "tokens": tokens["tokens"]})

    def test_control_tokens_are_text_unless_asked_for(self):
        self.assertEqual(output("tokenize", "--special", "<｜User｜>"), "4094\n")
        self.assertGreater(len(output("tokenize", "<｜User｜>").split()), 1)

    def test_other_models_have_other_tokens(self):
        self.assertNotEqual(
            output("tokenize", "--model", TINY, "hello"), output("tokenize", "hello")
        )


class ChatLines(Case):
    GOLDEN = ROOT / "tests/golden/encoding"

    def check(self, command, golden):
        """The command gives what the golden lines expect, from a file and from stdin."""
        text = (self.GOLDEN / golden).read_text()
        lines = text.split("\n")  # and not at all that Python takes for a line end
        out = output(command, stdin=text)
        self.assertEqual(out, output(command, self.file("lines", text.replace("\n", "\r\n\n"))))
        for line, answer in zip(lines[:-1], out.split("\n")[:-1], strict=True):
            vector, got = json.loads(line), json.loads(answer)
            want = {"id": vector["id"], **vector["expect"]}
            if "error" in want:  # what it says is not part of the format
                self.assertTrue(got["error"])
                want["error"] = got["error"]
            self.assertEqual(got, want)

    def test_requests_become_prompts(self):
        self.check("chat-encode", "encode.jsonl")

    def test_replies_become_parts(self):
        self.check("chat-parse", "parse.jsonl")
        out = json.loads(
            output(
                "chat-parse",
                stdin=json.dumps({"id": "a", "raw": "So.</think>Yes.", "thinking": True}),
            )
        )
        self.assertEqual((out["reasoning"], out["content"]), ("So.", "Yes."))

    def test_a_bad_line_is_answered_in_its_place(self):
        good = json.dumps({"id": "b", "input": {"messages": [{"role": "user", "content": "x"}]}})
        first, second = output("chat-encode", "-", stdin='{"id": "a"}\n' + good).splitlines()
        self.assertIn("error", json.loads(first))
        self.assertIn("prompt", json.loads(second))

    def test_a_line_that_is_no_json_is_answered_and_an_error(self):
        good = json.dumps({"id": "b", "input": {"messages": [{"role": "user", "content": "x"}]}})
        for command, line in (("chat-encode", good), ("chat-parse", '{"id": "b", "raw": "x"}')):
            result = run(command, stdin='{"id":\n' + line)
            self.assertEqual((result.returncode, result.stderr), (1, ""))
            first, second = map(json.loads, result.stdout.splitlines())
            self.assertIn("JSON byte 6", first["error"])
            self.assertEqual((second["id"], "error" in second), ("b", False))

    def test_the_examples_of_the_help_are_true(self):
        for command in ("chat-encode", "chat-parse"):
            line, want = re.findall(r"^  (\{.*\})$", output(command, "--help"), re.M)
            got = json.loads(output(command, stdin=line))
            want = json.loads(want)
            self.assertEqual(list(got), list(want))
            if command == "chat-parse":
                self.assertEqual(got, want)


class Generate(Case):
    PROMPT = "Once upon a time"

    def prompt_ids(self):
        return "0," + ",".join(output("tokenize", self.PROMPT).split())

    def test_every_source_of_a_prompt_gives_the_same_answer(self):
        want = greedy("--max-tokens", 12, self.PROMPT)
        self.assertEqual(
            want["usage"], {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
        )
        self.assertEqual(
            (want["finish_reason"], want["stop_reason"], want["index"]), ("length", None, 0)
        )
        self.assertEqual(want["text"], output("detokenize", *want["token_ids"]))
        for arguments, stdin in [
            (["--file", self.file("p", self.PROMPT + "\n")], ""),
            (["--file", self.file("q", self.PROMPT)], ""),
            ([], self.PROMPT + "\r\n"),
            (["--token-ids", self.prompt_ids()], ""),
            (["--no-bos", "<｜begin▁of▁sentence｜>" + self.PROMPT], ""),
            (["<｜begin▁of▁sentence｜>" + self.PROMPT], ""),
            (["--model", NANO, self.PROMPT], ""),
        ]:
            got = greedy("--max-tokens", 12, *arguments, stdin=stdin)
            self.assertEqual(got["token_ids"], want["token_ids"], arguments)
        text = output("generate", self.PROMPT, "--temp", 0, "--max-tokens", 12)
        self.assertEqual(text, want["text"] + "\n")

    def test_pipes_are_read_like_files(self):
        text = "Once upon a time"
        request = {"messages": [{"role": "user", "content": "Hi"}]}
        for flag, content in (("--file", text), ("--chat", json.dumps(request))):
            want = greedy(flag, self.file("x", content), "-n", 5)["token_ids"]
            pipe = self.folder / f"pipe{flag}"
            os.mkfifo(pipe)
            writer = subprocess.Popen(["sh", "-c", f"cat {self.folder / 'x'} > {pipe}"])
            self.assertEqual(greedy(flag, pipe, "-n", 5)["token_ids"], want)
            self.assertEqual(writer.wait(), 0)

    def test_control_tokens_in_text_can_be_plain(self):
        usage = greedy("--max-tokens", 1, "--no-special", "<｜User｜>")["usage"]
        self.assertGreater(usage["prompt_tokens"], 2)

    def test_the_answer_is_independent_of_threads_kernels_and_chunks(self):
        story = self.PROMPT + " there was a little fox named Anna. " * 8
        arguments = [
            "--seed",
            7,
            "--temperature",
            1,
            "--max-tokens",
            16,
            "--logprobs",
            3,
            "--prompt-logprobs",
            1,
            story,
        ]
        keys = ["token_ids", "text", "logprobs", "prompt_logprobs"]
        want = generate(*arguments)
        tables = [t["isa"] for t in json.loads(output("inspect", "--machine", "--json"))["tables"]]
        for variant in (
            [["--isa", isa] for isa in tables]
            + [["--threads", t] for t in (2, 4)]
            + [["--chunk", c] for c in (1, 3, 64)]
        ):
            got = generate(*variant, *arguments)
            for key in keys:
                self.assertEqual(got[key], want[key], variant)

    def test_a_seed_repeats_an_answer_and_choices_differ(self):
        arguments = ["--max-tokens", 20, "--temperature", 1.5, self.PROMPT]
        first = generate(*arguments)
        self.assertNotEqual(first["seed"], generate(*arguments)["seed"])
        self.assertLess(first["seed"], 2**53, "readers of JSON keep no more of a number")
        self.assertEqual(
            generate("--seed", first["seed"], *arguments)["token_ids"], first["token_ids"]
        )
        lines = output(
            "generate", "--json", "--choices", 3, "--seed", first["seed"], *arguments
        ).splitlines()
        answers = [json.loads(line) for line in lines]
        self.assertEqual([a["index"] for a in answers], [0, 1, 2])
        self.assertEqual(answers[0]["token_ids"], first["token_ids"])
        self.assertEqual(len({tuple(a["token_ids"]) for a in answers}), 3)
        text = output("generate", "--choices", 2, "--seed", first["seed"], *arguments)
        self.assertEqual(
            text,
            f"--- 1 of 2 ---\n{answers[0]['text']}\n" f"--- 2 of 2 ---\n{answers[1]['text']}\n",
        )

    def test_fp32_numerics_agree_closely_with_the_reference_roundings(self):
        arguments = ["--max-tokens", 0, "--prompt-logprobs", 0, self.PROMPT]
        reference = greedy(*arguments)["prompt_logprobs"][1:]
        fp32 = greedy("--numerics", "fp32", *arguments)["prompt_logprobs"][1:]
        differences = [
            abs(a["logprob"] - b["logprob"]) for a, b in zip(reference, fp32, strict=True)
        ]
        self.assertGreater(max(differences), 0)
        self.assertLess(max(differences), 0.5)

    def test_narrow_sampling_is_greedy(self):
        want = greedy("--max-tokens", 12, self.PROMPT)["token_ids"]
        for flags in (["--top-k", 1], ["--top-p", 1e-9], ["--min-p", 1], ["--temp", 1e-4]):
            got = generate("--seed", 3, "--max-tokens", 12, *flags, self.PROMPT)["token_ids"]
            self.assertEqual(got, want, flags)

    def test_penalties_bias_and_bans_change_the_tokens_they_name(self):
        ids = greedy("--max-tokens", 40, self.PROMPT)["token_ids"]
        prompt = [int(i) for i in self.prompt_ids().split(",")]
        for flag, value in (
            ("--presence-penalty", 2),
            ("--frequency-penalty", 2),
            ("--repetition-penalty", 50),
        ):
            other = greedy("--max-tokens", 40, flag, value, self.PROMPT)["token_ids"]
            first = next(i for i in range(40) if other[i] != ids[i])
            self.assertIn(ids[first], prompt + ids[:first] if "repet" in flag else ids[:first], flag)
        fox = int(output("tokenize", " fox"))
        biased = greedy("--max-tokens", 3, "--logit-bias", f"{fox}=1e9", self.PROMPT)
        self.assertEqual(biased["token_ids"], [fox] * 3)
        banned = greedy(
            "--max-tokens",
            3,
            "--logit-bias",
            f"{fox}=100",
            "--logit-bias",
            f"{ids[0]}=-100",
            "--bad-word",
            "fox",
            self.PROMPT,
        )
        self.assertNotIn(fox, banned["token_ids"])
        allowed = greedy("--max-tokens", 5, "--allowed-token-ids", f"{fox},{ids[1]}", self.PROMPT)
        self.assertLessEqual(set(allowed["token_ids"]), {fox, ids[1]})

    def test_stops_end_the_text_exactly(self):
        text = greedy("--max-tokens", 30, self.PROMPT)["text"]
        stop = text[10:14]  # from inside one word into the next
        cut = greedy("--max-tokens", 30, "--stop", "never", "--stop", stop, self.PROMPT)
        self.assertEqual(cut["text"], text[: text.index(stop)])
        self.assertEqual((cut["finish_reason"], cut["stop_reason"]), ("stop", stop))
        kept = greedy("--max-tokens", 30, "--stop", stop, "--include-stop", self.PROMPT)
        self.assertEqual(kept["text"], text[: text.index(stop)] + stop)
        late = greedy("--max-tokens", 30, "--stop", stop, "--min-tokens", 25, self.PROMPT)
        self.assertGreaterEqual(len(late["token_ids"]), 25)
        ids = greedy("--max-tokens", 30, self.PROMPT)["token_ids"]
        by_id = greedy("--max-tokens", 30, "--stop-token-ids", f"4000,{ids[4]}", self.PROMPT)
        self.assertEqual(by_id["token_ids"], ids[: ids.index(ids[4]) + 1])
        self.assertEqual(by_id["stop_reason"], ids[4])
        self.assertEqual(by_id["text"], output("detokenize", *ids[: ids.index(ids[4])]))

    def test_the_end_token_can_be_ignored_and_shown(self):
        chat = self.file(
            "c", {"messages": [{"role": "user", "content": CAPITAL}], "thinking": False}
        )
        ended = greedy("--chat", chat)
        self.assertEqual((ended["token_ids"][-1], ended["finish_reason"]), (1, "stop"))
        on = greedy("--chat", chat, "--ignore-eos", "--max-tokens", 20)
        self.assertEqual(on["token_ids"][: len(ended["token_ids"])], ended["token_ids"])
        self.assertEqual(len(on["token_ids"]), 20)
        end = "<｜end▁of▁sentence｜>"
        prompt = f"<｜User｜>{CAPITAL}<｜Assistant｜></think>"
        flags = ["--ignore-eos", "--max-tokens", 20, prompt]
        self.assertNotIn(end, greedy(*flags)["text"])
        self.assertIn(end, greedy("--keep-special", *flags)["text"])

    def test_logprobs_are_a_distribution(self):
        answer = generate("--seed", 1, "--max-tokens", 5, "--logprobs", 4096, self.PROMPT)
        self.assertEqual([p["token_id"] for p in answer["logprobs"]], answer["token_ids"])
        for position in answer["logprobs"]:
            top = position["top"]
            self.assertAlmostEqual(sum(math.exp(t["logprob"]) for t in top), 1, places=5)
            self.assertEqual([t["rank"] for t in top], list(range(1, 4097)))
            self.assertEqual(top[position["rank"] - 1]["token_id"], position["token_id"])
            self.assertEqual(bytes(position["bytes"]).decode(), position["token"])
        every = generate("--seed", 1, "--max-tokens", 5, "--logprobs", -1, self.PROMPT)
        self.assertEqual(every["logprobs"], answer["logprobs"])

    def test_prompt_logprobs_continue_in_those_of_the_answer(self):
        answer = greedy("--max-tokens", 6, "--logprobs", 0, self.PROMPT)
        ids = [int(i) for i in self.prompt_ids().split(",")] + answer["token_ids"]
        prompt = greedy(
            "--max-tokens", 0, "--prompt-logprobs", 0, "--token-ids", ",".join(map(str, ids))
        )
        self.assertEqual(prompt["prompt_token_ids"], ids)
        self.assertIsNone(prompt["prompt_logprobs"][0])
        self.assertEqual(prompt["prompt_logprobs"][5:], answer["logprobs"])
        self.assertEqual((prompt["token_ids"], prompt["finish_reason"]), ([], "length"))

    def test_chat_requests_are_parsed_into_their_parts(self):
        chat = self.file("c", {"messages": [{"role": "user", "content": CAPITAL}]})
        answer = greedy("--chat", chat)
        self.assertEqual(
            (answer["reasoning_content"], answer["content"], answer["tool_calls"]),
            (THOUGHT, ANSWER, []),
        )
        at_once = greedy("--chat", chat, "--no-think")
        self.assertEqual((at_once["reasoning_content"], at_once["content"]), ("", ANSWER))
        low, high = (
            greedy("--chat", chat, "--effort", e, "--max-tokens", 0, "--prompt-logprobs", 0)
            for e in ("low", "90")
        )
        self.assertNotEqual(low["prompt_token_ids"], high["prompt_token_ids"])
        text = output("generate", "--temp", 0, "--chat", "-", stdin=chat.read_text())
        self.assertEqual(text, f"<think>\n{THOUGHT}\n</think>\n{ANSWER}\n")

    def chat_request(self, **fields):
        messages = [{"role": "user", "content": "Tell me a story."}]
        return self.file("c", {"messages": messages, "thinking": False, **fields})

    def test_a_request_says_how_to_sample_and_flags_win(self):
        def outcome(answer):
            keys = ("seed", "text", "token_ids", "finish_reason", "logprobs", "prompt_logprobs")
            return {key: answer.get(key) for key in keys}

        drawn = {"temperature": 2}
        for base, fields, flags in [
            (drawn, {"seed": 4}, "--seed 4"),
            (drawn, {"temperature": 1}, "--temp 1"),
            (drawn, {"top_k": 2}, "--top-k 2"),
            (drawn, {"top_p": 0.1}, "--top-p 0.1"),
            (drawn, {"min_p": 0.9}, "--min-p 0.9"),
            ({"max_tokens": 60}, {"presence_penalty": 2}, "--presence-penalty 2"),
            ({"max_tokens": 60}, {"frequency_penalty": 2}, "--frequency-penalty 2"),
            ({}, {"repetition_penalty": 9}, "--repetition-penalty 9"),
            ({}, {"logit_bias": {"300": 50}}, "--logit-bias 300=50"),
            ({}, {"allowed_token_ids": [300, 301]}, "--allowed-token-ids 300,301"),
            ({}, {"bad_words": ["was", "the"]}, "--bad-word was --bad-word the"),
            ({}, {"stop": "a"}, "--stop a"),
            ({}, {"stop": ["qqq", "a"]}, "--stop qqq --stop a"),
            ({"stop": "a"}, {"include_stop_str_in_output": True}, "--include-stop"),
            ({"stop": "a"}, {"min_tokens": 9}, "--min-tokens 9"),
            ({"logit_bias": {"300": 50}}, {"stop_token_ids": [300]}, "--stop-token-ids 300"),
            ({"logit_bias": {"1": 100}}, {"ignore_eos": True}, "--ignore-eos"),
            ({}, {"prompt_logprobs": 1}, "--prompt-logprobs 1"),
            ({}, {"logprobs": True}, "--logprobs 0"),
            ({}, {"logprobs": True, "top_logprobs": 2}, "--logprobs 2"),
            ({}, {"max_tokens": 3}, "--max-tokens 3"),
        ]:
            base = {"temperature": 0, "max_tokens": 20, "seed": 3, **base}
            plain = self.chat_request(**base)
            by_flag = outcome(generate("--chat", plain, *flags.split()))
            self.assertNotEqual(by_flag, outcome(generate("--chat", plain)), fields)
            asked = self.chat_request(**{**base, **fields})
            self.assertEqual(outcome(generate("--chat", asked)), by_flag, fields)
        contrary = self.chat_request(
            temperature=2, max_tokens=3, max_completion_tokens=4, n=2, seed=5, min_tokens=None
        )
        self.assertEqual(len(output("generate", "--chat", contrary, "--json").splitlines()), 2)
        answer = greedy("--chat", contrary, "--choices", 1, "--seed", 6)
        self.assertEqual((answer["seed"], len(answer["token_ids"])), (6, 4))
        self.assertEqual(len(greedy("--chat", contrary, "--choices", 1, "-n", 2)["token_ids"]), 2)

    def test_fields_of_a_request_that_do_nothing_are_named(self):
        chat = self.chat_request(
            model="m",
            stream=True,
            user=None,
            tool_choice="auto",
            response_format={"type": "json_object"},
        )
        result = run("generate", "--chat", chat, "--max-tokens", 1)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(
            result.stderr,
            f"millrace: {chat}: ignored: model, stream\n"
            f"millrace: {chat}: response_format: the prompt asks for it, nothing enforces it\n",
        )
        chat = self.chat_request(response_format={"type": "text"})
        self.assertEqual(run("generate", "--chat", chat, "--max-tokens", 1).stderr, "")

    def test_fields_of_a_request_are_checked(self):
        for pattern, fields in [
            ('temperature: found string "x", expected a number', {"temperature": "x"}),
            ("temperature: found 3, expected 0 to 2", {"temperature": 3}),
            ("n: found number 0, expected an integer from 1 to 128", {"n": 0}),
            ("n: found number 1.5, expected an integer from 1 to 128", {"n": 1.5}),
            ("stop: found an object, expected a string or an array of strings", {"stop": {}}),
            ("stop[1]: found number 1, expected a string", {"stop": ["a", 1]}),
            ("logit_bias: found an array of 0, expected an object", {"logit_bias": []}),
            ("logit_bias: found key x, expected token ids as keys", {"logit_bias": {"x": 1}}),
            ("logit_bias: found token id 5000", {"logit_bias": {"5000": 1}}),
            ("max_tokens: found number -1, expected an integer from 0 to", {"max_tokens": -1}),
            ("seed: found number 1.5, expected an integer from -9223372036854775808 to 18446744073709551615", {"seed": 1.5}),
            ('top_logprobs: needs "logprobs": true', {"top_logprobs": 2}),
            ("ignore_eos: found number 1, expected true or false", {"ignore_eos": 1}),
            ("stop_token_ids[0]: found number 1.5, expected a token id", {"stop_token_ids": [1.5]}),
            ("stop_token_ids: found number 1, expected an array", {"stop_token_ids": 1}),
        ]:
            chat = self.chat_request(**fields)
            self.refused(1, re.escape(f"{chat}: {pattern}"), "generate", "--chat", chat)

    def test_tools_are_called(self):
        chat = self.file(
            "c",
            {
                "tools": TOOLS,
                "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
            },
        )
        answer = greedy("--chat", chat)
        self.assertEqual(answer["finish_reason"], "tool_calls")
        (call,) = answer["tool_calls"]
        self.assertEqual(call["name"], "get_weather")
        self.assertEqual(list(json.loads(call["arguments"])), ["city"])
        self.assertIn(
            "[call] get_weather " + call["arguments"],
            output("generate", "--temp", 0, "--chat", chat),
        )

    def test_timings_and_stats(self):
        answer = greedy("--max-tokens", 8, self.PROMPT)["timings"]
        self.assertGreater(answer["decode_tokens_per_s"], 0)
        self.assertGreater(answer["prefill_tokens_per_s"], 0)
        self.assertGreaterEqual(answer["ttft_s"], answer["prefill_s"])
        result = run("generate", "--stats", "--max-tokens", 8, self.PROMPT)
        self.assertRegex(
            result.stderr, r"^\[5 prompt tokens at \d+/s, 8 new at \d+/s, .*length, seed \d+\]$"
        )

    def test_an_answer_names_what_computed_it(self):
        machine = json.loads(output("inspect", "--machine", "--json"))
        engine = greedy("--max-tokens", 1, "--threads", 2, "--isa", "ref", self.PROMPT)["engine"]
        shards = sum(path.stat().st_size for path in NANO.glob("*.safetensors"))
        self.assertEqual(
            engine,
            {
                "numerics_id": machine["numerics_id"],
                "isa": "ref",
                "threads": 2,
                "mapped_bytes": shards,
                "copied_bytes": 0,
                "expert_reads": "mapped",
            },
        )
        fp32 = greedy("--max-tokens", 1, "--numerics", "fp32", self.PROMPT)["engine"]["numerics_id"]
        self.assertNotEqual(fp32, machine["numerics_id"])

    def test_experts_from_the_disk_give_the_same_answer(self):
        flags = ("--max-tokens", 12, "--expert-cache-bytes")
        want, got = (greedy(*flags, size, self.PROMPT) for size in (0, 400_000))
        self.assertEqual(got["token_ids"], want["token_ids"])
        self.assertEqual(want["engine"]["expert_reads"], "mapped")
        self.assertNotIn("expert_cache", want["engine"])
        self.assertIn(got["engine"]["expert_reads"], ("io_uring", "pread"))
        cache = got["engine"]["expert_cache"]
        self.assertLessEqual(cache["bytes"], 400_000)
        self.assertGreater(cache["bytes_read"], cache["misses"] * 10_000)
        self.assertAlmostEqual(cache["hit_rate"], cache["hits"] / (cache["hits"] + cache["misses"]))
        self.assertGreater(cache["wait_s"], 0)

        result = run("generate", "--stats", *flags, 400_000, self.PROMPT)
        self.assertRegex(
            result.stderr.splitlines()[-1],
            r"^\[experts: [0-9.]+% of \d+ were in the cache of 0 MB; \d+ MB read with \w+, "
            r"waited \d+ ms\]$",
        )
        chat = ("chat", "--temp", 0, "--threads", 1, *flags)
        self.assertEqual(output(*chat, 0, stdin="hi\n"), output(*chat, 400_000, stdin="hi\n"))
        self.refused(1, "expert cache: found 1000 bytes, expected 0 or at least ", "generate",
                     "--expert-cache-bytes", 1000, self.PROMPT)

    def test_the_context_ends_an_answer(self):
        answer = greedy("--max-model-len", 20, "--ignore-eos", self.PROMPT)
        self.assertEqual(answer["usage"]["total_tokens"], 20)
        self.assertEqual(answer["finish_reason"], "length")

    def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(self):
        process = subprocess.Popen(
            [BINARY, "generate", "--ignore-eos", "--temp", "0", "--threads", "1", self.PROMPT],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual((process.returncode, errors), (130, b""))
        self.assertTrue((first + rest).decode().endswith("\n"))


class Forward(Case):
    IDS = "0,5,7,9,11,200,3"

    def forward(self, *arguments):
        path = self.folder / "out.safetensors"
        output("forward", "--model", TINY, "--token-ids", self.IDS, "--threads", 1, *arguments)
        return read_safetensors(path)

    def test_logits_have_one_row_per_token_whatever_the_chunk(self):
        path = self.folder / "out.safetensors"
        want = self.forward("--logits", path)
        self.assertEqual(list(want), ["logits"])
        self.assertEqual(want["logits"][:2], ("F32", [7, 512]))
        for variant in (["--chunk", 1], ["--chunk", 3], ["--isa", "ref"], ["--threads", 2],
                        ["--expert-cache-bytes", 100_000]):
            arguments = [
                a
                for a in (
                    "forward",
                    "--model",
                    TINY,
                    "--token-ids",
                    self.IDS,
                    *variant,
                    "--logits",
                    path,
                )
            ]
            output(*arguments)
            self.assertEqual(read_safetensors(path), want, variant)
        fp32 = self.forward("--numerics", "fp32", "--logits", path)
        self.assertNotEqual(fp32, want)

    def test_the_last_row_is_what_generate_samples_from(self):
        path = self.folder / "out.safetensors"
        _, (rows, width), values = self.forward("--logits", path)["logits"]
        last = values[(rows - 1) * width :]
        best = max(range(width), key=lambda i: (last[i], -i))
        answer = greedy(
            "--model", TINY, "--token-ids", self.IDS, "--max-tokens", 1, "--logprobs", 0
        )
        self.assertEqual(answer["token_ids"], [best])
        log_sum = math.log(sum(math.exp(x - max(last)) for x in last)) + max(last)
        self.assertAlmostEqual(answer["logprobs"][0]["logprob"], last[best] - log_sum, places=5)

    def test_trace_and_draft_may_share_a_file(self):
        path = self.folder / "out.safetensors"
        link = self.folder / "link"
        link.symlink_to(path)
        tensors = self.forward("--logits", path, "--trace", f"{self.folder}/./{path.name}", "--draft", link,
                               "--chunk", 2)  # fmt: skip
        self.assertEqual(tensors["trace.layers.0.in.streams"][:2], ("F32", [7, 4, 128]))
        self.assertEqual(tensors["trace.layers.3.ffn.experts"][:2], ("I32", [7, 2]))
        dtype, shape, mask = tensors["trace.layers.2.attn.selected_rows"]
        self.assertEqual((dtype, shape), ("U8", [7, 3]))
        self.assertLessEqual(set(mask), {0, 1})
        self.assertEqual(tensors["draft.anchor"][:2], ("I64", [1]))
        self.assertEqual(tensors["draft.tokens"][:2], ("I64", [3]))
        self.assertEqual(tensors["draft.confidence"][:2], ("F32", [3]))
        logits = tensors["logits"][2][6 * 512 :]
        self.assertEqual(tensors["draft.anchor"][2][0], max(range(512), key=lambda i: logits[i]))


    def test_outputs_are_written_through_links(self):
        path, link = self.folder / "out.safetensors", self.folder / "link"
        link.symlink_to(path)
        output("forward", "--model", TINY, "--token-ids", self.IDS, "--logits", link)
        self.assertTrue(link.is_symlink())
        self.assertEqual(read_safetensors(path)["logits"][1], [7, 512])
        self.assertEqual(sorted(self.folder.iterdir()), [link, path])

    def test_logits_that_are_no_numbers_are_written_and_an_error(self):
        model = self.folder / "model"
        shutil.copytree(TINY, model)
        for shard in model.glob("*.safetensors"):
            data = bytearray(shard.read_bytes())
            (size,) = struct.unpack("<Q", data[:8])
            entry = json.loads(data[8 : 8 + size]).get("norm.weight")
            if entry:
                self.assertEqual(entry["dtype"], "BF16")
                begin = 8 + size + entry["data_offsets"][0]
                data[begin : begin + 2] = b"\xc0\x7f"
                shard.chmod(0o600)
                shard.write_bytes(data)
        path = self.folder / "out.safetensors"
        pattern = "position 0: logit of token 0 is nan, expected a finite number"
        arguments = ["forward", "--model", model, "--token-ids", "5,6", "--chunk", 1]
        self.refused(1, pattern, *arguments, "--logits", path)
        self.assertTrue(all(map(math.isnan, read_safetensors(path)["logits"][2])))
        self.refused(1, pattern.replace("position 0", "position 1"), *arguments, "--trace", path)


class PipedChat(Case):
    def chat(self, stdin, *arguments):
        return output("chat", "--temperature", 0, "--threads", 1, *arguments, stdin=stdin)

    def test_every_line_is_a_turn_of_one_conversation(self):
        thought = f"<think>\n{THOUGHT}\n</think>\n{ANSWER}\n"
        self.assertEqual(self.chat(CAPITAL + "\n"), thought)
        self.assertEqual(self.chat(CAPITAL), thought, "without a final newline")
        two = self.chat(f"{CAPITAL}\n\nWhat is 12 + 7?\n", "--no-think")
        self.assertTrue(two.startswith(ANSWER + "\n"), two)
        self.assertEqual(two.count("\n"), 2, two)
        fresh = self.chat("What is 12 + 7?\n", "--no-think")
        reset = self.chat(f"{CAPITAL}\n/reset\nWhat is 12 + 7?\n", "--no-think")
        self.assertEqual(reset, ANSWER + "\n" + fresh)
        clear = self.chat(f"{CAPITAL}\n/clear\nWhat is 12 + 7?\n", "--no-think")
        self.assertEqual(clear, reset)

    def test_commands_change_what_follows(self):
        self.assertEqual(self.chat(f"/think off\n{CAPITAL}\n"), ANSWER + "\n")
        self.assertIn(
            THOUGHT, self.chat(f"/think off\n/think on\n/effort 100\n/effort low\n{CAPITAL}\n")
        )
        self.assertEqual(
            self.chat(f"{CAPITAL}\n/retry\n", "--no-think"), ANSWER + "\n" + ANSWER + "\n"
        )
        self.assertIn("/retry", self.chat("/help\n"))
        self.assertIn("medium, high, xhigh, max, ultra or 1 to 100", self.chat("/help\n"))
        self.assertEqual(self.chat(f"/exit\n{CAPITAL}\n"), "")
        warm = [
            self.chat(
                f"/temp 2\n/seed {seed}\n{CAPITAL}\n/seed\n/temp 0\n/system x\n/system\n",
                "--no-think",
                "--max-tokens",
                20,
            )
            for seed in (-1, 2**64 - 1, 2)
        ]
        self.assertEqual(warm[0], warm[1])
        self.assertNotEqual(warm[0], warm[2])
        retried = self.chat(
            f"/temp 2\n/seed -1\n{CAPITAL}\n/retry\n", "--no-think", "--max-tokens", 20
        )
        self.assertTrue(retried.startswith(warm[0]))
        self.assertNotEqual(retried, warm[0] * 2, "a retry draws anew under the same seed")

    def test_a_system_prompt_is_part_of_the_prompt(self):
        def prompt_tokens(lines, *arguments):
            result = run(
                "chat",
                "--temp",
                0,
                "--threads",
                1,
                "--stats",
                "--max-tokens",
                1,
                *arguments,
                stdin=lines,
            )
            return int(re.match(r"\[(\d+) prompt", result.stderr)[1])

        bare = prompt_tokens("hi\n")
        by_flag = prompt_tokens("hi\n", "--system", "Answer in one word.")
        self.assertGreater(by_flag, bare)
        self.assertEqual(prompt_tokens("/system Answer in one word.\nhi\n"), by_flag)

    def test_tools_are_called_and_the_next_line_is_the_result(self):
        for tools in (TOOLS, {"messages": [{"role": "user", "content": ""}], "tools": TOOLS}):
            text = self.chat(
                "What is the weather in Paris?\nsunny\n", "--tools", self.file("tools.json", tools),
                "-n", 200)  # the model does not find an end of its own
            call, _, rest = text.partition("[call] get_weather ")[2].partition("\n")
            self.assertEqual(list(json.loads(call)), ["city"])
            self.assertTrue(rest.strip(), "an answer follows the result")

    def test_thinking_can_be_folded(self):
        self.assertEqual(self.chat(CAPITAL, "--fold"), f"(thinking)\n{ANSWER}\n")

    def test_sampling_and_model_flags_are_those_of_generate(self):
        line = self.chat(
            CAPITAL,
            "--no-think",
            "--model",
            NANO,
            "--numerics",
            "reference",
            "--isa",
            "ref",
            "--chunk",
            5,
            "--max-model-len",
            200,
            "--top-k",
            5,
            "--top-p",
            0.9,
            "--min-p",
            0.01,
            "--presence-penalty",
            0,
            "--frequency-penalty",
            0,
            "--repetition-penalty",
            1,
            "--logit-bias",
            "9=0",
            "--bad-word",
            "zzz",
            "--allowed-token-ids",
            ",".join(map(str, range(4096))),
            "--seed",
            1,
            "--max-tokens",
            30,
            "--min-tokens",
            2,
            "--stop",
            "is",
            "--stop-token-ids",
            4000,
            "--include-stop",
            "--effort",
            60,
        )
        self.assertEqual(line, "The capital of France is\n")
        forever = self.chat(CAPITAL, "--no-think", "--ignore-eos", "--max-tokens", 12)
        self.assertIn(ANSWER, forever)

    def test_errors_end_a_pipe_with_status_1(self):
        for pattern, line in [
            ('/think: found "maybe", expected on or off', "/think maybe"),
            ("/fly: no such command", "/fly"),
            ("temperature: found 7", "/temp 7"),
            ('/temp: found "x"', "/temp x"),
            ('/seed: found "x"', "/seed x"),
            ('millrace: /effort: found "x", expected minimal, low, ', "/effort x"),
            ("/retry: there is nothing to answer yet", "/retry"),
        ]:
            result = run("chat", stdin=line + "\n" + CAPITAL)
            self.assertEqual((result.returncode, result.stdout), (1, ""), line)
            self.assertIn(pattern, result.stderr)
        result = run("chat", "--max-model-len", 30, stdin=CAPITAL)
        self.assertIn("the maximum context length is 30 tokens", result.stderr)
        for line in (b"a \xff\n", b"/system \xc3\n"):
            result = subprocess.run([BINARY, "chat"], input=line, capture_output=True, timeout=TIMEOUT)
            self.assertEqual((result.returncode, result.stdout), (1, b""))
            self.assertIn(b"that is not UTF-8, expected UTF-8", result.stderr)

    def test_ctrl_c_ends_a_pipe(self):
        for lines in (f"{CAPITAL}\nnot read\n", "/help\n"):  # while it answers; while it waits
            process = subprocess.Popen(
                [BINARY, "chat", "--no-think", "--ignore-eos", "--temp", "0", "--threads", "1"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            process.stdin.write(lines.encode())
            process.stdin.flush()
            os.read(process.stdout.fileno(), 1)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=TIMEOUT)
            self.assertEqual((process.returncode, errors), (130, b""))


class Terminal(Case):
    """The program on a pseudo-terminal."""

    def start(self, *arguments):
        arguments = ["chat", *map(str, arguments)]
        note_flags(arguments)
        pid, fd = pty.fork()
        if pid == 0:
            os.environ.pop("NO_COLOR", None)
            os.execv(BINARY, [BINARY, *arguments])
        self.pid, self.fd, self.seen = pid, fd, ""
        self.addCleanup(self.kill)

    def kill(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def read_until(self, text):
        """What came up to `text`, which is consumed."""
        deadline = time.monotonic() + TIMEOUT
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                self.fail(f"no {text!r} after {self.seen!r}")
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:
                self.fail(f"the program ended before {text!r}: {self.seen!r}")
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def exit_status(self):
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.01)[0]:
                try:
                    os.read(self.fd, 4096)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        self.fail("the program did not end")

    def test_thinking_is_dim_and_the_answer_is_not(self):
        self.start("--temp", 0, "--threads", 1)
        self.read_until("> ")
        self.type(CAPITAL + "\n")
        text = self.read_until("> ")
        self.assertIn(f"\033[2m{THOUGHT}", text)
        self.assertRegex(text.replace("\r", ""), rf"\033\[0m{ANSWER}\n")
        self.type("/exit\n")
        self.assertEqual(self.exit_status(), 0)

    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        self.start("--temp", 0, "--no-think", "--ignore-eos", "--threads", 1)
        self.read_until("> ")
        self.type(CAPITAL + "\n")
        self.read_until("Paris")
        self.type("\x03")
        self.read_until("> ")
        self.type("/help\n")
        self.read_until("/retry")
        self.read_until("> ")
        self.type("\x03")
        self.read_until("Ctrl-C once more")
        self.read_until("> ")
        self.type("/reset\n")  # a line in between: the next Ctrl-C is the first again
        self.read_until("> ")
        self.type("\x03")
        self.read_until("Ctrl-C once more")
        self.read_until("> ")
        self.type("\x03")
        self.assertEqual(self.exit_status(), 0)

    def test_an_error_is_told_and_the_conversation_goes_on(self):
        self.start("--temp", 0, "--no-think", "--threads", 1)
        self.read_until("> ")
        self.type("/fly\n")
        self.read_until("no such command")
        self.read_until("> ")
        self.type(CAPITAL + "\n")
        self.assertIn(ANSWER, self.read_until("> "))
        self.type("\x04")
        self.assertEqual(self.exit_status(), 0)

    def test_the_prompt_names_the_call_whose_result_is_awaited(self):
        self.start("--temp", 0, "--threads", 1, "--tools", self.file("tools.json", TOOLS),
                   "--max-tokens", 200)
        self.read_until("> ")
        self.type("What is the weather in Paris?\n")
        self.read_until("result of get_weather> ")
        self.type("sunny\n")
        self.read_until("> ")
        self.type("/exit\n")
        self.assertEqual(self.exit_status(), 0)


class ZzCoverage(Case):
    """Runs last, by name: what the tests above leave out."""

    def test_every_flag_was_used(self):
        commands = re.findall(r"^  ([a-z-]+)  ", output("--help").split("Subcommands:")[1], re.M)
        for command in ("batch", "bench", "eval", "serve", "synth", "replay"):  # have tests of their own, and so has what replay reads
            commands.remove(command)
        used_flags.add(("generate", "--record"))
        for command in commands:
            for names in re.findall(r"^  (-[-a-z,]+)", output(command, "--help"), re.M):
                used = any((command, name) in used_flags for name in names.split(","))
                self.assertTrue(used or "PARTIAL" in os.environ, f"{command} {names} has no test")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    BINARY = os.path.abspath(sys.argv.pop(1))
    unittest.main()

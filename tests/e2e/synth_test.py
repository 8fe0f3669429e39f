#!/usr/bin/python3
"""`millrace synth` from outside: what it writes loads and runs, whatever was asked for.

usage: synth_test.py BINARY [unittest arguments]
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
TIMEOUT = 300  # seconds; generous, for machines that do other work
BINARY = None
used_flags = set()  # for the last test


def run(*arguments):
    arguments = [str(a) for a in arguments]
    if arguments[0] == "synth":
        used_flags.update(a for a in arguments if a.startswith("-"))
    return subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=TIMEOUT)


def output(*arguments):
    """stdout of a run that must succeed."""
    result = run(*arguments)
    if result.returncode != 0:
        raise AssertionError(f"{arguments}: exit {result.returncode}: {result.stderr}")
    return result.stdout


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def disk_bytes(folder):
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.out = self.folder / "out"

    def synth(self, *options):
        """The config of the written checkpoint, which has been loaded and run."""
        output("synth", self.out, *options)
        config = json.loads((self.out / "config.json").read_text())["text_config"]
        ids = ",".join(str(i * 37 % config["vocab_size"]) for i in range(1, 9))
        stages = config["num_nextn_predict_layers"]
        last = ("--draft",) if stages else ("--logits",)
        output("forward", "--model", self.out, "--threads", 1, "--token-ids", ids, *last, self.folder / "x")
        return config

    def refused(self, status, pattern, *arguments):
        result = run("synth", *arguments)
        self.assertEqual((result.returncode, result.stdout), (status, ""), arguments)
        self.assertRegex(result.stderr, pattern)


class Contents(Case):
    def test_the_default_is_mini_with_all_its_files(self):
        config = self.synth()
        self.assertEqual((config["hidden_size"], config["num_hidden_layers"]), (256, 10))
        self.assertEqual(
            sorted(files(self.out)),
            [
                "config.json",
                "generation_config.json",
                "model-00001-of-00001.safetensors",
                "model.safetensors.index.json",
                "tokenizer.json",
                "tokenizer_config.json",
            ],
        )
        info = json.loads(output("inspect", self.out, "--json"))
        self.assertEqual(info["total"]["parameters"], 14857560)
        # A chat needs every control token.
        request = self.folder / "request.json"
        request.write_text('{"messages": [{"role": "user", "content": "Hello"}]}')
        arguments = ("--model", self.out, "--threads", 1, "--max-tokens", 4, "--seed", 1, "--json")
        answer = json.loads(output("generate", "--chat", request, *arguments))
        self.assertEqual(answer["usage"]["completion_tokens"], 4)

    def test_the_same_options_write_the_same_files(self):
        self.synth("--seed", 5, "--shards", 4)
        first = files(self.out)
        self.assertEqual(len([name for name in first if name.startswith("model-")]), 4)
        self.synth("--seed", 5, "--shards", 4, "--overwrite")
        self.assertEqual(files(self.out), first)
        self.synth("--seed", 6, "--shards", 4, "--overwrite")
        self.assertNotEqual(files(self.out), first)

    def test_every_number_of_layers_runs(self):
        for layers in range(1, 11):
            with self.subTest(layers):
                config = self.synth("--layers", layers, "--overwrite")
                self.assertEqual(config["num_hidden_layers"], layers)

    def test_chosen_layers_run(self):
        config = self.synth("--layer-ids", "1,2,3,6,8")
        self.assertEqual(config["compress_ratios"], [0, 2, 2, 1, 1, 0, 0])
        self.assertEqual(config["kv_source_layer_ids"], [1, 3])
        self.assertEqual(config["candidate_source_layer_id"], 3)
        self.refused(1, "--layer-ids: found 8, expected layer 6", self.out, "--layer-ids", "8")
        self.refused(2, "--layer-ids excludes --layers|--layers excludes --layer-ids", self.out,
                     "--layer-ids", "0", "--layers", 1)
        self.refused(2, "--layer-ids", self.out, "--layer-ids", "1,x")

    def test_sizes_change_on_their_own_and_together(self):
        changes = {
            "--experts": ("n_routed_experts", 3),
            "--hidden": ("hidden_size", 64),
            "--vocab": ("vocab_size", 300),
            "--draft": ("num_nextn_predict_layers", 1),
        }
        for flag, (key, value) in changes.items():
            with self.subTest(flag):
                self.assertEqual(self.synth(flag, value, "--overwrite")[key], value)
        together = [part for flag, (_, value) in changes.items() for part in (flag, value)]
        config = self.synth(*together, "--layers", 7, "--engram-rows", 600, "--overwrite")
        self.assertEqual(config["engram_vocab_size"], 100)
        config = self.synth("--engram-rows", 0, "--draft", 0, "--overwrite")
        self.assertEqual(config["engram_layer_ids"], [])

    def test_a_config_file_is_taken_as_it_is(self):
        for path in (ROOT / "models/nano/config.json", ROOT / "tests/golden/tiny-v41/config.json"):
            with self.subTest(path):
                config = self.synth("--config", path, "--overwrite")
                wanted = json.loads(path.read_text())["text_config"]
                wanted.pop("tie_word_embeddings", None)  # said at the top level
                self.assertEqual(config, wanted)

    def test_the_real_structure_has_40_layers_at_small_widths(self):
        config = self.synth("--shape", "real-structure")
        self.assertEqual((config["hidden_size"], config["num_hidden_layers"]), (256, 40))
        self.assertLess(disk_bytes(self.out), 40e6)


class Sparse(Case):
    def test_the_release_takes_its_size_in_names_only(self):
        output("synth", self.out, "--shape", "v4.1", "--sparse")
        self.assertEqual(len(list(self.out.glob("model-*-of-00048.safetensors"))), 48)
        self.assertLess(disk_bytes(self.out), 200e6)
        info = json.loads(output("inspect", self.out, "--json"))
        self.assertEqual(info["checkpoint_files"], 48)
        self.assertEqual(info["total"]["tensors"], 96085)
        self.assertEqual(info["total"]["bytes"], 510286023000)

    def test_a_slice_of_the_release_at_full_width_runs(self):
        config = self.synth(
            *("--shape", "v4.1", "--sparse", "--layers", 3, "--experts", 8, "--engram-rows", 10000),
            *("--draft", 1, "--no-vision"),
        )
        self.assertEqual(config["hidden_size"], 5120)
        self.assertEqual(config["dspark_target_layer_ids"], [0, 1, 2])
        self.assertNotIn("vision_config", json.loads((self.out / "config.json").read_text()))


class Refusals(Case):
    def test_command_lines_without_sense(self):
        for pattern, arguments in [
            ("OUT_DIR is required", []),
            ("OUT_DIR: .*empty name", [""]),
            ("--shape: nano not in {mini,real-structure,v4.1}", [self.out, "--shape", "nano"]),
            ("--shape excludes --config", [self.out, "--shape", "mini", "--config", "x"]),
            ('--layers: found "0", expected an integer from 1 to ', [self.out, "--layers", "0"]),
            ('--vocab: .*found "many", expected an integer', [self.out, "--vocab", "many"]),
            ('--engram-rows: found "-1", expected an integer from 0 to ', [self.out, "--engram-rows", "-1"]),
            ('--shards: found "0", expected an integer from 1 to ', [self.out, "--shards", "0"]),
            ('--seed: .*found "-1"', [self.out, "--seed", "-1"]),
        ]:
            self.refused(2, pattern, *arguments)

    def test_sizes_that_make_no_model(self):
        config = self.folder / "config.json"
        config.write_text("{}")
        for pattern, options in [
            ("--layers: found 11, expected 1 to 10", ["--layers", 11]),
            ("--hidden: hidden_size: found 100, expected a multiple of 32", ["--hidden", 100]),
            ("--vocab: vocab_size: found 100, expected at least 273", ["--vocab", 100]),
            ("--experts: n_routed_experts: found 5000", ["--experts", 5000]),
            ("--shards: found 5000, expected 1 to 936", ["--shards", 5000]),
            (f"{config}: .*found nothing, expected", ["--config", config]),
            ("none: cannot open", ["--config", self.folder / "none"]),
        ]:
            self.refused(1, pattern, self.out, *options)
            self.assertFalse(self.out.exists())

    def test_a_folder_with_files_and_a_file_as_a_folder(self):
        file = self.folder / "file"
        file.write_text("")
        self.refused(1, "found files in the folder, expected none without --overwrite", self.folder)
        self.refused(1, "found a file, expected a folder", file)
        self.refused(1, "cannot create", file / "below")

    def test_ctrl_c_and_sigterm_leave_nothing(self):
        for stop in (signal.SIGINT, signal.SIGTERM):
            self.stopped(stop)

    def stopped(self, stop):
        sizes = ("--layers", "1", "--experts", "50", "--engram-rows", "0", "--draft", "0")
        command = [BINARY, "synth", str(self.out), "--shape", "v4.1", "--no-vision", *sizes]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        self.assertRegex(process.stderr.readline(), r"^writing .*: \d+ of 3\d\d\d MB$")
        self.assertTrue(self.out.exists())
        process.send_signal(stop)
        _, rest = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 130)
        self.assertIn("millrace: stopped", rest)
        self.assertFalse(self.out.exists())


    def test_what_a_killed_run_left_half_written_goes_with_the_next(self):
        gone = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
        self.out.mkdir()
        half = self.out / f"model-00001-of-00001.safetensors.tmp.{gone.stdout.strip()}"
        half.write_text("half")
        output("synth", self.out)
        self.assertFalse(half.exists())
        half.write_text("half")
        of_others = [self.out / f"mine.tmp.{gone.stdout.strip()}",
                     self.out / f"config.json.tmp.{os.getpid()}"]  # fmt: skip
        for path in of_others:
            path.write_text("")
        output("synth", self.out, "--overwrite")
        self.assertFalse(half.exists())
        for path in of_others:
            self.assertTrue(path.exists(), path)


class ZzCoverage(Case):
    """Runs last, by name."""

    def test_every_flag_was_used(self):
        for name in re.findall(r"^  (-[-a-z]+)", output("synth", "--help").split("Options:")[1], re.M):
            used = name in used_flags or name == "-h"
            self.assertTrue(used or "PARTIAL" in os.environ, f"{name} has no test")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    BINARY = os.path.abspath(sys.argv.pop(1))
    unittest.main()

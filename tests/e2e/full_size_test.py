#!/usr/bin/python3
"""A checkpoint of the release's size, all holes: it opens quickly, runs in little memory, and rows
of its tables far beyond 2^32 bytes are read where they are.

usage: full_size_test.py BINARY [unittest arguments]

Reads 12 GB of zeros, so it takes a while and, for that while, memory for cached file pages.
"""
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/reference"))
from v41 import safetensors, tokens

TIMEOUT = 1800  # seconds; generous, for machines that do other work
TOKEN_IDS = [1000, 50000, 99999, 129000]
ONE, SCALE_OF_ONE = b"\x38", b"\x7f"  # in e4m3 and ue8m0
BINARY = None


def run(*arguments, data_limit=None):
    """CPU seconds and stdout of a run that must succeed within `data_limit` bytes of memory that it
    does not share with a file."""

    def limit():
        if data_limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (data_limit, data_limit))

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [BINARY, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        preexec_fn=limit,
    )
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: status {done.returncode}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


class FullSize(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.folder, cls.model = folder, folder / "model"
        run("synth", cls.model, "--shape", "v4.1", "--sparse")
        index = json.loads((cls.model / "model.safetensors.index.json").read_text())
        cls.weight_map = index["weight_map"]
        cls.config = json.loads((cls.model / "config.json").read_text())["text_config"]

    def write(self, name, row, column, byte):
        """One byte of a matrix of bytes. Its place in the file."""
        path = self.model / self.weight_map[name]
        header, base = safetensors.read_header(path)
        entry = header[name]
        place = base + entry["data_offsets"][0] + int(row) * entry["shape"][1] + int(column)
        with open(path, "r+b") as file:
            file.seek(place)
            file.write(byte)
        return place

    def test_it_opens_within_5_seconds_and_500_megabytes(self):
        seconds, text = run("inspect", self.model, "--json", data_limit=500_000_000)
        self.assertEqual(json.loads(text)["total"]["bytes"], 510286023000)
        self.assertLess(seconds, 5)

    def test_a_cache_of_experts_fits_into_500_megabytes_with_everything_else(self):
        logits = self.folder / "cached"
        run("forward", "--model", self.model, "--token-ids", "1000,50000", "--logits", logits,
            "--expert-cache-bytes", 200_000_000, data_limit=500_000_000)
        self.assertEqual(safetensors.read(logits)["logits"].shape, (2, 129280))

    def test_it_runs_in_500_megabytes_and_reads_rows_beyond_4_gigabytes(self):
        compressed = tokens.token_map(json.loads((self.model / "tokenizer.json").read_text()))
        rows = tokens.engram_rows(self.config, TOKEN_IDS, compressed)
        columns, width = rows[0].shape[1], self.config["engram_head_dim"]
        hidden, streams = self.config["hidden_size"], self.config["hc_mult"]
        # The last token's row in the last column, the longest n-gram, says 1 at its first place,
        # and the projection carries that place to another place of the value in every table.
        for table, layer in enumerate(self.config["engram_layer_ids"]):
            row = rows[table][-1, -1]
            prefix = f"layers.{layer}.engram."
            self.assertGreater(self.write(prefix + "embed.weight", row, 0, ONE), 2**36)
            self.assertGreater(int(row) * width, 2**32)
            self.write(prefix + "embed.scale", row, 0, SCALE_OF_ONE)
            output, place = streams * hidden + table, (columns - 1) * width
            self.write(prefix + "wkv.weight", output, place, ONE)
            self.write(prefix + "wkv.scale", output // 32, place // 32, SCALE_OF_ONE)

        trace, logits = self.folder / "trace", self.folder / "logits"
        ids = ",".join(map(str, TOKEN_IDS))
        outputs = ("--trace", trace, "--logits", logits)
        run("forward", "--model", self.model, "--token-ids", ids, "--threads", 2, *outputs,
            "--expert-cache-bytes", 0, data_limit=500_000_000)
        for table, layer in enumerate(self.config["engram_layer_ids"]):
            # Keys are zero, so the gate is open by half.
            value = safetensors.read(trace)[f"trace.layers.{layer}.in.streams"][:, :, table]
            want = np.zeros((len(TOKEN_IDS), streams), np.float32)
            want[-1] = 0.5
            np.testing.assert_array_equal(value, want)
        self.assertEqual(safetensors.read(logits)["logits"].shape, (4, 129280))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    BINARY = os.path.abspath(sys.argv.pop(1))
    unittest.main()

#!/usr/bin/python3
"""`millrace forward` against the golden vectors, with the tools that people use for it.

usage: golden_test.py BINARY [unittest arguments]
"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/reference"))
from v41 import safetensors

GOLDEN = ROOT / "tests/golden/tiny-v41.golden.safetensors"
TINY = ROOT / "tests/golden/tiny-v41"
COMPARE = ROOT / "tools/reference/compare.py"
SEQUENCES = ("short", "medium", "long")
BINARY = None


def run(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Forward(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.golden = safetensors.read(GOLDEN)

    def forward(self, sequence, *options):
        """The path that the last option names the content of."""
        out = self.folder / "out.safetensors"
        token_ids = ",".join(map(str, self.golden[f"fp32.{sequence}.token_ids"]))
        run(BINARY, "forward", "--model", TINY, "--token-ids", token_ids, *options, out)
        return out

    def test_logits_agree_with_the_reference(self):
        for sequence in SEQUENCES:
            with self.subTest(sequence):
                logits = self.forward(sequence, "--numerics", "fp32", "--logits")
                bounds = ("--rows", 0.95, "--margin", 0.01)
                run(COMPARE, logits, GOLDEN, "--prefix", f"fp32.{sequence}.", *bounds)

    def test_drafts_agree_with_the_reference(self):
        for sequence in SEQUENCES:
            with self.subTest(sequence):
                draft = self.forward(sequence, "--numerics", "fp32", "--draft")
                files = (COMPARE, draft, GOLDEN, "--prefix", f"fp32.{sequence}.")
                run(*files, "--only", r"draft\.(anchor|tokens)", "--same", 1)
                run(*files, "--only", r"draft\.confidence", "--rows", 1)

    def test_the_first_layers_sublayers_agree_with_the_reference(self):
        # Layer 0 sees equal inputs; further down a flipped rounding may have changed a route.
        trace = self.forward("medium", "--trace")
        bounds = ("--ulp", 0.9, "--of-rms", 0.25)
        first = r"layers\.0\.(in|attn)\."
        run(COMPARE, trace, GOLDEN, "--prefix", "reference.medium.", "--only", first, *bounds)

    def test_chunks_threads_and_instruction_sets_never_change_a_bit(self):
        tables = json.loads(run(BINARY, "inspect", "--machine", "--json"))["tables"]
        want = self.forward("medium", "--threads", 1, "--logits").read_bytes()
        for table in tables:
            for threads, chunk in ((1, 64), (2, 7), (4, 1)):
                options = ("--isa", table["isa"], "--threads", threads, "--chunk", chunk)
                with self.subTest(options):
                    self.assertTrue(
                        self.forward("medium", *options, "--logits").read_bytes() == want
                    )


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()

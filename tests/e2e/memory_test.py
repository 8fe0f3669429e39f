#!/usr/bin/python3
"""A released checkpoint is served from its files: memory of the process's own stays small beside it.

usage: memory_test.py PATH_TO_MILLRACE
"""
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from serving import TIMEOUT, Server

BINARY = None
# Two layers of the release at their full width, one with Engram: 813 MB.
SLICE = ["--shape", "v4.1", "--layers", "2", "--experts", "8", "--vocab", "1024", "--engram-rows",
         "4096", "--draft", "0", "--no-vision"]
KV_BYTES = 64_000_000
# What a step computes with is as large as its rows: 1 MB for each at the released width, which is
# nothing beside 510 GB and much beside a slice.
ROWS = 16


class Memory(unittest.TestCase):
    def test_private_memory_is_at_most_a_twentieth_of_the_tensors_and_the_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([BINARY, "synth", folder, "--overwrite", *SLICE], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TIMEOUT)
            tensor_bytes = sum(f.stat().st_size for f in Path(folder).glob("*.safetensors"))
            self.assertGreater(tensor_bytes, 800_000_000)
            with Server(BINARY, "--model", folder, "--kv-bytes", KV_BYTES,
                        "--max-num-batched-tokens", ROWS, "--chunk", ROWS) as server:
                kv_bytes = server.stats()["kv"]["bytes"]
                self.assertLessEqual(kv_bytes, KV_BYTES)
                peak, files = self.memory_while(server, lambda: self.ask(server))
        print(f"{peak >> 20} MiB private, {kv_bytes >> 20} MiB of cache, {files >> 20} MiB of "
              f"{tensor_bytes >> 20} MiB of tensors mapped", file=sys.stderr)
        # The weights were used, and from the files.
        self.assertGreater(files, tensor_bytes // 2)
        self.assertLess(peak, tensor_bytes // 20 + kv_bytes)

    def ask(self, server):
        status, reply = server.post("/v1/completions", {
            "prompt": [(37 * i + 11) % 900 for i in range(3 * ROWS)], "max_tokens": 4, "n": 2,
            "temperature": 0, "ignore_eos": True})
        self.assertEqual(status, 200, reply)
        self.assertEqual(reply["usage"]["completion_tokens"], 8)

    def memory_while(self, server, work):
        """The most private memory and the most memory of mapped files while `work` goes on."""
        done = threading.Event()
        most = {"RssAnon": 0, "VmSwap": 0, "RssFile": 0}

        def look():
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            for name in most:
                value = 1024 * int(re.search(rf"{name}:\s+(\d+)", status)[1])
                most[name] = max(most[name], value)

        def watch():
            while not done.wait(0.005):
                look()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            work()
        finally:
            done.set()
            watcher.join()
        look()  # scratch stays for the next step
        return most["RssAnon"] + most["VmSwap"], most["RssFile"]


if __name__ == "__main__":
    BINARY = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()

#!/usr/bin/python3
"""The web page in a real browser, served by the real program: scripted answers, and nano's.

usage: web_test.py BINARY

Needs node, npm and chromium; the first run fetches the packages of web/package-lock.json.
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from serving import NANO, ROOT, Server, install_packages

TIMEOUT = 900  # seconds, of one run of all tests
HERE = Path(__file__).resolve().parent


def main():
    binary = sys.argv[1]
    if shutil.which("chromium") is None:
        raise SystemExit("chromium is not installed: apt-get install chromium")
    install_packages(HERE / "web")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.jsonl"
        script.write_bytes(subprocess.run(["node", HERE / "web/script.mjs"], check=True,
                                          capture_output=True, timeout=TIMEOUT).stdout)
        for flags, options in [(["--engine", f"scripted={script}"], []), ([], ["--any-model"])]:
            with Server(binary, "--model", NANO, "--no-access-log", *flags) as server:
                command = ["node", HERE / "web_test.mjs", f"http://127.0.0.1:{server.port}"]
                run = subprocess.run([*command, *options], cwd=ROOT, timeout=TIMEOUT)
                if run.returncode != 0:
                    failed.append(" ".join(flags) or "nano")
    if failed:
        raise SystemExit(f"failed with {' and '.join(failed)}")


if __name__ == "__main__":
    main()

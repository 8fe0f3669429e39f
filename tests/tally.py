#!/usr/bin/python3
"""Counts what a ctest run passed and failed: tally.py BUILD_FOLDER prints `PASSED FAILED SKIPPED`.

A GoogleTest program counts by its cases, any other test as one. A program that fails without a
failed case (a crash, a leak found at exit) is one failure.
"""
import re
import sys
from pathlib import Path


def cases(kind, output):
    # The summary line; a failed case's own line ends in its name and not in "test(s)".
    return sum(map(int, re.findall(rf"^\[  {kind}  ?\] (\d+) tests?[.,]", output, re.M)))


def tally(log):
    passed = failed = skipped = 0
    for output in re.split(r"^\d+/\d+ Testing: ", log, flags=re.M)[1:]:
        succeeded = re.search(r"^Test Passed\.$", output, re.M)
        passed_cases, failed_cases = cases("PASSED", output), cases("FAILED", output)
        skipped_cases = cases("SKIPPED", output)
        skipped += skipped_cases
        if not passed_cases and not failed_cases and not skipped_cases:
            passed_cases = 1 if succeeded else 0
        if not succeeded and not failed_cases:
            failed_cases = 1
        passed += passed_cases
        failed += failed_cases
    return passed, failed, skipped


if __name__ == "__main__":
    log = Path(sys.argv[1]) / "Testing/Temporary/LastTest.log"
    print(*tally(log.read_text(errors="replace")))

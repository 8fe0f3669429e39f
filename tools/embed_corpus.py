#!/usr/bin/env python3
"""Text files in a row as a C++ source: what src/loadgen/corpus.h declares.

usage: embed_corpus.py OUTPUT.cc FILE...
"""
import pathlib
import sys

BYTES_PER_LINE = 32


def main():
    output, files = pathlib.Path(sys.argv[1]), sys.argv[2:]
    text = "\n".join(pathlib.Path(f).read_text(encoding="utf-8") for f in sorted(files)).encode()
    lines = ['#include "loadgen/corpus.h"', "", "namespace millrace {", "namespace {", "",
             "constexpr unsigned char kText[] = {"]
    for at in range(0, len(text), BYTES_PER_LINE):
        lines.append(",".join(str(b) for b in text[at:at + BYTES_PER_LINE]) + ",")
    lines += ["};", "", "}  // namespace", "", "std::string_view built_in_corpus() {",
              "  return {reinterpret_cast<const char*>(kText), sizeof kText};", "}", "",
              "}  // namespace millrace", ""]
    output.write_text("\n".join(lines))


if __name__ == "__main__":
    main()

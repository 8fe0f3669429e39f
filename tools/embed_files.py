#!/usr/bin/env python3
"""Files of a folder as a C++ source: the table behind src/server/web_files.h.

usage: embed_files.py FOLDER OUTPUT.cc
"""
import pathlib
import sys

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
}
BYTES_PER_LINE = 24


def main():
    folder, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    files = sorted(f for f in folder.rglob("*") if f.suffix in TYPES)
    lines = ['#include "server/web_files.h"', "", "namespace millrace {", "namespace {", ""]
    for i, file in enumerate(files):
        content = file.read_bytes()
        lines.append(f"constexpr unsigned char kFile{i}[] = {{")
        for at in range(0, len(content), BYTES_PER_LINE):
            lines.append(",".join(str(b) for b in content[at:at + BYTES_PER_LINE]) + ",")
        lines.append("0};")
    lines += ["", "std::string_view text(const unsigned char* bytes, size_t size) {",
              "  return {reinterpret_cast<const char*>(bytes), size};", "}", "",
              "const WebFile kFiles[] = {"]
    for i, file in enumerate(files):
        name = file.relative_to(folder).as_posix()
        lines.append(f'    {{"{name}", "{TYPES[file.suffix]}", text(kFile{i}, sizeof kFile{i} - 1)}},')
    lines += ["};", "", "}  // namespace", "",
              "std::span<const WebFile> web_files() { return kFiles; }", "",
              "}  // namespace millrace", ""]
    output.write_text("\n".join(lines))


if __name__ == "__main__":
    main()

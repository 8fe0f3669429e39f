#!/usr/bin/env python3
"""Writes english.txt, code.txt and both.txt, half of each, for bench-tokenizer.

usage: tokenizer_texts.py FOLDER [MEGABYTES_EACH]

English is documentation under /usr/share/doc, code is Python modules and C headers. Both are
what this machine has installed: of every file the first 32 KiB, files of equal beginning once, in
the order of a hash of their path, so that the text repeats itself no more than such text does.
"""
import gzip
import hashlib
import pathlib
import sys

FILE_BYTES = 32 << 10
ENGLISH_NAMES = ("README", "NEWS", "FAQ", "HACKING", "TODO", "INSTALL", "THANKS")
ENGLISH_SUFFIXES = (".txt", ".md", ".rst", ".txt.gz", ".md.gz", ".rst.gz")


def is_english(path):
    return path.name.startswith(ENGLISH_NAMES) or path.name.endswith(ENGLISH_SUFFIXES)


def is_code(path):
    return path.suffix in (".py", ".h", ".hpp", ".c", ".js")


def text_of(paths, num_bytes):
    paths = sorted(paths, key=lambda p: hashlib.sha256(str(p).encode()).digest())
    text, seen = bytearray(), set()
    for path in paths:
        try:
            with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
                part = file.read(FILE_BYTES)
            part.decode()
        except (OSError, UnicodeDecodeError):
            continue
        if part[:256] in seen:
            continue
        seen.add(part[:256])
        text += part
        if len(text) >= num_bytes:
            return bytes(text[:num_bytes].decode(errors="ignore").encode())
    return bytes(text)


def files_under(folders, wanted):
    return [p for f in folders for p in pathlib.Path(f).rglob("*") if wanted(p) and p.is_file()]


def main():
    folder = pathlib.Path(sys.argv[1])
    num_bytes = int(float(sys.argv[2] if len(sys.argv) > 2 else 10) * 1e6)
    english = text_of(files_under(["/usr/share/doc"], is_english), num_bytes)
    code = text_of(files_under(["/usr/lib/python3", "/usr/lib/python3.11", "/usr/include"], is_code),
                   num_bytes)
    texts = {"english": english, "code": code,
             "both": english[:len(english) // 2] + code[:len(code) // 2]}
    for name, text in texts.items():
        (folder / f"{name}.txt").write_bytes(text)
        print(f"{name}: {len(text)} bytes, sha256 {hashlib.sha256(text).hexdigest()[:16]}")


main()

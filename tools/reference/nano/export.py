#!/usr/bin/python3
"""Writes a training checkpoint in the release format."""
import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from nano import release
from nano.model import Engram
from v41 import tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="written by train.py")
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    trained = torch.load(options.checkpoint)
    tokenizer = json.loads(options.tokenizer.read_text())
    engram = Engram(trained["config"], tokens.token_map(tokenizer))
    size = release.write(
        options.folder, trained["parameters"], trained["config"], engram, tokenizer
    )
    print(f"{options.folder}: {size} bytes of tensors")


if __name__ == "__main__":
    main()

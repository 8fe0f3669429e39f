#!/usr/bin/python3
"""nano's byte-level BPE: trains a tokenizer.json from a corpus.

No merge contains a digit, so every digit is one token. `Tokenizer` encodes and decodes; its
splitting is exact for ASCII text and the special tokens, which is all that the corpus has.
"""
import argparse
import collections
import heapq
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from v41 import tokens

VOCAB_SIZE = 4096
LAST_TOKENS = [  # the last ids of the vocabulary
    "<｜place▁holder▁no▁0｜>",
    "<｜extracted_url｜>",
    "<｜read_url｜>",
    "<｜title｜>",
    "<｜domain｜>",
    "<｜authority｜>",
    "<｜query｜>",
    "<｜action｜>",
    "<|EOT|>",
    "<｜fim▁end｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁hole｜>",
    "<｜deepseek_image｜>",
    "<｜latest_reminder｜>",
    "｜DSML｜",
    "</think>",
    "<think>",
    "<｜Assistant｜>",
    "<｜User｜>",
    "<｜System｜>",
]
FIRST_LAST_TOKEN = VOCAB_SIZE - len(LAST_TOKENS)
ADDED = [
    (tokens.BEGIN, 0),
    (tokens.END, 1),
    (tokens.PAD, 2),
    *((token, FIRST_LAST_TOKEN + i) for i, token in enumerate(LAST_TOKENS)),
]
ALPHABET = tokens.byte_alphabet()

_PUNCTUATION = r"!-/:-@\[-`{-~"
_ADDED_TOKEN = re.compile("(" + "|".join(re.escape(token) for token, _ in ADDED) + ")")
_DIGITS = re.compile(r"([0-9]{1,3})")
_WORDS = re.compile(  # tokens.SPLITS for ASCII
    rf"([{_PUNCTUATION}][A-Za-z]+|[^\r\nA-Za-z{_PUNCTUATION}]?[A-Za-z]+| ?[{_PUNCTUATION}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+)"
)
NO_RANK = 1 << 30


def segments(text):
    """(is it an added token, text) in order."""
    for i, segment in enumerate(_ADDED_TOKEN.split(text)):
        yield i % 2 == 1, segment


def pieces(text):
    """The pieces within which merges happen."""
    for i, segment in enumerate(_DIGITS.split(text)):
        if i % 2:
            yield segment
        else:
            yield from filter(None, _WORDS.split(segment))


def symbols(piece):
    return [ALPHABET[b] for b in piece.encode()]


class Tokenizer:
    def __init__(self, path):
        self.json = json.loads(Path(path).read_text())
        self._vocab = self.json["model"]["vocab"]
        merges = (tuple(merge.split(" ")) for merge in self.json["model"]["merges"])
        self._rank = {merge: rank for rank, merge in enumerate(merges)}
        self._added = {t["content"]: t["id"] for t in self.json["added_tokens"]}
        byte_of = {c: b for b, c in enumerate(ALPHABET)}
        self._bytes = {
            id: bytes(byte_of[c] for c in token)
            for token, id in self._vocab.items()
            if token not in self._added
        }
        self._bytes.update({id: token.encode() for token, id in self._added.items()})
        self._cache = {}

    def _encode_piece(self, piece):
        if piece not in self._cache:
            parts = symbols(piece)
            while len(parts) > 1:
                pairs = zip(parts, parts[1:])
                rank, i = min((self._rank.get(pair, NO_RANK), i) for i, pair in enumerate(pairs))
                if rank == NO_RANK:
                    break
                parts[i : i + 2] = [parts[i] + parts[i + 1]]
            self._cache[piece] = [self._vocab[part] for part in parts]
        return self._cache[piece]

    def encode(self, text):
        ids = []
        for is_added, segment in segments(text):
            if is_added:
                ids.append(self._added[segment])
            else:
                for piece in pieces(segment):
                    ids += self._encode_piece(piece)
        return ids

    def decode(self, ids):
        return b"".join(self._bytes[i] for i in ids).decode("utf-8", "replace")


def count_pieces(corpus):
    """Of the training part; exercises are repetitive, so they count for less than natural text."""
    count = collections.Counter()
    for file in sorted(corpus.glob("*.train.jsonl")):
        natural = file.name.split(".")[0] in ("bible", "wordnet")
        budget = 4_000_000 if natural else 500_000  # characters
        for line in open(file):
            text = json.loads(line)["text"]
            budget -= len(text)
            if budget < 0:
                break
            for is_added, segment in segments(text):
                if not is_added:
                    count.update(pieces(segment))
    return count


def merged(parts, pair):
    """`parts` with every occurrence of `pair` joined, left to right."""
    out, i = [], 0
    while i < len(parts):
        step = 2 if tuple(parts[i : i + 2]) == pair else 1
        out.append("".join(parts[i : i + step]))
        i += step
    return out


def train(corpus):
    """The tokenizer as a dictionary: the most frequent pair is merged until the ids are used up."""
    words = [
        (symbols(piece), count)
        for piece, count in count_pieces(corpus).items()
        if count > 1 and not piece.isdigit()
    ]
    pair_count, words_with = collections.Counter(), collections.defaultdict(set)
    for i, (parts, count) in enumerate(words):
        for pair in zip(parts, parts[1:]):
            pair_count[pair] += count
            words_with[pair].add(i)
    heap = [(-count, pair) for pair, count in pair_count.items()]
    heapq.heapify(heap)
    vocab = {symbol: 3 + b for b, symbol in enumerate(ALPHABET)}
    merges = []
    while len(vocab) + 3 < FIRST_LAST_TOKEN and heap:
        count, pair = heapq.heappop(heap)
        is_stale = -count != pair_count[pair] or count == 0
        if is_stale or any(c.isdigit() for c in "".join(pair)):
            continue
        vocab.setdefault("".join(pair), len(vocab) + 3)
        merges.append(" ".join(pair))
        touched = set()
        for i in list(words_with[pair]):
            parts, count = words[i]
            for old in zip(parts, parts[1:]):
                pair_count[old] -= count
                touched.add(old)
            parts = merged(parts, pair)
            words[i] = (parts, count)
            for new in zip(parts, parts[1:]):
                pair_count[new] += count
                words_with[new].add(i)
                touched.add(new)
        for changed in touched:
            if pair_count[changed] > 0:
                heapq.heappush(heap, (-pair_count[changed], changed))
    if len(vocab) + 3 != FIRST_LAST_TOKEN:
        raise SystemExit(f"the corpus gives {len(vocab)} tokens only: use a larger --scale")
    return tokens.tokenizer_json(vocab, merges, ADDED)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="folder written by corpus.py")
    parser.add_argument("out", type=Path, help="tokenizer.json")
    options = parser.parse_args()
    options.out.write_text(json.dumps(train(options.corpus), ensure_ascii=False))


if __name__ == "__main__":
    main()

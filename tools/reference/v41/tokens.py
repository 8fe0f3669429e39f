"""tokenizer.json as a file, and what Engram derives from it: token map and row addresses."""
import math
import unicodedata

import numpy as np

BEGIN, END, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"  # ids 0, 1, 2
SPLITS = [
    "\\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]
LONE_BLANK = "\ue000"  # stands for a token of blanks while the others are stripped
WHITESPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def byte_alphabet():
    """[256] the character that stands for each byte in a byte-level vocabulary."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def tokenizer_json(vocab, merges, added):
    """added: [(content, id)]. Ids 0-2 stand in `vocab` too, or common libraries renumber them."""

    def split(pattern):
        return {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        }

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": content, **flags, "special": True} for content, id in added
        ],
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*map(split, SPLITS), {**byte_level, "use_regex": False}],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {BEGIN: 0, END: 1, PAD: 2, **vocab},
            "merges": merges,
        },
    }


def _normalised(text):
    """Case, accents and runs of blanks removed: what Engram treats as the same word."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c.lower() for c in text if not unicodedata.category(c).startswith("M"))
    kept = []
    for c in text:
        blank = c in " \t\r\n"
        if not (blank and kept and kept[-1] == " "):
            kept.append(" " if blank else c)
    text = "".join(kept)
    if text == " ":
        text = LONE_BLANK
    return text.strip(WHITESPACE).replace(LONE_BLANK, " ")


def token_map(tokenizer):
    """Compressed token id of every token, numbered by first appearance."""
    byte_of = {c: b for b, c in enumerate(byte_alphabet())}
    piece = {id: token for token, id in tokenizer["model"]["vocab"].items()}
    added = {t["id"]: t["content"] for t in tokenizer["added_tokens"]}
    seen, compressed = {}, []
    for id in range(max(*piece, *added) + 1):
        if id in added:
            text = added[id]
        else:
            text = bytes(byte_of[c] for c in piece[id]).decode("utf-8", "replace")
        key = piece[id] if "\ufffd" in text else _normalised(text) or text
        compressed.append(seen.setdefault(key, len(seen)))
    return compressed


def engram_primes(config):
    """[layer][column] table sizes: distinct primes from engram_vocab_size on."""

    def is_prime(n):
        return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))

    used, primes = set(), []
    for _ in config["engram_layer_ids"]:
        columns = []
        for _ in range(2, config["engram_max_ngram_size"] + 1):
            candidate = config["engram_vocab_size"] - 1
            for _ in range(config["engram_n_heads"]):
                candidate += 1
                while candidate in used or not is_prime(candidate):
                    candidate += 1
                used.add(candidate)
                columns.append(candidate)
        primes.append(columns)
    return primes


def engram_multipliers(config, compressed_vocab_size):
    """[layer][n-gram position] odd hash multipliers."""
    bound = (np.iinfo(np.int64).max // compressed_vocab_size) // 2
    size = config["engram_max_ngram_size"]
    return [
        np.random.default_rng(10007 * layer).integers(0, bound, size=size, dtype=np.int64) * 2 + 1
        for layer in config["engram_layer_ids"]
    ]


def engram_rows(config, token_ids, compressed, image_token_id=-1):
    """[layer][T, columns] row of the Engram table for every position and column."""
    max_n, num_heads = config["engram_max_ngram_size"], config["engram_n_heads"]
    pad = compressed[config["engram_pad_token_id"]]
    mapped = [None if t == image_token_id else compressed[t] for t in token_ids]
    multipliers = engram_multipliers(config, config["engram_compressed_vocab_size"])
    tables = []
    for primes, multiplier in zip(engram_primes(config), multipliers):
        offsets = np.concatenate([[0], np.cumsum(primes)[:-1]])
        rows = np.zeros((len(token_ids), len(primes)), np.int64)
        for position in range(len(token_ids)):
            tokens, dead = [], False  # an image or the start ends the n-gram
            for back in range(max_n):
                dead = dead or position < back or mapped[position - back] is None
                tokens.append(pad if dead else mapped[position - back])
            value = tokens[0] * int(multiplier[0])
            for n in range(2, max_n + 1):
                value ^= tokens[n - 1] * int(multiplier[n - 1])
                for column in range((n - 2) * num_heads, (n - 1) * num_heads):
                    rows[position, column] = value % primes[column] + offsets[column]
        tables.append(rows)
    return tables

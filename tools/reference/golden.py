#!/usr/bin/python3
"""Toy checkpoints, and what the numpy reference computes for any checkpoint."""
import argparse
from pathlib import Path

import numpy as np

from v41 import safetensors, tokens
from v41.model import Reference
from v41.tiny import VARIANTS, write_tiny

METADATA = {"producer": "independent numpy reference, float64 accumulation"}
LENGTHS = {"short": 5, "medium": 41, "long": 150}


class TracedReference(Reference):
    """Records the input and output of every sublayer of the last forward pass."""

    def forward(self, token_ids):
        self.trace = {}
        return super().forward(token_ids)

    def record(self, name, value, dtype=np.float32):
        self.trace[name] = value.astype(dtype)

    def block(self, streams, pre, prefix, attention, ffn):
        def traced_attention(x):
            self.record(prefix + "attn.in", x)
            y = attention(x)
            self.record(prefix + "attn.out", y)
            return y

        def traced_ffn(x):
            self.record(prefix + "ffn.in", x)
            y = ffn(x)
            self.record(prefix + "ffn.out", y)
            self.record(prefix + "ffn.experts", np.sort(self.chosen_experts, 1), np.int32)
            return y

        self.record(prefix + "in.streams", streams)
        self.record(prefix + "in.pre_mix", pre)
        streams, pre = super().block(streams, pre, prefix, traced_attention, traced_ffn)
        self.record(prefix + "out.streams", streams)
        self.record(prefix + "out.pre_mix", pre)
        return streams, pre

    def compress(self, layer, *arguments):
        super().compress(layer, *arguments)
        self.record(f"layers.{layer}.attn.compressed_kv", self.compressed_kv)
        self.record(f"layers.{layer}.attn.index_keys", self.index_keys)

    def select(self, layer, *arguments):
        super().select(layer, *arguments)
        self.record(f"layers.{layer}.attn.selected_rows", self.selected, np.uint8)


def draft_tensors(reference, num_tokens, logits):
    """The draft after the greedy next token."""
    anchor = int(logits[-1].argmax())
    drafted, confidences = reference.draft(num_tokens, anchor)
    return {
        "anchor": np.array([anchor], np.int64),
        "tokens": np.array(drafted, np.int64),
        "confidence": np.array(confidences, np.float32),
    }


def prefixed(prefix, tensors):
    return {prefix + name: value for name, value in tensors.items()}


def command_tiny(options):
    size = write_tiny(options.folder, options.variant, options.seed)
    print(f"{options.folder}: variant {options.variant}, {size} bytes of tensors")


def command_vectors(options):
    """Random tokens at three lengths in both modes; the medium length with a trace."""
    out = {}
    for mode in ("fp32", "reference"):
        reference = TracedReference(options.checkpoint, mode)
        vocab = reference.config["vocab_size"]
        for name, length in LENGTHS.items():
            rng = np.random.default_rng(options.seed + length)
            token_ids = [0, *rng.integers(3, vocab - 10, length - 1).tolist()]
            logits = reference.forward(token_ids)
            prefix = f"{mode}.{name}."
            out[prefix + "token_ids"] = np.array(token_ids, np.int64)
            out[prefix + "logits"] = logits.astype(np.float32)
            if name == "medium":
                out.update(prefixed(prefix + "trace.", reference.trace))
            if name == "medium" and mode == "fp32":
                rows = tokens.engram_rows(
                    reference.config, token_ids, reference.token_map, reference.image_token_id
                )
                out["medium.engram_rows"] = np.stack(rows)
                out["token_map"] = np.array(reference.token_map, np.int32)
            # Rounding makes a random model chaotic; one draft in that mode is enough.
            if name == "medium" or mode == "fp32":
                out.update(prefixed(prefix + "draft.", draft_tensors(reference, length, logits)))
    safetensors.write(options.out, out, METADATA)
    print(f"{options.out}: {len(out)} tensors")


def command_forward(options):
    token_ids = [int(t) for t in options.token_ids.split(",")]
    reference = TracedReference(options.checkpoint, options.numerics)
    logits = reference.forward(token_ids)
    out = {"token_ids": np.array(token_ids, np.int64), "logits": logits.astype(np.float32)}
    out.update(prefixed("trace.", reference.trace))
    draft = draft_tensors(reference, len(token_ids), logits)
    out.update(prefixed("draft.", draft))
    safetensors.write(options.out, out, METADATA)
    print(f"{options.out}: {len(out)} tensors")
    print("greedy next token", draft["anchor"][0], "draft", draft["tokens"].tolist())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    tiny = commands.add_parser("tiny", help="write a toy checkpoint with random weights")
    tiny.add_argument("folder", type=Path)
    tiny.add_argument("--variant", choices=sorted(VARIANTS), default="b")
    tiny.add_argument("--seed", type=int, default=11)
    tiny.set_defaults(run=command_tiny)

    vectors = commands.add_parser("vectors", help="golden vectors for random tokens, with a trace")
    vectors.add_argument("checkpoint", type=Path)
    vectors.add_argument("out", type=Path, help="a .safetensors file")
    vectors.add_argument("--seed", type=int, default=100)
    vectors.set_defaults(run=command_vectors)

    forward = commands.add_parser("forward", help="logits, trace and draft for given tokens")
    forward.add_argument("checkpoint", type=Path)
    forward.add_argument("out", type=Path, help="a .safetensors file")
    forward.add_argument("--token-ids", required=True, metavar="0,5,7")
    forward.add_argument("--numerics", choices=("reference", "fp32"), default="reference")
    forward.set_defaults(run=command_forward)

    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()

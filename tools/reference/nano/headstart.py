#!/usr/bin/python3
"""Gives layer 0 of a training checkpoint three attention heads that look 1, 2 and 3 tokens back.

There is no bias anywhere, so attention by position has to find a constant feature first, which
costs a small run most of its budget. Channel 0 of every embedding becomes that constant; the shared
key gets constant rotary components, and heads 0 to 2 get the queries that match them.
"""
import argparse
from pathlib import Path

import numpy as np
import torch

NUM_PAIRS = 8  # rotary pairs that carry the position
AMPLITUDES = (20.0, 16.0, 10.0, 8.0, 6.0, 4.0, 3.0, 2.0)  # of each pair in the query
CONSTANT = 2.7  # channel 0 in units of the other channels' RMS
NORMED_CONSTANT = 2.6  # about what remains of it after the norm


def make_constant_channel(parameters):
    embedding = parameters["embed.weight"]
    embedding[:, 0] = 0
    embedding[:, 0] = CONSTANT * embedding.pow(2).mean(1).sqrt()
    parameters["layers.0.attn_norm.weight"][0] = 1.0


def add_heads(parameters, config):
    prefix = "layers.0.attn."
    head_dim, rope_dim = config["head_dim"], config["qk_rope_head_dim"]
    first_rotary = head_dim - rope_dim
    frequencies = config["rope_theta"] ** (-2.0 * np.arange(rope_dim // 2) / rope_dim)

    wkv = parameters[prefix + "wkv.weight"]
    wkv[:, 0] = 0
    wkv[first_rotary : first_rotary + 2 * NUM_PAIRS] = 0
    row_energy = wkv.pow(2).sum(1)
    content = row_energy[row_energy > 0].mean().sqrt()
    for pair in range(NUM_PAIRS):
        wkv[first_rotary + 2 * pair, 0] = 2.2 * content / NORMED_CONSTANT
    parameters[prefix + "kv_norm.weight"][:] = 1.0

    wq_a, wq_b = parameters[prefix + "wq_a.weight"], parameters[prefix + "wq_b.weight"]
    wq_a[0] = 0
    wq_a[:, 0] = 0
    wq_a[0, 0] = 3.0 * wq_a[1:].pow(2).sum(1).mean().sqrt() / NORMED_CONSTANT
    parameters[prefix + "q_norm.weight"][0] = 1.0
    wq_b[:, 0] = 0
    for head in range(3):
        wq_b[head * head_dim : (head + 1) * head_dim] = 0
        for pair in range(NUM_PAIRS):
            row = head * head_dim + first_rotary + 2 * pair
            angle = frequencies[pair] * (head + 1)
            wq_b[row, 0] = AMPLITUDES[pair] / 3 * np.cos(angle)
            wq_b[row + 1, 0] = -AMPLITUDES[pair] / 3 * np.sin(angle)


def renew_output(parameters):
    """What the heads wrote before means nothing now."""
    generator = torch.Generator().manual_seed(3)
    for name, gain in (("wo_a.weight", 1), ("wo_b.weight", 3)):
        weight = parameters["layers.0.attn." + name]
        noise = torch.randn(weight.shape, generator=generator)
        weight.copy_(noise * gain * weight.shape[-1] ** -0.5)
    parameters["layers.0.hc_attn_base"][4:8] = 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="checkpoint written by train.py")
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    trained = torch.load(options.before)
    make_constant_channel(trained["parameters"])
    add_heads(trained["parameters"], trained["config"])
    renew_output(trained["parameters"])
    for name in ("wkv", "wq_a", "wq_b", "wo_a", "wo_b"):
        for moment in trained["optimiser"][f"layers.0.attn.{name}.weight"]:
            moment.zero_()
    torch.save(trained, options.after)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""Checks the training model: its forward pass against the numpy reference on an exported random
checkpoint, and its gradients against finite differences."""
import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from nano import operations, release
from nano.model import CONFIG, Engram, Nano, new_parameters
from nano.tokenizer import Tokenizer
from v41 import tokens
from v41.model import Reference

ANCHOR = 200  # position of the drafts that are compared
STEP_LENGTHS = (2e-2, 4e-3, 8e-4, 1.6e-4)  # relative to the parameter
RATIO_TOLERANCE = 0.06  # between finite difference and gradient


def lively_parameters(config, engram):
    """Random parameters in which every path matters."""
    parameters = new_parameters(config, engram.sizes)
    generator = torch.Generator().manual_seed(5)
    for name, value in parameters.items():
        if name.endswith(("wo_b.weight", "w2")):
            value *= 6
        if name.endswith("_scale"):
            value += 0.5
        if name.endswith(("sink", "gate.bias")):
            value += torch.randn(value.shape, generator=generator) * 0.1
        if name.endswith("confidence_head.proj.weight"):
            value += 0.02
    return parameters


def draft_tokens(model, ids, anchor):
    """As v41.model.Reference.draft, from the torch model's draft states."""
    p, last = model.parameters, f"mtp.{model.config['num_nextn_predict_layers'] - 1}."
    states = model.draft(ids, torch.tensor([anchor]))[0, 0]
    logits = F.linear(model.norm(states, last + "norm.weight"), p["head.weight"])
    token, drafted = int(ids[0, anchor]), []
    for slot in range(len(states)):
        embedded = p[last + "markov_head.embed.weight"][token]
        token = int((logits[slot] + p[last + "markov_head.head.weight"] @ embedded).argmax())
        drafted.append(token)
    return drafted


def mean_nll(logits, ids):
    return F.cross_entropy(torch.as_tensor(np.asarray(logits))[:-1].double(), ids[1:]).item()


def check_forward(folder, config, engram):
    stored, _, _ = release.read(folder)
    generator = torch.Generator().manual_seed(6)
    ids = torch.randint(3, 4000, (1, 331), generator=generator)
    for mode in ("fp32", "reference"):
        model = Nano(config, stored, engram)
        model.use_mode(mode)
        with torch.no_grad():
            ours = model.logits(ids)
            ours_drafted = draft_tokens(model, ids, ANCHOR)
        reference = Reference(folder, mode)
        theirs = reference.forward(ids[0].tolist())
        theirs_drafted, _ = reference.draft(ANCHOR, int(ids[0, ANCHOR]))
        difference = np.abs(ours.numpy() - theirs).max(1)
        print(
            f"{mode}: logits differ by {np.median(difference):.1e} (median row),"
            f" {difference.max():.1e} (worst row) in {theirs.min():.1f} .. {theirs.max():.1f};"
            f" NLL {mean_nll(ours, ids[0]):.5f} and {mean_nll(theirs, ids[0]):.5f};"
            f" drafts {ours_drafted} and {theirs_drafted}"
        )


def part_of(name):
    """The loss that trains a parameter: no gradient leads from the indexer's loss or from the drafts
    back into the backbone."""
    if ".indexer." in name:
        return "index"
    return "draft" if name.startswith("mtp.") else "main"


class Losses:
    """The three losses of a model over one fixed random text."""

    def __init__(self, model, length=160):
        generator = torch.Generator().manual_seed(7)
        self.model, vocab = model, model.config["vocab_size"]
        self.ids = torch.randint(3, 4000, (1, length), generator=generator)
        self.target = torch.randint(0, vocab, (length,), generator=generator)
        self.weight, self.nll = torch.full((length,), 1.0 / length), torch.empty(length)
        self.anchors = torch.tensor([3, length // 2])
        last = f"mtp.{model.config['num_nextn_predict_layers'] - 1}."
        self.draft_norm = last + "norm.weight"

    def __call__(self, part):
        final = self.model.forward(self.ids, want_index_loss=part == "index")
        if part == "index":
            return self.model.index_loss
        if part == "draft":
            states = self.model.draft(self.ids, self.anchors)
            states = self.model.norm(states, self.draft_norm)
            return (states * states.sin()).mean()
        head = self.model.parameters["head.weight"]
        arguments = head, self.target, self.weight, self.nll
        return operations.HeadCrossEntropy.apply(final, *arguments)


def slope(losses, part, value, gradient, step):
    """Of the loss along the gradient, in units of the gradient's own prediction."""
    before, ends = value.data.clone(), []
    with torch.no_grad():
        for signed_step in (step, -step):
            value.data.copy_(before).add_(gradient, alpha=signed_step)
            ends.append(losses(part).double().item())
        value.data.copy_(before)
    return (ends[0] - ends[1]) / (2 * step * gradient.norm().item() ** 2)


def check_gradients(parameters, config, engram):
    """Along each parameter's own gradient. With all experts active no routing decision can flip."""
    config = dict(config, num_experts_per_tok=32, dspark_num_experts_per_tok=8)
    parameters = {name: value.clone() for name, value in parameters.items()}
    parameters["head.weight"] *= 15
    losses = Losses(Nano(config, parameters, engram))
    names = [n for n in parameters if not n.endswith("gate.bias") and not is_draft_head(n)]
    for name in names:
        parameters[name].requires_grad_(True)
    suspicious = 0
    for part in ("main", "index", "draft"):
        for value in parameters.values():
            value.grad = None
        losses(part).backward()
        for name in names:
            if part_of(name) != part:
                continue
            value, gradient = parameters[name], parameters[name].grad
            # Curvature spoils long steps and fp32 short ones; one good length is enough.
            unit = max(value.data.norm().item(), 1.0) / gradient.norm().item()
            ratios = []
            for length in STEP_LENGTHS:
                ratios.append(slope(losses, part, value, gradient, length * unit))
                if abs(ratios[-1] - 1) < RATIO_TOLERANCE:
                    break
            else:
                suspicious += 1
                shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
                print(f"{name}: finite difference / gradient = {shown}")
    print(f"gradients: {len(names)} checked, {suspicious} off by more than {RATIO_TOLERANCE:.0%}")


def is_draft_head(name):
    """Used by the drafts' loss in train.py, not by the forward pass."""
    return "markov_head" in name or "confidence_head" in name


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer(options.tokenizer).json
    engram = Engram(CONFIG, tokens.token_map(tokenizer))
    parameters = lively_parameters(CONFIG, engram)
    with tempfile.TemporaryDirectory() as folder:
        release.write(folder, parameters, CONFIG, engram, tokenizer)
        check_forward(folder, CONFIG, engram)
    check_gradients(parameters, CONFIG, engram)


if __name__ == "__main__":
    main()

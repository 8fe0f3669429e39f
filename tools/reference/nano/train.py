#!/usr/bin/python3
"""Trains nano on two CPU cores: the backbone first, then the draft stages on the frozen backbone.

Two processes share weights, gradients and optimiser state; each takes half of every batch and
updates half of the tensors. The schedule is a function of the fraction of MINUTES used, from
--start to --end: a short window first, then the real one on longer sequences, then real top-k
selection; all with fake quantisation. `main --resume` goes on from a training checkpoint or from a
model folder.

The first heads of COPYING_LAYERS are told where to look and what to say: two more losses, `find`
and `say`, at the answers' tokens that stand in the context. Without them copying over more than
the window is not found in a short run.
"""
import argparse
import json
import multiprocessing
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from nano import operations, release
from nano.model import CONFIG, COPYING_LAYERS, Engram, Nano, new_parameters
from nano.tokenizer import VOCAB_SIZE, Tokenizer
from v41 import tokens

CORPUS = """bible wordnet story recall_s recall_m recall_l recall_x recall_q recall_r recall_t copy
    arith sums chat facts ask tools json""".split()
CATEGORIES = [*CORPUS, "repeat"]  # `repeat` is made while training
NATURAL = ("bible", "wordnet", "story")  # may be cut at the end of a sequence
# Loss weight of the answers' tokens.
ANSWER_WEIGHT = dict(
    recall_s=8.0,
    recall_m=6.0,
    recall_l=8.0,
    recall_x=8.0,
    recall_q=5.0,
    recall_r=5.0,
    recall_t=5.0,
    copy=4.0,
    json=4.0,
    tools=4.0,
    arith=3.0,
    sums=4.0,
)
# Share of tokens by sequence length: long documents need long sequences, and copying from the
# context is learned first.
MIX = {
    256: dict(
        bible=0.06,
        wordnet=0.02,
        recall_s=0.05,
        recall_q=0.38,
        copy=0.05,
        arith=0.14,
        sums=0.16,
        facts=0.04,
        ask=0.03,
        json=0.05,
        repeat=0.02,
    ),
    512: dict(
        bible=0.03,
        wordnet=0.01,
        story=0.01,
        recall_q=0.03,
        recall_r=0.09,
        copy=0.14,
        arith=0.12,
        sums=0.06,
        chat=0.04,
        facts=0.02,
        ask=0.07,
        tools=0.35,
        json=0.03,
    ),
    1024: dict(
        bible=0.03,
        wordnet=0.01,
        recall_r=0.05,
        recall_t=0.16,
        copy=0.11,
        arith=0.12,
        sums=0.05,
        chat=0.04,
        facts=0.01,
        ask=0.06,
        tools=0.34,
        json=0.02,
    ),
}
DRAFT_MIX = {
    512: dict(
        bible=0.34,
        wordnet=0.04,
        story=0.08,
        recall_r=0.05,
        arith=0.03,
        chat=0.08,
        tools=0.34,
        json=0.04,
    )
}
MUON = (
    "wq_a.weight",
    "wq_b.weight",
    "wkv.weight",
    "wo_a.weight",
    "wo_b.weight",
    "wgate.weight",
    "indexer.wk.weight",
    "experts.w13",
    "experts.w2",
    "main_proj.weight",
)
ADAMW_RATE = {  # relative to --rate, by the end of the name; others 0.35
    "engram.embed.weight": 1.5,
    "markov_head.embed.weight": 1.0,
    "markov_head.head.weight": 1.0,
    "embed.weight": 1.0,
    "head.weight": 0.5,
    "_fn": 0.15,
}
ASSISTANT, USER, SYSTEM = (VOCAB_SIZE - i for i in (3, 2, 1))
MARKERS = [ASSISTANT, USER, SYSTEM, 0, 1]  # and begin, end
FIRST_TEXT_TOKEN, END_OF_TEXT_TOKENS = 3, 4076
TOKENS_PER_STEP = 512  # of one process; at least one sequence
REPEAT_LENGTH = 130  # mean tokens of a `repeat` document
SAVE_SECONDS = 150


def load_documents(corpus, tokenizer):
    """{category: [token ids]} of the training part, kept in the corpus folder for the next run."""
    cache = corpus / "tokens.train.pt"
    documents = torch.load(cache) if cache.exists() else {}
    num_kept = len(documents)
    for category in CORPUS:
        if not documents.get(category):
            texts = (json.loads(line)["text"] for line in open(corpus / f"{category}.train.jsonl"))
            documents[category] = [np.array(tokenizer.encode(t), np.int16) for t in texts]
            if not documents[category]:
                raise SystemExit(f"{category} has no training document: use a larger --scale")
    if len(documents) > num_kept:
        torch.save(documents, cache)
    return documents


class Stream:
    """Packs whole documents into sequences; only natural text is ever cut."""

    def __init__(self, documents, mix, seed, tokenizer):
        self.mix = mix
        self.result_begins = tokenizer.encode("?") + tokenizer.encode("=")
        self.result_ends = [0, 1, *tokenizer.encode("\n"), *tokenizer.encode(".\n")]
        self.documents, self.rng, self.waiting = documents, np.random.default_rng(seed), {}

    def repeated(self):
        """Only copying predicts these: a random segment said again, or key-value pairs asked again
        in another order."""
        r = self.rng

        def random_tokens(count):
            return r.integers(FIRST_TEXT_TOKEN, END_OF_TEXT_TOKENS, count)

        if r.random() < 0.4:
            pool = random_tokens(400)
        else:
            pool = np.concatenate([self.next("bible")[1:-1], self.next("json")[-40:-1]])
        if r.random() < 0.35:
            length, times = int(r.integers(16, 150)), int(r.integers(2, 4))
            parts = [r.permutation(pool)[:length]] * times
        else:
            count = int(r.integers(4, 40))
            separator = [[], random_tokens(1), random_tokens(2)][r.integers(0, 3)]
            keys = r.permutation(np.unique(pool))[:count]
            values = r.choice(pool, len(keys))
            end = [] if r.random() < 0.5 else random_tokens(1)
            pairs = [np.concatenate([[k], separator, [v], end]) for k, v in zip(keys, values)]
            parts = [pairs[i] for _ in range(3) for i in r.permutation(len(pairs))]
        return np.concatenate([[0], *parts, [1]]).astype(np.int16)

    def next(self, category):
        if category == "repeat":
            return self.repeated()
        if not self.waiting.get(category):
            order = self.rng.permutation(len(self.documents[category]))
            self.waiting[category] = order.tolist()
        return self.documents[category][self.waiting[category].pop()]

    def probabilities(self, length):
        """(categories, chance of each to be the next document)"""
        mix = self.mix[length]

        def mean_length(category):
            if category == "repeat":
                return REPEAT_LENGTH
            return np.mean([len(d) for d in self.documents[category][:200]])

        chance = np.array([share / mean_length(category) for category, share in mix.items()])
        return list(mix), chance / chance.sum()

    def next_fitting(self, categories, chance, room):
        """(category, document of at most `room` tokens); Bible text when nothing else fits."""
        for _ in range(6):
            category = categories[self.rng.choice(len(categories), p=chance)]
            document = self.next(category)
            if len(document) <= room or category in NATURAL:
                return category, document[:room]
        return "bible", self.next("bible")[:room]

    def in_result(self, x):
        """Between `?` or `=` and the end of the line."""
        place = np.arange(x.shape[1])[None]
        begin = np.maximum.accumulate(np.where(np.isin(x, self.result_begins), place, 0), 1)
        end = np.maximum.accumulate(np.where(np.isin(x, self.result_ends), place, 0), 1)
        return begin > end

    def batch(self, batch, length):
        """(ids [B, S + 1], category numbers [B, S + 1], loss weights [B, S])"""
        categories, chance = self.probabilities(length)
        ids = np.zeros((batch, length + 1), np.int64)
        labels = np.zeros((batch, length + 1), np.int8)
        for row in range(batch):
            used = 0
            while used < length + 1:
                category, document = self.next_fitting(categories, chance, length + 1 - used)
                part = slice(used, used + len(document))
                ids[row, part], labels[row, part] = document, CATEGORIES.index(category)
                used += len(document)
        x = ids[:, :-1]
        last_marker = np.where(np.isin(x, MARKERS), np.arange(length)[None], 0)
        last_marker = np.maximum.accumulate(last_marker, 1)
        in_answer = np.take_along_axis(x, last_marker, 1) == ASSISTANT
        in_answer |= self.in_result(x) & (labels[:, 1:] == CATEGORIES.index("sums"))
        answer_weight = np.array([ANSWER_WEIGHT.get(c, 1.0) for c in CATEGORIES], np.float32)
        weights = np.where(in_answer, answer_weight[labels[:, 1:]], 1.0).astype(np.float32)
        weights[x == 1] = 0  # nothing can be predicted after a document's end
        return torch.from_numpy(ids), torch.from_numpy(labels), torch.from_numpy(weights)


def word_numbers(tokenizer):
    """[V] the same number for ` red`, `red` and `"red`; -1 for what is no word."""
    words = [re.sub(r"^[ !-/:-@\[-`{-~]", "", tokenizer.decode([i])) for i in range(VOCAB_SIZE)]
    numbers = {word: i for i, word in enumerate(words) if re.fullmatch("[A-Za-z]{2,}|[0-9]", word)}
    return torch.tensor([numbers.get(word, -1) for word in words])


def said_by_user(x, following, numbers):
    """[B, S, S]: the one place of the user's last turn that holds the next token as a word, if there
    is just one: in a question `red` has a blank before it, in a tool's result a quote."""
    place = torch.arange(x.shape[1])

    def last(token):
        return torch.where(x == token, place, -1).cummax(-1).values[:, :, None]

    words, next_words = numbers[x][:, None, :], numbers[following][:, :, None]
    in_turn = (place > last(USER)) & (place < last(ASSISTANT))
    found = in_turn & (next_words >= 0) & (words == next_words)
    return found & (found.sum(-1, keepdim=True) == 1)


def copy_targets(ids, weights, numbers):
    """[B, S, S]: for each token the earlier places that hold the next token after the same two or
    three tokens, or as a word of the user's last turn, where copying from them is what is asked
    for."""
    x, following = ids[:, :-1], ids[:, 1:]
    length = x.shape[1]
    same = x[:, :, None] == x[:, None, :]  # [B, t, place]

    def shifted(by_token, by_place):
        """Is the token `by_token` before t the one `by_place` before the place?"""
        out = torch.zeros_like(same)
        out[:, by_token:, by_place:] = same[:, : length - by_token, : length - by_place]
        return out

    pairs = shifted(0, 1) & shifted(1, 2) & (following[:, :, None] == x[:, None, :])
    pairs &= torch.ones(length, length, dtype=torch.bool).tril()
    triples = pairs & shifted(2, 3)
    found = torch.where(triples.any(-1, keepdim=True), triples, pairs)
    found = torch.where(found.any(-1, keepdim=True), found, said_by_user(x, following, numbers))
    asked = (weights > 2) | (found.sum(-1) == 1)
    return found & asked[..., None]


@dataclass
class Phase:
    window: int
    lengths: list  # of sequences, in turn
    select_rows: bool
    quantise: bool
    index_loss_every: int  # steps
    copy_weight: float  # of the loss that teaches heads where to look


def main_phase(progress):
    """A short window first: then only the compressed rows can answer what was said before."""
    if progress < 0.25:
        return Phase(16, [256, 512], False, True, index_loss_every=4, copy_weight=1.0)
    if progress < 0.60:
        return Phase(64, [512, 1024], False, True, index_loss_every=1, copy_weight=0.5)
    return Phase(64, [512, 1024], True, True, index_loss_every=1, copy_weight=0.3)


DRAFT_PHASE = Phase(64, [512], select_rows=True, quantise=True, index_loss_every=0, copy_weight=0)


def main_rate(progress, step, resumed):
    warm_up = min(1, (step + 1) / (10 if resumed else 60))
    return warm_up * (1.0 if progress < 0.45 else max(0.03, 1 - (progress - 0.45) / 0.55 * 0.97))


def draft_rate(progress, step):
    return min(1, (step + 1) / 20) * max(0.03, 1 - progress)


def matrix_shape(name, weight):
    """(count, rows, columns) of the matrices that Muon treats one by one."""
    rows, columns = weight.shape[-2:]
    count = weight.numel() // (rows * columns)
    parts = 1
    if name.endswith("w13"):
        parts = 2  # w1 and w3
    elif name.endswith("engram.wkv.weight"):
        parts = 5  # four keys and the value
    return count * parts, rows // parts, columns


def relative_rate(name):
    return next((rate for end, rate in ADAMW_RATE.items() if name.endswith(end)), 0.35)


def is_trained(name, mode):
    return name.startswith("mtp.") == (mode == "draft") and not name.endswith("gate.bias")


class Shared:
    """What both processes see: parameters, each one's gradients, optimiser state, expert counts,
    the fraction of the time used."""

    def __init__(self, parameters, optimiser, mode):
        def shared(tensor):
            return tensor.share_memory_()

        self.names = [name for name in parameters if is_trained(name, mode)]
        if not optimiser or not all(name in optimiser for name in self.names):
            optimiser = {
                name: [
                    torch.zeros_like(parameters[name])
                    for _ in range(1 if name.endswith(MUON) else 2)
                ]
                for name in self.names
            }
        self.parameters = {name: shared(value) for name, value in parameters.items()}
        self.optimiser = {name: [shared(m) for m in ms] for name, ms in optimiser.items()}
        self.gradients = [
            {name: shared(torch.zeros_like(parameters[name])) for name in self.names}
            for _ in range(2)
        ]
        self.expert_counts = [
            {
                name.removesuffix("gate.bias"): shared(torch.zeros(value.numel(), dtype=torch.long))
                for name, value in parameters.items()
                if name.endswith("gate.bias")
            }
            for _ in range(2)
        ]
        self.progress = shared(torch.zeros(()))
        self.barrier = multiprocessing.get_context("fork").Barrier(2)

    def total_counts(self, prefix):
        return (self.expert_counts[0][prefix] + self.expert_counts[1][prefix]).float()

    def half_of(self, rank):
        """The names that one process updates: Muon costs about three times as much per element."""

        def cost(name):
            return self.parameters[name].numel() * (3 if name.endswith(MUON) else 1)

        load, mine = [0, 0], []
        for name in sorted(self.names, key=cost, reverse=True):
            to = 0 if load[0] <= load[1] else 1
            load[to] += cost(name)
            if to == rank:
                mine.append(name)
        return mine


class Worker:
    def __init__(self, rank, options, config, shared, engram, documents, past, tokenizer):
        torch.set_num_threads(1)
        seed = int(time.time())  # the length of a run is in minutes: no two runs are the same
        torch.manual_seed(rank + seed)
        self.rank, self.options, self.config, self.shared = rank, options, config, shared
        self.model = Nano(config, shared.parameters, engram)
        mix = DRAFT_MIX if options.mode == "draft" else MIX
        self.stream = Stream(documents, mix, 1000 * rank + seed % 1000, tokenizer)
        self.mine = shared.half_of(rank)
        self.step, self.tokens, self.past = 0, past["tokens"], past["step"]
        self.averages, self.word_numbers = {}, word_numbers(tokenizer)
        for name in shared.names:
            shared.parameters[name].requires_grad_(True)
            shared.parameters[name].grad = shared.gradients[rank][name]

    @property
    def is_draft(self):
        return self.options.mode == "draft"

    def run(self):
        start = saved = time.time()
        wait = self.shared.barrier.wait
        while True:
            wait()  # both have updated their half
            if self.rank == 0:
                used = min(1.0, (time.time() - start) / (self.options.minutes * 60))
                progress = self.options.start + (self.options.end - self.options.start) * used
                self.shared.progress.fill_(progress if used < 1 else self.options.end)
                if used >= 1 or time.time() - saved > SAVE_SECONDS:
                    saved = time.time()
                    self.save(progress)
            wait()
            progress = self.shared.progress.item()
            if progress > self.options.end - 1e-6:
                break
            loss = self.forward_backward(progress)
            wait()  # both gradients are complete
            self.update(progress)
            self.step += 1
            if self.rank == 0 and (self.step % 20 == 0 or self.step <= 3):
                self.report(progress, loss, time.time() - start)

    def forward_backward(self, progress):
        phase = DRAFT_PHASE if self.is_draft else main_phase(progress)
        length = phase.lengths[self.step % len(phase.lengths)]
        batch = max(1, TOKENS_PER_STEP // length)
        self.model.select_rows = phase.select_rows
        self.model.config["sliding_window"] = phase.window
        self.model.quantise = self.model.quantise_weights = phase.quantise
        ids, labels, weights = self.stream.batch(batch, length)
        x, target = ids[:, :-1].contiguous(), ids[:, 1:].flatten()
        for gradient in self.shared.gradients[self.rank].values():
            gradient.zero_()
        if self.is_draft:
            loss = draft_loss(self.model, x, self.averages)
            loss.backward()
        else:
            every = phase.index_loss_every
            want_index_loss = self.step % every == 0
            nll = torch.empty(batch * length)
            if phase.copy_weight:
                self.model.copy_targets, self.model.following = (
                    copy_targets(ids, weights, self.word_numbers),
                    ids[:, 1:],
                )
            final = self.model.forward(x, want_index_loss)
            weights = weights.flatten()
            head, weight = self.shared.parameters["head.weight"], 0.5 * weights / weights.sum()
            loss = operations.HeadCrossEntropy.apply(final, head, target, weight, nll)
            copying = self.model.find_loss + self.model.say_loss
            auxiliary = 0.5 * self.model.index_loss + phase.copy_weight * copying
            (loss + auxiliary).backward()
            for name, value in (("find", self.model.find_loss), ("say", self.model.say_loss)):
                value = value.item() / len(COPYING_LAYERS)
                self.averages[name] = 0.9 * self.averages.get(name, value) + 0.1 * value
            self.average_by_category(labels[:, 1:].flatten(), weights, nll)
        for prefix, counts in self.model.expert_counts.items():
            self.shared.expert_counts[self.rank][prefix][:] = counts
        self.tokens += 2 * batch * length
        return 2 * loss.item()

    def average_by_category(self, labels, weights, nll):
        """Of the exercises only the answers' tokens count."""
        least = weights[weights > 0].min()
        for number, category in enumerate(CATEGORIES):
            chosen = labels == number
            if category in ANSWER_WEIGHT:
                chosen &= weights > least * 1.2
            if chosen.any():
                mean = nll[chosen].mean().item()
                self.averages[category] = 0.9 * self.averages.get(category, mean) + 0.1 * mean

    def update(self, progress):
        shared = self.shared
        if self.is_draft:
            scale = draft_rate(progress, self.step)
        else:
            scale = main_rate(progress, self.step, self.options.resume)
        rate = self.options.rate * scale
        with torch.no_grad():
            for name in self.mine:
                weight, moments = shared.parameters[name], shared.optimiser[name]
                gradients = [shared.gradients[rank][name] for rank in range(2)]
                if name.endswith(MUON):
                    shape = matrix_shape(name, weight)
                    operations.muon_step(weight, gradients, moments[0], shape, rate)
                else:
                    step = self.past + self.step + 1
                    own_rate = rate * relative_rate(name)
                    operations.adamw_step(weight, gradients, moments, step, own_rate)
        if self.rank == 0:
            self.balance_experts(max(scale, 0.1))

    def balance_experts(self, scale):
        """Without an auxiliary loss: the bias pushes only clearly uneven experts."""
        for prefix in self.model.expert_counts:
            if prefix.startswith("mtp.") == self.is_draft:
                load = self.shared.total_counts(prefix)
                load /= load.mean()
                push = (load < 0.6).float() - (load > 1.5).float()
                self.shared.parameters[prefix + "gate.bias"] += 0.004 * scale * push

    def report(self, progress, loss, seconds):
        loads = [self.shared.total_counts(prefix) for prefix in self.model.expert_counts]
        skew = max((load.max() / load.mean()).item() for load in loads)
        averages = " ".join(f"{name} {value:.2f}" for name, value in self.averages.items())
        print(
            f"progress {progress:.3f} step {self.step} {self.tokens / 1e6:.2f}M tokens"
            f" {seconds / self.step:.2f} s/step loss {loss:.3f}"
            f" index loss {self.model.index_loss.item():.3f} skew {skew:.2f} | {averages}",
            flush=True,
        )

    def save(self, progress):
        path = self.options.checkpoint
        content = dict(
            parameters={n: v.detach().clone() for n, v in self.shared.parameters.items()},
            optimiser={n: [m.clone() for m in ms] for n, ms in self.shared.optimiser.items()},
            config=CONFIG,
            tokens=self.tokens,
            progress=progress,
            step=self.past + self.step,
        )
        partial = path.with_name(path.name + ".partial")
        torch.save(content, partial)
        partial.replace(path)


def draft_loss(model, x, averages):
    """Distils the frozen backbone: cross entropy to its argmax, KL and total variation between the
    distributions; the confidence learns one minus the total variation."""
    p, config = model.parameters, model.config
    size = config["dspark_block_size"]
    batch, length = x.shape
    num_anchors = 64
    with torch.no_grad():
        final = model.forward(x).view(batch, length, -1)
    anchors = torch.randperm(length - size - 1)[:num_anchors] + 1
    h = model.draft(x, anchors)  # [B, A, K, D]
    # Slot j predicts the token after its position and is judged by the target there.
    positions = anchors[:, None] + torch.arange(size)
    last = f"mtp.{config['num_nextn_predict_layers'] - 1}."
    with torch.no_grad():
        target_logits = F.linear(final[:, positions], p["head.weight"])  # [B, A, K, V]
        best = target_logits.argmax(-1)
        previous = x[:, positions]
        # A slot matters only while the text follows the target.
        follows = torch.ones(batch, num_anchors, size)
        follows[:, :, 1:] = 0.3 + 0.7 * (previous[:, :, 1:] == best[:, :, :-1]).float()
        weight = follows.cumprod(-1) * torch.exp(-torch.arange(size) / 4.0)
        weight = weight / weight.sum()
    embedded = F.embedding(previous, p[last + "markov_head.embed.weight"])
    logits = F.linear(model.norm(h, last + "norm.weight"), p["head.weight"])
    logits = logits + F.linear(embedded, p[last + "markov_head.head.weight"])
    distance, hit = (torch.empty(batch, num_anchors, size) for _ in range(2))
    loss = operations.DraftHead.apply(logits, target_logits, weight, distance, hit, (0.5, 0.5, 0.5))
    confidence = torch.cat([h, embedded], -1) @ p[last + "confidence_head.proj.weight"][0]
    confidence_loss = F.binary_cross_entropy_with_logits(confidence, 1 - distance, reduction="none")
    loss = loss + 0.2 * (weight * confidence_loss).sum()
    measured = {f"hit{slot}": hit[:, :, slot].mean().item() for slot in range(size)}
    measured["accepted"] = hit.cumprod(-1).sum(-1).mean().item()
    error = torch.sigmoid(confidence.detach()) - (1 - distance)
    measured["confidence error"] = error.abs().mean().item()
    for name, value in measured.items():
        averages[name] = 0.95 * averages.get(name, value) + 0.05 * value
    return 0.5 * loss


def load_past(path):
    """A training checkpoint, or a folder in the release format: the optimiser then starts anew."""
    if path.is_file():
        return torch.load(path)
    parameters, *_ = release.read(path)
    return dict(parameters=parameters, optimiser=None, tokens=0, step=0, progress=0.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("main", "draft"))
    parser.add_argument("corpus", type=Path, help="folder written by corpus.py")
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json")
    parser.add_argument("checkpoint", type=Path, help="written every few minutes and at the end")
    parser.add_argument("minutes", type=float)
    parser.add_argument(
        "--resume", type=Path, metavar="CHECKPOINT", help="or a model folder; required for draft"
    )
    parser.add_argument("--start", type=float, default=0.0, help="position in the schedule, 0 to 1")
    parser.add_argument("--end", type=float, default=1.0, help="where in the schedule to stop")
    parser.add_argument("--rate", type=float, default=5e-3, help="peak learning rate")
    options = parser.parse_args()
    if options.mode == "draft" and not options.resume:
        parser.error("draft needs --resume")
    torch.set_num_threads(1)
    tokenizer = Tokenizer(options.tokenizer)
    config = dict(CONFIG)
    engram = Engram(config, tokens.token_map(tokenizer.json))
    documents = load_documents(options.corpus, tokenizer)
    past = dict(parameters=None, optimiser=None, tokens=0, step=0)
    if options.resume:
        past = load_past(options.resume)
        print(f"resumed after {past['tokens']} tokens at progress {past['progress']:.3f}")
    else:
        past["parameters"] = new_parameters(config, engram.sizes)
    if options.mode == "draft":
        past.update(tokens=0, step=0)
    shared = Shared(past["parameters"], past["optimiser"], options.mode)

    def work(rank):
        try:
            Worker(rank, options, config, shared, engram, documents, past, tokenizer).run()
        except BaseException:
            shared.barrier.abort()  # the other process would wait for ever
            raise

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))


if __name__ == "__main__":
    main()

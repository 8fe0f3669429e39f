"""The architecture in torch, in the form that is trained.

Parameters are one dictionary under the release names, except that the experts of a layer are
stacked (`ffn.experts.w13` [E, 2I, D], `ffn.experts.w2` [E, D, I]; the shared expert likewise with
E = 1) and `wo_a` is [groups, rank, inputs].
"""
import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from nano import operations
from nano.operations import FakeQuantise, kernels, pointers
from v41 import tokens
from v41.model import rope_frequencies

CONFIG = dict(
    vocab_size=4096,
    hidden_size=128,
    moe_intermediate_size=64,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=64,
    qk_rope_head_dim=32,
    q_lora_rank=96,
    o_lora_rank=64,
    o_groups=2,
    sliding_window=64,
    compress_ratios=[0, 0, 2, 2, 1, 1, 1, 1, 0, 0],
    kv_source_layer_ids=[2, 4],
    index_source_layer_ids=[2, 4, 6],
    index_n_heads=4,
    index_head_dim=32,
    index_topk=64,
    candidate_source_layer_id=4,
    candidate_topk_blocks=64,
    candidate_block_size=4,
    n_routed_experts=32,
    num_experts_per_tok=4,
    n_shared_experts=1,
    engram_layer_ids=[1, 2],
    engram_n_heads=2,
    engram_head_dim=32,
    engram_vocab_size=16384,
    engram_max_ngram_size=4,
    engram_pad_token_id=2,
    num_nextn_predict_layers=2,
    dspark_block_size=5,
    dspark_target_layer_ids=[5, 6, 7],
    dspark_markov_rank=32,
    dspark_n_routed_experts=8,
    dspark_num_experts_per_tok=2,
    dspark_noise_token_id=4095,
    rope_theta=10000,
    compress_rope_theta=40000,
    max_position_embeddings=16384,
    rope_scaling=dict(
        rope_type="yarn",
        factor=16,
        beta_fast=32,
        beta_slow=1,
        original_max_position_embeddings=1024,
    ),
    swiglu_limit=10.0,
    rms_norm_eps=operations.NORM_EPS,
    routed_scaling_factor=1.5,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
)
COPYING_LAYERS = (5, 6)  # their first head learns to find what is copied; one for each index
NUM_SAID = 128  # copied tokens that the head is examined on in each step
INVISIBLE = -3e38  # index score of a row that may not be chosen
CERTAIN = 3e38  # of a block that must be


def rope_table(config, base, with_yarn):
    """cos and sin [positions, rope dim / 2]"""
    frequencies = rope_frequencies(config, base, with_yarn)
    positions = np.arange(config["max_position_embeddings"], dtype=np.float32)
    angle = (positions[:, None] * frequencies[None]).astype(np.float32)
    return torch.from_numpy(np.cos(angle)), torch.from_numpy(np.sin(angle))


class Engram:
    """Row numbers for batches of text without images (v41.tokens.engram_rows is the definition)."""

    def __init__(self, config, token_map):
        self.config, self.token_map = config, np.array(token_map, np.int64)
        self.primes = tokens.engram_primes(config)
        self.multipliers = tokens.engram_multipliers(config, int(self.token_map.max()) + 1)
        self.sizes = [sum(columns) for columns in self.primes]

    def rows(self, ids, index):
        """ids [B, S] -> [B * S, columns] of the Engram layer number `index`."""
        compressed = self.token_map[ids]
        pad = self.token_map[self.config["engram_pad_token_id"]]
        num_heads, max_n = self.config["engram_n_heads"], self.config["engram_max_ngram_size"]
        primes, multiplier = self.primes[index], self.multipliers[index]
        rows, offset = np.empty((*ids.shape, len(primes)), np.int64), 0
        value = compressed * multiplier[0]
        for n in range(2, max_n + 1):
            shifted = np.full_like(compressed, pad)
            shifted[:, n - 1 :] = compressed[:, : compressed.shape[1] - n + 1]
            value = value ^ (shifted * multiplier[n - 1])
            for column in range((n - 2) * num_heads, (n - 1) * num_heads):
                rows[..., column] = value % primes[column] + offset
                offset += primes[column]
        return torch.from_numpy(rows.reshape(-1, rows.shape[-1]))


class NewParameters:
    """Random parameters for training from scratch: `values` after `add_all`."""

    def __init__(self, config, seed=1):
        self.config, self.values = config, {}
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, name, *shape, std):
        self.values[name] = torch.randn(*shape, generator=self.generator) * std

    def matrix(self, name, *shape, gain=1.0):
        self.normal(name, *shape, std=gain / math.sqrt(shape[-1]))

    def ones(self, name, *shape):
        self.values[name] = torch.ones(*shape)

    def add_hyper_connection(self, prefix, first_stream):
        """Each layer starts by reading mostly one stream and leaving the streams apart."""
        self.normal(prefix + "_fn", 24, 4 * self.config["hidden_size"], std=0.02)
        base = torch.zeros(24)
        base[:4] = torch.linspace(1.5, -1.5, 4).roll(first_stream % 4)
        base[8:] = (4 * torch.eye(4)).flatten()
        self.values[prefix + "_base"] = base + torch.randn(24, generator=self.generator) * 0.1
        self.values[prefix + "_scale"] = torch.full((3,), 0.3)

    def add_attention(self, prefix, layer, ratio):
        c = self.config
        hidden, latent, head_dim = c["hidden_size"], c["q_lora_rank"], c["head_dim"]
        heads = c["num_attention_heads"] * head_dim
        groups, rank = c["o_groups"], c["o_lora_rank"]
        self.values[prefix + "attn_sink"] = torch.zeros(c["num_attention_heads"])
        self.matrix(prefix + "wq_a.weight", latent, hidden)
        self.ones(prefix + "q_norm.weight", latent)
        self.matrix(prefix + "wq_b.weight", heads, latent)
        self.matrix(prefix + "wkv.weight", head_dim, hidden)
        self.ones(prefix + "kv_norm.weight", head_dim)
        self.matrix(prefix + "wo_a.weight", groups, rank, heads // groups)
        self.matrix(prefix + "wo_b.weight", hidden, groups * rank, gain=0.1)
        if layer in c["kv_source_layer_ids"]:
            self.matrix(prefix + "compressor.wkv.weight", head_dim, hidden)
            self.ones(prefix + "compressor.norm.weight", head_dim)
            if ratio > 1:
                self.matrix(prefix + "compressor.wgate.weight", head_dim, hidden, gain=0.3)
            self.matrix(prefix + "indexer.wk.weight", c["index_head_dim"], head_dim)
            self.ones(prefix + "indexer.k_norm.weight", c["index_head_dim"])
        if layer in c["index_source_layer_ids"]:
            index_heads = c["index_n_heads"] * c["index_head_dim"]
            self.matrix(prefix + "indexer.wq_b.weight", index_heads, latent)
            self.matrix(prefix + "indexer.weights_proj.weight", c["index_n_heads"], hidden)

    def add_ffn(self, prefix, num_experts):
        hidden, inner = self.config["hidden_size"], self.config["moe_intermediate_size"]
        self.matrix(prefix + "gate.weight", num_experts, hidden, gain=0.5)
        self.values[prefix + "gate.bias"] = torch.zeros(num_experts)
        self.matrix(prefix + "experts.w13", num_experts, 2 * inner, hidden)
        self.matrix(prefix + "experts.w2", num_experts, hidden, inner, gain=0.1)
        self.matrix(prefix + "shared_experts.w13", 1, 2 * inner, hidden)
        self.matrix(prefix + "shared_experts.w2", 1, hidden, inner, gain=0.1)

    def add_engram(self, prefix, num_rows):
        c, hidden = self.config, self.config["hidden_size"]
        columns = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"]
        self.normal(prefix + "embed.weight", num_rows, c["engram_head_dim"], std=0.2)
        self.matrix(prefix + "wkv.weight", 5 * hidden, columns * c["engram_head_dim"])
        self.values[prefix + "wkv.weight"][4 * hidden :] *= 0.3  # the value, not the four keys
        self.ones(prefix + "q_weight", 4, hidden)
        self.ones(prefix + "k_weight", 4, hidden)

    def add_layer(self, prefix, num_experts, layer, ratio):
        hidden = self.config["hidden_size"]
        self.ones(prefix + "attn_norm.weight", hidden)
        self.ones(prefix + "ffn_norm.weight", hidden)
        for sublayer in ("attn", "ffn"):
            self.add_hyper_connection(f"{prefix}hc_{sublayer}", layer)
        self.add_attention(prefix + "attn.", layer, ratio)
        self.add_ffn(prefix + "ffn.", num_experts)

    def add_all(self, engram_sizes):
        c = self.config
        hidden, vocab = c["hidden_size"], c["vocab_size"]
        self.normal("embed.weight", vocab, hidden, std=0.5)
        self.normal("head.weight", vocab, hidden, std=0.02)
        self.ones("norm.weight", hidden)
        engram_rows = dict(zip(c["engram_layer_ids"], engram_sizes))
        for layer in range(c["num_hidden_layers"]):
            prefix = f"layers.{layer}."
            self.add_layer(prefix, c["n_routed_experts"], layer, c["compress_ratios"][layer])
            if layer in engram_rows:
                self.add_engram(prefix + "engram.", engram_rows[layer])
        num_stages, rank = c["num_nextn_predict_layers"], c["dspark_markov_rank"]
        for stage in range(num_stages):
            self.add_layer(f"mtp.{stage}.", c["dspark_n_routed_experts"], -1 - stage, 0)
        self.matrix("mtp.0.main_proj.weight", hidden, hidden * len(c["dspark_target_layer_ids"]))
        self.ones("mtp.0.main_norm.weight", hidden)
        last = f"mtp.{num_stages - 1}."
        self.ones(last + "norm.weight", hidden)
        self.normal(last + "markov_head.embed.weight", vocab, rank, std=0.3)
        self.normal(last + "markov_head.head.weight", vocab, rank, std=0.02)
        self.values[last + "confidence_head.proj.weight"] = torch.zeros(1, hidden + rank)


def new_parameters(config, engram_sizes, seed=1):
    new = NewParameters(config, seed)
    new.add_all(engram_sizes)
    return new.values


class Nano:
    """The forward pass. Switches:

    quantise          fake quantisation of activations and KV
    quantise_weights  fake quantisation of weights
    round_bf16        bf16 rounding points
    select_rows       real top-k selection by the indexer (otherwise every visible row)
    stable_ties       lower index wins, as specified; slower
    """

    def __init__(self, config, parameters, engram):
        self.config, self.parameters, self.engram_addresses = config, parameters, engram
        self.quantise = self.quantise_weights = self.round_bf16 = False
        self.select_rows = self.stable_ties = False
        # For training: where to find the next token [B, S, S], and which it is [B, S].
        self.copy_targets = self.following = None
        self.expert_counts = {}  # {ffn prefix: tokens per expert} of the last forward pass
        self.window_table = rope_table(config, config["rope_theta"], False)
        self.compressed_table = rope_table(config, config["compress_rope_theta"], True)

    def use_mode(self, mode):
        """`reference` or `fp32`, for stored weights: these are on the grid already."""
        self.select_rows = self.stable_ties = True
        self.quantise_weights = False
        self.quantise = self.round_bf16 = mode == "reference"

    # ---- Pieces

    def round(self, x):
        return x.bfloat16().float() if self.round_bf16 else x

    def weight(self, name, kind=None):
        """The weight as the forward pass sees it."""
        weight = self.parameters[name]
        if kind is None or not self.quantise_weights:
            return weight
        if kind == FakeQuantise.FP8_WEIGHT:
            flat = weight.reshape(-1, weight.shape[-1])
            return FakeQuantise.apply(flat, kind).view(weight.shape)
        return FakeQuantise.apply(weight, kind)

    def quantised(self, x, kind=FakeQuantise.ACTIVATION):
        return FakeQuantise.apply(x, kind) if self.quantise else x

    def linear(self, x, name):
        return self.round(F.linear(self.quantised(x), self.weight(name, FakeQuantise.FP8_WEIGHT)))

    def plain_linear(self, x, name):
        return self.round(F.linear(x, self.parameters[name]))

    def norm(self, x, name):
        return self.round(operations.Norm.apply(x, self.parameters[name]))

    def rotated(self, x, cos, sin, num_heads=1, sign=1.0):
        rope_dim = self.config["qk_rope_head_dim"]
        return self.round(operations.Rope.apply(x, cos, sin, num_heads, rope_dim, sign))

    def mixes(self, streams, prefix):
        names = (f"{prefix}_{part}" for part in ("fn", "scale", "base"))
        weights = (self.parameters[name] for name in names)
        iters, eps = self.config["hc_sinkhorn_iters"], self.config["hc_eps"]
        return operations.Mixes.apply(streams, *weights, iters, eps)

    def collapse(self, mix, streams):
        return self.round(operations.Collapse.apply(mix, streams))

    def block(self, streams, mix, prefix, attention, ffn):
        attn_mix = self.mixes(streams, prefix + "hc_attn")
        y = attention(self.norm(self.collapse(mix, streams), prefix + "attn_norm.weight"))
        streams = self.round(operations.Expand.apply(attn_mix, streams, y))
        ffn_mix = self.mixes(streams, prefix + "hc_ffn")
        y = ffn(self.norm(self.collapse(attn_mix, streams), prefix + "ffn_norm.weight"))
        return self.round(operations.Expand.apply(ffn_mix, streams, y)), ffn_mix

    def start(self, ids):
        """Streams and first mix: every stream is the embedding, the first one is read."""
        streams = F.embedding(ids.flatten(), self.parameters["embed.weight"])[:, None]
        streams = streams.expand(-1, 4, -1).contiguous()
        mix = torch.zeros(streams.shape[0], 24)
        mix[:, 0] = 1
        return streams, mix

    # ---- Experts and Engram

    def moe(self, x, prefix, num_chosen):
        c, num_tokens = self.config, x.shape[0]
        scores = torch.sqrt(F.softplus(F.linear(x, self.parameters[prefix + "gate.weight"])))
        with torch.no_grad():
            biased = scores + self.parameters[prefix + "gate.bias"]
            chosen = torch.topk(biased, num_chosen, dim=1).indices
            counts = torch.bincount(chosen.flatten(), minlength=scores.shape[1])
            self.expert_counts[prefix] = counts
            order = torch.argsort(chosen.flatten())
            offsets = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
            rows = torch.div(order, num_chosen, rounding_mode="floor")
        weight = scores.gather(1, chosen)
        weight = c["routed_scaling_factor"] * weight / (weight.sum(1, keepdim=True) + 1e-20)
        x = self.quantised(x)
        routed = weight.flatten()[order], rows, offsets
        everyone = torch.ones(num_tokens), torch.arange(num_tokens), torch.tensor([0, num_tokens])
        y = self.experts(x, prefix + "experts.", FakeQuantise.FP4_WEIGHT, *routed)
        y = y + self.experts(x, prefix + "shared_experts.", FakeQuantise.FP8_WEIGHT, *everyone)
        return self.round(y)

    def experts(self, x, prefix, kind, *routing):
        w13, w2 = self.weight(prefix + "w13", kind), self.weight(prefix + "w2", kind)
        rounding = 2 if self.round_bf16 else int(self.quantise)
        limit = self.config["swiglu_limit"]
        return operations.Experts.apply(x, w13, w2, *routing, limit, rounding)

    def engram(self, layer, streams, ids):
        width = self.config["hidden_size"]
        prefix = f"layers.{layer}.engram."
        index = self.config["engram_layer_ids"].index(layer)
        rows = self.engram_addresses.rows(ids, index)
        embedded = F.embedding(rows, self.parameters[prefix + "embed.weight"])
        embedded = embedded.view(streams.shape[0], -1)
        if self.quantise_weights:
            embedded = FakeQuantise.apply(embedded, FakeQuantise.FP8_ROWS)
        kv = self.linear(embedded, prefix + "wkv.weight")
        key, value = kv[:, : 4 * width].view(-1, 4, width), kv[:, 4 * width :]
        weight = self.parameters[prefix + "q_weight"] * self.parameters[prefix + "k_weight"]
        dot = (streams * weight * key).sum(-1)
        dot = dot * torch.rsqrt(streams.pow(2).mean(-1) + operations.NORM_EPS)
        dot = dot * torch.rsqrt(key.pow(2).mean(-1) + operations.NORM_EPS) * width**-0.5
        gate = torch.sigmoid(torch.copysign(torch.sqrt(dot.abs().clamp_min(1e-6)), dot))
        return self.round(streams + gate[..., None] * value[:, None])

    # ---- Attention

    def output_projection(self, o, prefix, cos, sin):
        groups = self.config["o_groups"]
        o = self.rotated(o, cos, sin, self.config["num_attention_heads"], sign=-1.0)
        o = o.view(o.shape[0], groups, -1)
        wo_a = self.weight(prefix + "wo_a.weight", FakeQuantise.FP8_WEIGHT)
        middle = torch.cat([F.linear(o[:, g], wo_a[g]) for g in range(groups)], 1)
        return self.linear(self.round(middle), prefix + "wo_b.weight")

    def query_latent(self, x, prefix):
        return self.norm(self.linear(x, prefix + "wq_a.weight"), prefix + "q_norm.weight")

    def window_kv(self, x, prefix, cos, sin):
        kv = self.norm(self.linear(x, prefix + "wkv.weight"), prefix + "kv_norm.weight")
        return self.quantised(self.rotated(kv, cos, sin))

    def attention(self, layer, x, batch, sequence):
        c, prefix = self.config, f"layers.{layer}.attn."
        num_heads, head_dim = c["num_attention_heads"], c["head_dim"]
        ratio = c["compress_ratios"][layer]
        table = self.compressed_table if ratio else self.window_table
        cos, sin = (t[:sequence].contiguous() for t in table)
        latent = self.query_latent(x, prefix)
        q = self.rotated(self.linear(latent, prefix + "wq_b.weight"), cos, sin, num_heads)
        window = self.window_kv(x, prefix, cos, sin)
        num_rows = sequence // ratio if ratio else 0
        if layer in c["kv_source_layer_ids"]:
            self.compress(layer, x, batch, sequence, num_rows, ratio)
        if layer in c["index_source_layer_ids"]:
            self.select(layer, x, latent, batch, sequence, num_rows, ratio)
        shared = (self.compressed, self.selected, self.probability_sums)
        compressed, selected, sums = shared if num_rows else (None, None, None)
        sink = self.parameters[prefix + "attn_sink"]
        dims = batch, sequence, num_heads, head_dim, c["sliding_window"], num_rows, ratio
        o = operations.Attention.apply(q, window, compressed, sink, selected, sums, dims)
        if self.copy_targets is not None and layer in COPYING_LAYERS:
            self.find_loss = self.find_loss + self.finding(q, window, compressed, sink)
            self.say_loss = self.say_loss + self.saying(o, prefix, cos, sin)
        last_of_source = layer + 1 in (c["num_hidden_layers"], *c["index_source_layer_ids"])
        if sums is not None and last_of_source:
            index_dims = batch, sequence, c["index_n_heads"], c["index_head_dim"], num_rows, ratio
            index_q, index_weight = self.index_query
            self.index_loss = self.index_loss + operations.IndexLoss.apply(
                index_q, self.index_keys, index_weight, sums, selected, index_dims
            )
        return self.output_projection(self.round(o), prefix, cos, sin)

    def finding(self, q, window, compressed, sink):
        """How surprised the first head is, on average, to be told to look at `copy_targets`."""
        targets = self.copy_targets
        batch, sequence, _ = targets.shape
        head_dim = self.config["head_dim"]
        q = q.view(batch, sequence, -1, head_dim)[:, :, 0] * head_dim**-0.5
        age = torch.arange(sequence)[:, None] - torch.arange(sequence)[None]
        visible = age >= 0, (age >= 0) & (age < self.config["sliding_window"])
        scores = [
            (q @ rows.view(batch, sequence, head_dim).transpose(1, 2)).masked_fill(~seen, -1e30)
            for rows, seen in zip((compressed, window), visible)
        ]
        right = [score.masked_fill(~targets, -1e30) for score in scores]
        everywhere = [*scores, sink[0].expand(batch, sequence, 1)]
        surprise = torch.cat(everywhere, -1).logsumexp(-1) - torch.cat(right, -1).logsumexp(-1)
        return surprise[targets.any(-1)].sum() / max(1, targets.any(-1).sum())

    def saying(self, o, prefix, cos, sin):
        """How surprising the next token is to the first head alone, where it should be copied."""
        places = self.copy_targets.any(-1).flatten().nonzero().flatten()
        if not len(places):
            return torch.zeros(())
        places = places[torch.randperm(len(places))[:NUM_SAID]]
        first_head = torch.zeros_like(o)
        first_head[:, : self.config["head_dim"]] = 1
        position = places % len(cos)
        y = self.output_projection(
            (o * first_head)[places], prefix, cos[position].contiguous(), sin[position].contiguous()
        )
        logits = F.linear(self.norm(y, "norm.weight"), self.parameters["head.weight"])
        surprise = F.cross_entropy(logits, self.following.flatten()[places], reduction="none")
        unsaid = surprise > 0.5  # words of the question are many and easy
        return (surprise * unsaid).sum() / max(1, unsaid.sum())

    def compress(self, layer, x, batch, sequence, num_rows, ratio):
        """Leaves `compressed` and `index_keys` for the layers after. The indexer's loss does not
        train the latent."""
        prefix = f"layers.{layer}.attn."
        wkv = self.parameters[prefix + "compressor.wkv.weight"]
        if ratio == 2:
            wgate = self.parameters[prefix + "compressor.wgate.weight"]
            pairs = x.view(batch, sequence, -1)[:, : 2 * num_rows].reshape(batch * num_rows * 2, -1)
            latent = F.linear(pairs, wkv).view(batch * num_rows, 2, -1)
            gate = F.linear(pairs, wgate).view(batch * num_rows, 2, -1)
            first = torch.sigmoid(gate[:, 0] - gate[:, 1])
            latent = self.round(first * latent[:, 0] + (1 - first) * latent[:, 1])
        else:
            latent = self.round(F.linear(x, wkv))
        latent = self.norm(latent, prefix + "compressor.norm.weight")
        cos, sin = (t[: num_rows * ratio : ratio].contiguous() for t in self.compressed_table)
        keys = self.plain_linear(latent.detach(), prefix + "indexer.wk.weight")
        keys = self.norm(keys, prefix + "indexer.k_norm.weight")
        self.index_keys = self.quantised(self.rotated(keys, cos, sin), FakeQuantise.MXFP4)
        self.compressed = self.quantised(self.rotated(latent, cos, sin), FakeQuantise.NVFP4)

    def select(self, layer, x, latent, batch, sequence, num_rows, ratio):
        """Leaves `selected`, or None where every visible row is, and `probability_sums`."""
        c, prefix = self.config, f"layers.{layer}.attn.indexer."
        num_heads, head_dim = c["index_n_heads"], c["index_head_dim"]
        self.selected = self.probability_sums = None
        has_choice = self.select_rows and num_rows > c["index_topk"]
        if not has_choice and not self.want_index_loss:
            return
        with torch.set_grad_enabled(self.want_index_loss):
            cos, sin = (t[:sequence].contiguous() for t in self.compressed_table)
            q = self.linear(latent.detach(), prefix + "wq_b.weight")
            q = self.quantised(self.rotated(q, cos, sin, num_heads), FakeQuantise.MXFP4)
            weight = self.plain_linear(x.detach(), prefix + "weights_proj.weight")
            weight = weight * (head_dim**-0.5 * num_heads**-0.5)
        self.index_query = q, weight
        if has_choice:
            with torch.no_grad():
                scores = torch.empty(batch, sequence, num_rows)
                tensors = pointers(q, self.index_keys, weight, scores)
                sizes = batch, sequence, num_heads, head_dim, num_rows, ratio
                kernels.index_scores(*tensors, *sizes)
                self.selected = self.best_rows(layer, scores, ratio)
        if self.want_index_loss:
            self.probability_sums = torch.zeros(batch, sequence, num_rows)

    def best_rows(self, layer, scores, ratio):
        """[B, S, rows] bytes; leaves `candidates` at the candidate source."""
        source = self.config["candidate_source_layer_id"]
        if layer == source:
            self.candidates = self.candidate_rows(scores, ratio)
        elif 0 <= source < layer:
            scores = scores.masked_fill(~self.candidates, INVISIBLE)
        best = self.top_k(scores, self.config["index_topk"])
        selected = torch.zeros(scores.shape, dtype=torch.uint8).scatter_(2, best, 1)
        return (selected * (scores > INVISIBLE / 2)).contiguous()

    def candidate_rows(self, scores, ratio):
        """Rows of the best blocks; the newest visible block is always among them."""
        batch, sequence, num_rows = scores.shape
        size = self.config["candidate_block_size"]
        num_blocks = -(-num_rows // size)
        padded = F.pad(scores, (0, num_blocks * size - num_rows), value=INVISIBLE)
        best = padded.view(batch, sequence, num_blocks, size).amax(-1)
        newest = torch.arange(1, sequence + 1) // ratio - 1
        exists = newest >= 0
        best[:, exists, newest[exists] // size] = CERTAIN
        blocks = self.top_k(best, min(self.config["candidate_topk_blocks"], num_blocks))
        keep = torch.zeros(best.shape, dtype=torch.bool).scatter_(2, blocks, True)
        keep &= best > INVISIBLE / 2
        return keep.repeat_interleave(size, 2)[..., :num_rows]

    def top_k(self, scores, k):
        if self.stable_ties:
            return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]
        return scores.topk(k, -1).indices

    # ---- The whole

    def forward(self, ids, want_index_loss=False):
        """ids [B, S] -> normed final states [B * S, D]. Leaves `index_loss` and `aux`."""
        c = self.config
        batch, sequence = ids.shape
        self.want_index_loss, self.index_loss, self.aux = want_index_loss, torch.zeros(()), []
        self.find_loss, self.say_loss = torch.zeros(()), torch.zeros(())
        self.compressed = self.selected = self.probability_sums = None
        streams, mix = self.start(ids)
        for layer in range(c["num_hidden_layers"]):
            prefix = f"layers.{layer}."
            if layer in c["engram_layer_ids"]:
                streams = self.engram(layer, streams, ids.numpy())
            if layer in c["dspark_target_layer_ids"]:
                self.aux.append(self.round(streams.detach().mean(1)))
            streams, mix = self.block(
                streams,
                mix,
                prefix,
                lambda x: self.attention(layer, x, batch, sequence),
                lambda x: self.moe(x, prefix + "ffn.", c["num_experts_per_tok"]),
            )
        return self.norm(self.collapse(mix, streams), "norm.weight")

    def logits(self, ids):
        return F.linear(self.forward(ids), self.parameters["head.weight"])

    def draft(self, ids, anchors):
        """Final draft states [B, A, K, D] before their norm, after a forward pass over ids [B, S].
        anchors [A]: positions, the same for every row; the token there is the anchor."""
        c = self.config
        batch, sequence = ids.shape
        num_anchors, size, window = len(anchors), c["dspark_block_size"], c["sliding_window"]
        num_heads, head_dim = c["num_attention_heads"], c["head_dim"]
        main = self.linear(torch.cat(self.aux, -1), "mtp.0.main_proj.weight")
        main = self.norm(main, "mtp.0.main_norm.weight")
        block = torch.full((batch, num_anchors, size), c["dspark_noise_token_id"])
        block[:, :, 0] = ids[:, anchors]
        positions = (anchors[:, None] + torch.arange(size)).flatten()
        context = anchors[:, None] - window + torch.arange(window)  # [A, W]
        visible = F.pad(context >= 0, (0, size), value=True)[None, :, None]
        cos, sin = (t[positions].contiguous() for t in self.window_table)
        main_cos, main_sin = (t[:sequence].contiguous() for t in self.window_table)
        streams, mix = self.start(block)
        for stage in range(c["num_nextn_predict_layers"]):
            prefix = f"mtp.{stage}.attn."

            def attention(x):
                latent = self.query_latent(x, prefix)
                q = self.rotated(self.linear(latent, prefix + "wq_b.weight"), cos, sin, num_heads)
                q = q.view(batch, num_anchors, size * num_heads, head_dim)
                past = self.window_kv(main, prefix, main_cos, main_sin)
                past = past.view(batch, sequence, head_dim)[:, context.clamp_min(0)]
                own = self.window_kv(x, prefix, cos, sin).view(batch, num_anchors, size, head_dim)
                keys = torch.cat([past, own], 2)  # [B, A, W + K, d]
                scores = (q @ keys.transpose(-1, -2) * head_dim**-0.5).masked_fill(
                    ~visible, -1e30
                )
                scores = scores.view(batch, num_anchors, size, num_heads, -1)
                sink = self.parameters[prefix + "attn_sink"].view(1, 1, 1, num_heads, 1)
                sink = sink.expand(*scores.shape[:-1], 1)
                weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
                weights = weights.reshape(batch, num_anchors, size * num_heads, -1)
                o = self.round(weights @ keys).reshape(-1, num_heads * head_dim)
                return self.output_projection(o, prefix, cos, sin)

            ffn = f"mtp.{stage}.ffn."
            streams, mix = self.block(
                streams,
                mix,
                f"mtp.{stage}.",
                attention,
                lambda x: self.moe(x, ffn, c["dspark_num_experts_per_tok"]),
            )
        return self.collapse(mix, streams).view(batch, num_anchors, size, -1)

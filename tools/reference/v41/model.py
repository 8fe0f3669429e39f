"""The forward pass, written to be compared with and not to be fast.

A whole sequence is recomputed for every question: no cache, no batching, sums in float64, the
lower index wins ties. So nothing here shares a failure mode with an engine that caches, chunks,
batches or shards. It does not define the order of additions: that is docs/numerics.md.

Modes: "reference" rounds to bf16 and quantises activations and KV as published; "fp32" uses the
stored weights and neither rounds nor quantises.

Letters in shapes: T tokens, D hidden size, H heads, d head dim, M hyper-connection streams,
K keys, C compressed rows.
"""
import math

import numpy as np

from . import formats, tokens
from .checkpoint import Checkpoint
from .formats import f32

f64 = np.float64


def rope_frequencies(config, base, with_yarn):
    """[rope dim / 2]"""
    rope_dim = config["qk_rope_head_dim"]
    k = np.arange(rope_dim // 2)
    frequencies = base ** (-2.0 * k / rope_dim)
    if with_yarn:
        yarn = config["rope_scaling"]

        def dimension(rotations):
            length = yarn["original_max_position_embeddings"]
            return rope_dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(dimension(yarn["beta_fast"])), 0)
        high = min(math.ceil(dimension(yarn["beta_slow"])), rope_dim - 1)
        ramp = np.clip((k - low) / max(high - low, 0.001), 0, 1)
        frequencies = frequencies / yarn["factor"] * ramp + frequencies * (1 - ramp)
    return frequencies.astype(f32)


def rotate(x, positions, frequencies, inverse=False):
    """x [T, ..., rope dim]: pairs (2i, 2i + 1) turn by position * frequency."""
    angle = (np.asarray(positions, f32)[:, None] * frequencies[None, :]).astype(f32)
    cos, sin = np.cos(angle).astype(f32), np.sin(angle).astype(f32)
    if inverse:
        sin = -sin
    shape = (len(positions),) + (1,) * (x.ndim - 2) + (len(frequencies),)
    cos, sin = cos.reshape(shape), sin.reshape(shape)
    a, b = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = a * cos - b * sin, a * sin + b * cos
    return out


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def top_k(scores, k):
    """[T, k] indices of the largest, best first; the lower index wins ties."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def mask_of(indices, size):
    mask = np.zeros((len(indices), size), bool)
    np.put_along_axis(mask, indices, True, 1)
    return mask


class Reference:
    """One checkpoint in one mode. `forward` leaves the inputs of `draft` behind."""

    def __init__(self, path, mode="reference"):
        if mode not in ("reference", "fp32"):
            raise ValueError(f"mode {mode}: expected reference or fp32")
        self.weights = Checkpoint(path)
        self.config = self.weights.text
        self.exact = mode == "fp32"
        self.token_map = tokens.token_map(self.weights.tokenizer)
        self.image_token_id = self.weights.config.get("image_token_id", -1)
        self.window_frequencies = rope_frequencies(self.config, self.config["rope_theta"], False)
        self.compressed_frequencies = rope_frequencies(
            self.config, self.config["compress_rope_theta"], True
        )

    # ---- Pieces

    def round(self, x):
        """A rounding point of the published model."""
        return x.astype(f32) if self.exact else formats.bf16(x)

    def quantised(self, x, fake_quantise):
        return x if self.exact else fake_quantise(x)

    def quantised_linear(self, x, name):
        """Product with an fp8 or fp4 weight: the activations are fp8, too."""
        x = self.quantised(x, formats.fake_fp8)
        return self.round(x.astype(f64) @ self.weights[name].T.astype(f64))

    def linear(self, x, name, rounded=True):
        y = x.astype(f64) @ self.weights[name].T.astype(f64)
        return self.round(y) if rounded else y.astype(f32)

    def norm(self, x, name):
        y = x.astype(f64)
        mean_square = (y * y).mean(-1, keepdims=True)
        return self.round(
            y / np.sqrt(mean_square + self.config["rms_norm_eps"]) * self.weights[name]
        )

    def rotated(self, x, positions, frequencies, inverse=False):
        """x [T, ..., d]: only the last qk_rope_head_dim values of a head turn."""
        rope_dim = self.config["qk_rope_head_dim"]
        turned = self.round(rotate(x[..., -rope_dim:], positions, frequencies, inverse))
        return np.concatenate([x[..., :-rope_dim], turned], -1)

    # ---- Hyper-connections

    def mixes(self, streams, prefix):
        """pre [T, M], post [T, M], comb [T, M, M] from the streams [T, M, D]."""
        config, m = self.config, self.config["hc_mult"]
        flat = streams.reshape(len(streams), -1).astype(f64)
        mean_square = (flat * flat).mean(-1, keepdims=True)
        mix = flat @ self.weights[prefix + "_fn"].T.astype(f64)
        mix = mix / np.sqrt(mean_square + config["rms_norm_eps"])
        scale, base = self.weights[prefix + "_scale"], self.weights[prefix + "_base"]
        eps = config["hc_eps"]
        pre = sigmoid(mix[:, :m] * scale[0] + base[:m]) + eps
        post = 2 * sigmoid(mix[:, m : 2 * m] * scale[1] + base[m : 2 * m])
        comb = (mix[:, 2 * m :] * scale[2] + base[2 * m :]).reshape(-1, m, m)
        comb = np.exp(comb - comb.max(-1, keepdims=True))
        comb = comb / comb.sum(-1, keepdims=True) + eps
        comb = comb / (comb.sum(1, keepdims=True) + eps)
        for _ in range(config["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(2, keepdims=True) + eps)
            comb = comb / (comb.sum(1, keepdims=True) + eps)
        return pre, post, comb

    def collapse(self, pre, streams):
        return self.round((pre[..., None] * streams).sum(1))

    def expand(self, y, streams, post, comb):
        return self.round(
            post[..., None] * y[:, None, :] + np.einsum("tij,tid->tjd", comb, streams)
        )

    def block(self, streams, pre, prefix, attention, ffn):
        """One layer: the mix that reads a sublayer's input was made one sublayer before."""
        attn_pre, attn_post, attn_comb = self.mixes(streams, prefix + "hc_attn")
        y = attention(self.norm(self.collapse(pre, streams), prefix + "attn_norm.weight"))
        streams = self.expand(y, streams, attn_post, attn_comb)
        ffn_pre, ffn_post, ffn_comb = self.mixes(streams, prefix + "hc_ffn")
        y = ffn(self.norm(self.collapse(attn_pre, streams), prefix + "ffn_norm.weight"))
        return self.expand(y, streams, ffn_post, ffn_comb), ffn_pre

    def start(self, token_ids):
        """Streams and first mix: every stream is the embedding, the first one is read."""
        m = self.config["hc_mult"]
        embedded = self.weights["embed.weight"][np.array(token_ids)]
        streams = np.repeat(embedded[:, None, :], m, 1).astype(f32)
        pre = np.zeros((len(token_ids), m))
        pre[:, 0] = 1
        return streams, pre

    # ---- Attention

    def queries(self, x, prefix, positions, frequencies):
        """The low-rank query latent [T, q_lora_rank] and the queries [T, H, d]."""
        num_heads, head_dim = self.config["num_attention_heads"], self.config["head_dim"]
        latent = self.quantised_linear(x, prefix + "wq_a.weight")
        latent = self.norm(latent, prefix + "q_norm.weight")
        q = self.quantised_linear(latent, prefix + "wq_b.weight")
        return latent, self.rotated(q.reshape(len(x), num_heads, head_dim), positions, frequencies)

    def window_kv(self, x, prefix, positions, frequencies):
        """[T, d]: key and value at once, shared by all heads."""
        kv = self.norm(self.quantised_linear(x, prefix + "wkv.weight"), prefix + "kv_norm.weight")
        return self.quantised(self.rotated(kv, positions, frequencies), formats.fake_fp8)

    def attend(self, q, keys, mask, sink):
        """q [T, H, d], keys [K, d], mask [T, K], sink [H] -> [T, H, d]"""
        keys = keys.astype(f64)
        scores = np.einsum("thd,kd->thk", q.astype(f64), keys) * q.shape[-1] ** -0.5
        scores = np.where(mask[:, None, :], scores, -np.inf)
        largest = np.maximum(scores.max(-1), -1e30)
        weights = np.exp(scores - largest[..., None])
        total = weights.sum(-1) + np.exp(sink[None, :] - largest)
        return self.round(np.einsum("thk,kd->thd", weights, keys) / total[..., None])

    def output_projection(self, o, prefix, positions, frequencies):
        groups, rank = self.config["o_groups"], self.config["o_lora_rank"]
        o = self.rotated(o, positions, frequencies, inverse=True).reshape(len(o), groups, -1)
        wo_a = self.weights[prefix + "wo_a.weight"].reshape(groups, rank, -1)
        if not self.exact:
            wo_a = formats.bf16(wo_a)
        middle = self.round(np.einsum("tgd,grd->tgr", o.astype(f64), wo_a.astype(f64)))
        return self.quantised_linear(middle.reshape(len(o), -1), prefix + "wo_b.weight")

    def attention(self, layer, x):
        config, positions = self.config, np.arange(len(x))
        prefix = f"layers.{layer}.attn."
        ratio = config["compress_ratios"][layer]
        frequencies = self.compressed_frequencies if ratio else self.window_frequencies
        latent, q = self.queries(x, prefix, positions, frequencies)
        distance = positions[:, None] - positions[None, :]
        keys = [self.window_kv(x, prefix, positions, frequencies)]
        mask = [(distance >= 0) & (distance < config["sliding_window"])]
        if ratio:
            if layer in config["kv_source_layer_ids"]:
                self.compress(layer, x, ratio, frequencies)
            if layer in config["index_source_layer_ids"]:
                self.select(layer, x, latent, ratio, frequencies)
            keys.append(self.compressed_kv)
            mask.append(self.selected)
        sink = self.weights[prefix + "attn_sink"]
        o = self.attend(q, np.concatenate(keys), np.concatenate(mask, 1), sink)
        return self.output_projection(o, prefix, positions, frequencies)

    def compress(self, layer, x, ratio, frequencies):
        """Leaves compressed_kv [C, d] and index_keys [C, index_head_dim] for the layers after."""
        prefix = f"layers.{layer}.attn."
        count = len(x) // ratio
        latent = self.linear(x, prefix + "compressor.wkv.weight", rounded=ratio == 1)
        if ratio > 1:
            gate = self.linear(x, prefix + "compressor.wgate.weight", rounded=False)
            groups = (count, ratio, latent.shape[-1])  # an open group leaves no row yet
            latent = latent[: count * ratio].reshape(groups)
            gate = gate[: count * ratio].reshape(groups)
            weight = np.exp(gate - gate.max(1, keepdims=True))
            latent = self.round((latent * weight / weight.sum(1, keepdims=True)).sum(1))
        latent = self.norm(latent, prefix + "compressor.norm.weight")
        positions = np.arange(count) * ratio
        keys = self.linear(latent, prefix + "indexer.wk.weight")
        keys = self.norm(keys, prefix + "indexer.k_norm.weight")
        keys = self.rotated(keys, positions, frequencies)
        self.index_keys = self.quantised(keys, formats.fake_mxfp4)
        rows = self.rotated(latent, positions, frequencies)
        self.compressed_kv = self.quantised(rows, formats.fake_nvfp4)

    def select(self, layer, x, latent, ratio, frequencies):
        """Leaves selected [T, C] and, at the candidate source, candidates [T, C]."""
        config, num_tokens = self.config, len(x)
        prefix = f"layers.{layer}.attn.indexer."
        num_heads, head_dim = config["index_n_heads"], config["index_head_dim"]
        q = self.quantised_linear(latent, prefix + "wq_b.weight")
        q = self.rotated(
            q.reshape(num_tokens, num_heads, head_dim), np.arange(num_tokens), frequencies
        )
        q = self.quantised(q, formats.fake_mxfp4)
        weight = self.linear(x, prefix + "weights_proj.weight").astype(f64)
        weight = weight * (head_dim**-0.5 * num_heads**-0.5)
        scores = np.einsum("thd,kd->thk", q.astype(f64), self.index_keys.astype(f64))
        scores = (np.maximum(scores, 0) * weight[..., None]).sum(1)
        num_rows = scores.shape[1]
        visible = (np.arange(num_tokens) + 1) // ratio
        scores = np.where(np.arange(num_rows)[None, :] < visible[:, None], scores, -np.inf)
        source = config.get("candidate_source_layer_id", -1)
        if layer == source:
            self.candidates = self.candidate_rows(scores, visible)
        elif 0 <= source < layer:
            scores = np.where(self.candidates, scores, -np.inf)
        self.selected = mask_of(top_k(scores, config["index_topk"]), num_rows) & (scores > -np.inf)

    def candidate_rows(self, scores, visible):
        """Rows of the best blocks; the newest visible block is always among them."""
        size = self.config["candidate_block_size"]
        num_tokens, num_rows = scores.shape
        num_blocks = -(-num_rows // size)
        padded = np.full((num_tokens, num_blocks * size), -np.inf)
        padded[:, :num_rows] = scores
        best = padded.reshape(num_tokens, num_blocks, size).max(-1)
        for t in range(num_tokens):
            if visible[t] > 0:
                best[t, (visible[t] - 1) // size] = np.inf
        keep = mask_of(top_k(best, self.config["candidate_topk_blocks"]), num_blocks)
        return np.repeat(keep & (best > -np.inf), size, 1)[:, :num_rows]

    # ---- Experts and Engram

    def moe(self, x, prefix, num_chosen, num_experts):
        logits = x.astype(f64) @ self.weights[prefix + "gate.weight"].T.astype(f64)
        softplus = np.where(logits > 20, logits, np.log1p(np.exp(np.minimum(logits, 20))))
        scores = np.sqrt(softplus)
        bias = self.weights[prefix + "gate.bias"][None, :]
        if prefix.startswith("layers.") and self.is_image.any():
            bias_vl = self.weights[prefix + "gate.bias_vl"][None, :]
            bias = np.where(self.is_image[:, None], bias_vl, bias)
        chosen = top_k(scores + bias, num_chosen)
        total = np.take_along_axis(scores, chosen, 1).sum(1) + 1e-20
        y = np.zeros(x.shape, f64)
        for expert in range(num_experts):
            rows = np.nonzero(chosen == expert)[0]
            if len(rows):
                weight = self.config["routed_scaling_factor"] * scores[rows, expert] / total[rows]
                y[rows] += self.expert(x[rows], f"{prefix}experts.{expert}.", weight)
        y += self.expert(x, prefix + "shared_experts.", np.ones(len(x)))
        self.chosen_experts = chosen
        return self.round(y)

    def expert(self, x, prefix, weight):
        limit = self.config["swiglu_limit"]
        gate = np.minimum(self.quantised_linear(x, prefix + "w1.weight"), limit).astype(f64)
        up = np.clip(self.quantised_linear(x, prefix + "w3.weight"), -limit, limit)
        z = self.round(weight[:, None] * gate / (1 + np.exp(-gate)) * up)
        return self.quantised_linear(z, prefix + "w2.weight")

    def engram(self, layer, streams, rows):
        config, prefix = self.config, f"layers.{layer}.engram."
        m, hidden_size = config["hc_mult"], config["hidden_size"]
        embedded = self.weights[prefix + "embed.weight"][rows].reshape(len(streams), -1)
        kv = self.quantised_linear(embedded, prefix + "wkv.weight").astype(f64)
        key, value = kv[:, : m * hidden_size].reshape(-1, m, hidden_size), kv[:, m * hidden_size :]
        eps, h = config["rms_norm_eps"], streams.astype(f64)
        q_weight, k_weight = self.weights[prefix + "q_weight"], self.weights[prefix + "k_weight"]
        dot = (h * q_weight * k_weight * key).sum(-1)
        dot = dot / np.sqrt((h**2).mean(-1) + eps) / np.sqrt((key**2).mean(-1) + eps)
        dot = dot * hidden_size**-0.5
        gate = sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(dot), 1e-6)), dot))
        gate = np.where(self.is_image[:, None], 0, gate)
        return self.round(h + gate[..., None] * value[:, None, :])

    # ---- The whole

    def forward(self, token_ids):
        """Logits [T, vocab]; `aux` is what the draft stages read."""
        config = self.config
        rows = tokens.engram_rows(config, token_ids, self.token_map, self.image_token_id)
        rows = dict(zip(config["engram_layer_ids"], rows))
        self.is_image = np.array(token_ids) == self.image_token_id
        streams, pre = self.start(token_ids)
        aux = []
        for layer in range(config["num_hidden_layers"]):
            if layer in rows:
                streams = self.engram(layer, streams, rows[layer])
            if layer in config["dspark_target_layer_ids"]:
                aux.append(self.round(streams.mean(1)))
            prefix = f"layers.{layer}."
            streams, pre = self.block(
                streams,
                pre,
                prefix,
                lambda x: self.attention(layer, x),
                lambda x: self.moe(
                    x, prefix + "ffn.", config["num_experts_per_tok"], config["n_routed_experts"]
                ),
            )
        self.aux = np.concatenate(aux, -1) if aux else None
        final = self.norm(self.collapse(pre, streams), "norm.weight")
        return final.astype(f64) @ self.weights["head.weight"].T.astype(f64)

    def draft(self, num_tokens, anchor):
        """Tokens and confidences drafted after `anchor`, which follows the `num_tokens` tokens
        that `aux` covers."""
        config, frequencies = self.config, self.window_frequencies
        size, window = config["dspark_block_size"], config["sliding_window"]
        main = self.quantised_linear(self.aux[:num_tokens], "mtp.0.main_proj.weight")
        main = self.norm(main, "mtp.0.main_norm.weight")
        positions = np.arange(num_tokens, num_tokens + size)
        streams, pre = self.start([anchor] + [config["dspark_noise_token_id"]] * (size - 1))
        for stage in range(config["num_nextn_predict_layers"]):
            prefix = f"mtp.{stage}."

            def attention(x):
                own = f"{prefix}attn."
                _, q = self.queries(x, own, positions, frequencies)
                context = self.window_kv(main, own, np.arange(num_tokens), frequencies)[-window:]
                keys = np.concatenate([context, self.window_kv(x, own, positions, frequencies)])
                everything = np.ones((size, len(keys)), bool)
                o = self.attend(q, keys, everything, self.weights[own + "attn_sink"])
                return self.output_projection(o, own, positions, frequencies)

            streams, pre = self.block(
                streams,
                pre,
                prefix,
                attention,
                lambda x: self.moe(
                    x,
                    prefix + "ffn.",
                    config["dspark_num_experts_per_tok"],
                    config["dspark_n_routed_experts"],
                ),
            )
        return self.draft_tokens(self.collapse(pre, streams), anchor)

    def draft_tokens(self, x, anchor):
        """Each slot sees the token chosen before it through the Markov head."""
        last = f"mtp.{self.config['num_nextn_predict_layers'] - 1}."
        logits = self.norm(x, last + "norm.weight").astype(f64)
        logits = logits @ self.weights["head.weight"].T.astype(f64)
        markov_embed = self.weights[last + "markov_head.embed.weight"]
        markov_head = self.weights[last + "markov_head.head.weight"].astype(f64)
        confidence_head = self.weights[last + "confidence_head.proj.weight"][0].astype(f64)
        token, drafted, confidences = anchor, [], []
        for slot in range(len(x)):
            embedded = markov_embed[token].astype(f64)
            confidences.append(
                float(sigmoid(np.concatenate([x[slot], embedded]) @ confidence_head))
            )
            token = int(np.argmax(logits[slot] + markov_head @ embedded))
            drafted.append(token)
        return drafted, confidences

"""Random checkpoints in the release format at toy sizes: every mechanism, and windows so small that
short prompts cross every boundary."""
import numpy as np

from . import tokens
from .checkpoint import CheckpointWriter

COMMON = dict(
    model_type="deepseek_v41_text",
    num_key_value_heads=1,
    hidden_act="silu",
    swiglu_limit=10.0,
    rms_norm_eps=1e-20,
    attention_bias=False,
    max_position_embeddings=4096,
    rope_theta=10000,
    rope_scaling=dict(
        rope_type="yarn", factor=0, beta_fast=32, beta_slow=1, original_max_position_embeddings=0
    ),
    n_shared_experts=1,
    scoring_func="sqrtsoftplus",
    topk_method="noaux_tc",
    norm_topk_prob=True,
    routed_scaling_factor=1.5,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    engram_max_ngram_size=4,
    engram_pad_token_id=2,
)
# yarn: factor and original length. The golden files of the tests belong to `b`.
VARIANTS = {
    "b": dict(
        sizes=dict(
            vocab_size=512,
            hidden_size=128,
            moe_intermediate_size=64,
            num_hidden_layers=8,
            num_attention_heads=4,
            head_dim=64,
            qk_rope_head_dim=16,
            q_lora_rank=64,
            o_lora_rank=32,
            o_groups=2,
            sliding_window=8,
            compress_ratios=[0, 0, 2, 2, 1, 1, 1, 1, 0, 0],
            kv_source_layer_ids=[2, 4],
            index_source_layer_ids=[2, 4, 6],
            index_n_heads=4,
            index_head_dim=32,
            index_topk=4,
            candidate_source_layer_id=4,
            candidate_topk_blocks=3,
            candidate_block_size=2,
            n_routed_experts=8,
            num_experts_per_tok=2,
            engram_layer_ids=[1, 2],
            engram_n_heads=2,
            engram_head_dim=32,
            engram_vocab_size=97,
            num_nextn_predict_layers=2,
            dspark_block_size=3,
            dspark_target_layer_ids=[5, 6, 7],
            dspark_markov_rank=32,
            dspark_n_routed_experts=4,
            dspark_num_experts_per_tok=2,
            compress_rope_theta=40000,
        ),
        yarn=(16, 32),
        num_shards=2,
    ),
    "a": dict(
        sizes=dict(
            vocab_size=768,
            hidden_size=192,
            moe_intermediate_size=96,
            num_hidden_layers=11,
            num_attention_heads=6,
            head_dim=96,
            qk_rope_head_dim=32,
            q_lora_rank=96,
            o_lora_rank=64,
            o_groups=3,
            sliding_window=12,
            compress_ratios=[0, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0, 0],
            kv_source_layer_ids=[1, 4, 6],
            index_source_layer_ids=[1, 4, 6, 8, 10],
            index_n_heads=3,
            index_head_dim=64,
            index_topk=6,
            candidate_source_layer_id=6,
            candidate_topk_blocks=3,
            candidate_block_size=4,
            n_routed_experts=12,
            num_experts_per_tok=3,
            engram_layer_ids=[1, 3],
            engram_n_heads=4,
            engram_head_dim=64,
            engram_vocab_size=211,
            num_nextn_predict_layers=3,
            dspark_block_size=5,
            dspark_target_layer_ids=[8, 9, 10],
            dspark_markov_rank=64,
            dspark_n_routed_experts=6,
            dspark_num_experts_per_tok=3,
            compress_rope_theta=160000,
        ),
        yarn=(8, 48),
        num_shards=3,
    ),
}
SPECIAL_TOKENS = [  # the last ids of the vocabulary
    "<｜deepseek_image｜>",
    "<｜latest_reminder｜>",
    "｜DSML｜",
    "</think>",
    "<think>",
    "<｜Assistant｜>",
    "<｜User｜>",
    "<｜System｜>",
]


def tiny_tokenizer(size, rng):
    """256 bytes, then merges of a few English pieces and of random ones."""
    alphabet = tokens.byte_alphabet()
    vocab, merges = {alphabet[b]: 3 + b for b in range(256)}, []
    first_special = size - len(SPECIAL_TOKENS)
    pieces = "the,The,THE,and,And, the, The,ing, ing,ed, a, A,  , and,on,\n\n,th,Th,é, é,ï".split(
        ","
    )
    for _ in range(4 * size):
        length = rng.integers(2, 4)
        pieces.append("".join(chr(rng.integers(97, 123)) for _ in range(length)))
    for piece in pieces:
        left, *rest = (alphabet[b] for b in piece.encode())
        for right in rest:
            if left + right not in vocab and len(vocab) + 3 < first_special:
                merges.append(f"{left} {right}")
                vocab[left + right] = len(vocab) + 3
            if left + right not in vocab:
                break
            left += right
    assert len(vocab) + 3 == first_special, "too few different pieces"
    added = [(tokens.BEGIN, 0), (tokens.END, 1), (tokens.PAD, 2)]
    added += [(token, first_special + i) for i, token in enumerate(SPECIAL_TOKENS)]
    return tokens.tokenizer_json(vocab, merges, added)


class RandomWeights:
    """Draws tensors in the order of the calls and hands them to a CheckpointWriter."""

    def __init__(self, seed):
        self.rng, self.writer = np.random.default_rng(seed), CheckpointWriter()

    def normal(self, shape, std, mean=0.0):
        return self.rng.standard_normal(shape) * std + mean

    def bf16(self, name, *shape, std, mean=0.0):
        self.writer.bf16(name, self.normal(shape, std, mean))

    def f32(self, name, *shape, std, mean=0.0):
        self.writer.f32(name, self.normal(shape, std, mean))

    def fp8(self, name, n, k, std):
        x = self.normal((n, k), std)
        spread = np.exp2(self.rng.integers(-2, 3, (n // 32, k // 32)))  # scales should differ
        self.writer.fp8(name, x * spread.repeat(32, 0).repeat(32, 1))

    def fp8_rows(self, name, n, k, std):
        self.writer.fp8_rows(name, self.normal((n, k), std))

    def fp4(self, name, n, k, std):
        self.writer.fp4(name, self.normal((n, k), std))


def add_attention(w, c, prefix, kv_source, index_source, ratio):
    hidden, latent = c["hidden_size"], c["q_lora_rank"]
    heads = c["num_attention_heads"] * c["head_dim"]
    outputs = c["o_groups"] * c["o_lora_rank"]
    w.f32(prefix + "attn_sink", c["num_attention_heads"], std=0.5)
    w.fp8(prefix + "wq_a.weight", latent, hidden, std=0.05)
    w.bf16(prefix + "q_norm.weight", latent, std=0.1, mean=1)
    w.fp8(prefix + "wq_b.weight", heads, latent, std=0.08)
    w.fp8(prefix + "wkv.weight", c["head_dim"], hidden, std=0.05)
    w.bf16(prefix + "kv_norm.weight", c["head_dim"], std=0.1, mean=1)
    w.fp8(prefix + "wo_a.weight", outputs, heads // c["o_groups"], std=0.05)
    w.fp8(prefix + "wo_b.weight", hidden, outputs, std=0.03)
    if kv_source:
        w.bf16(prefix + "compressor.wkv.weight", c["head_dim"], hidden, std=0.05)
        if ratio > 1:
            w.bf16(prefix + "compressor.wgate.weight", c["head_dim"], hidden, std=0.1)
        w.bf16(prefix + "compressor.norm.weight", c["head_dim"], std=0.1, mean=1)
        w.bf16(prefix + "indexer.wk.weight", c["index_head_dim"], c["head_dim"], std=0.1)
        w.bf16(prefix + "indexer.k_norm.weight", c["index_head_dim"], std=0.1, mean=1)
    if index_source:
        index_heads = c["index_n_heads"] * c["index_head_dim"]
        w.fp8(prefix + "indexer.wq_b.weight", index_heads, latent, std=0.08)
        w.bf16(prefix + "indexer.weights_proj.weight", c["index_n_heads"], hidden, std=0.1)


def add_ffn(w, c, prefix, num_experts):
    hidden, inner = c["hidden_size"], c["moe_intermediate_size"]
    w.bf16(prefix + "gate.weight", num_experts, hidden, std=0.2)
    w.f32(prefix + "gate.bias", num_experts, std=0.05)
    w.f32(prefix + "gate.bias_vl", num_experts, std=0.05)
    for expert in range(num_experts):
        w.fp4(f"{prefix}experts.{expert}.w1.weight", inner, hidden, std=0.12)
        w.fp4(f"{prefix}experts.{expert}.w3.weight", inner, hidden, std=0.12)
        w.fp4(f"{prefix}experts.{expert}.w2.weight", hidden, inner, std=0.05)
    w.fp8(prefix + "shared_experts.w1.weight", inner, hidden, std=0.06)
    w.fp8(prefix + "shared_experts.w3.weight", inner, hidden, std=0.06)
    w.fp8(prefix + "shared_experts.w2.weight", hidden, inner, std=0.03)


def add_engram(w, c, prefix, num_rows):
    m, hidden, width = c["hc_mult"], c["hidden_size"], c["engram_head_dim"]
    columns = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"]
    w.fp8_rows(prefix + "embed.weight", num_rows, width, std=0.5)
    w.fp8(prefix + "wkv.weight", hidden * (m + 1), columns * width, std=0.02)
    w.bf16(prefix + "q_weight", m, hidden, std=0.2, mean=1)
    w.bf16(prefix + "k_weight", m, hidden, std=0.2, mean=1)


def add_layer(w, c, prefix, num_experts, kv_source=False, index_source=False, ratio=0):
    m, hidden = c["hc_mult"], c["hidden_size"]
    w.bf16(prefix + "attn_norm.weight", hidden, std=0.1, mean=1)
    w.bf16(prefix + "ffn_norm.weight", hidden, std=0.1, mean=1)
    for sublayer in ("attn", "ffn"):
        w.f32(f"{prefix}hc_{sublayer}_fn", (2 + m) * m, m * hidden, std=0.05)
        w.f32(f"{prefix}hc_{sublayer}_base", (2 + m) * m, std=0.3)
        w.f32(f"{prefix}hc_{sublayer}_scale", 3, std=0.1, mean=0.7)
    add_attention(w, c, prefix + "attn.", kv_source, index_source, ratio)
    add_ffn(w, c, prefix + "ffn.", num_experts)


def add_weights(w, c):
    vocab, hidden, rank = c["vocab_size"], c["hidden_size"], c["dspark_markov_rank"]
    w.bf16("embed.weight", vocab, hidden, std=1.0)
    w.bf16("head.weight", vocab, hidden, std=0.15)
    w.bf16("norm.weight", hidden, std=0.1, mean=1)
    engram_rows = dict(zip(c["engram_layer_ids"], c["engram_num_embeddings"]))
    for layer in range(c["num_hidden_layers"]):
        prefix = f"layers.{layer}."
        add_layer(
            w,
            c,
            prefix,
            c["n_routed_experts"],
            layer in c["kv_source_layer_ids"],
            layer in c["index_source_layer_ids"],
            c["compress_ratios"][layer],
        )
        if layer in engram_rows:
            add_engram(w, c, prefix + "engram.", engram_rows[layer])
    for stage in range(c["num_nextn_predict_layers"]):
        add_layer(w, c, f"mtp.{stage}.", c["dspark_n_routed_experts"])
    last = f"mtp.{c['num_nextn_predict_layers'] - 1}."
    w.fp8("mtp.0.main_proj.weight", hidden, hidden * len(c["dspark_target_layer_ids"]), std=0.05)
    w.bf16("mtp.0.main_norm.weight", hidden, std=0.1, mean=1)
    w.bf16(last + "norm.weight", hidden, std=0.1, mean=1)
    w.bf16(last + "markov_head.embed.weight", vocab, rank, std=0.3)
    w.bf16(last + "markov_head.head.weight", vocab, rank, std=0.1)
    w.bf16(last + "confidence_head.proj.weight", 1, hidden + rank, std=0.02)


def write_tiny(path, variant, seed):
    """Writes the checkpoint and returns the bytes of its tensors."""
    spec = VARIANTS[variant]
    sizes = spec["sizes"]
    tokenizer = tiny_tokenizer(sizes["vocab_size"], np.random.default_rng(seed + 1))
    factor, original_length = spec["yarn"]
    yarn = dict(factor=factor, original_max_position_embeddings=original_length)
    config = dict(
        COMMON,
        rope_scaling=dict(COMMON["rope_scaling"], **yarn),
        engram_compressed_vocab_size=max(tokens.token_map(tokenizer)) + 1,
        dspark_noise_token_id=sizes["vocab_size"] - 1,
        tie_word_embeddings=False,
        **sizes,
    )
    config["engram_num_embeddings"] = [sum(c) for c in tokens.engram_primes(config)]
    weights = RandomWeights(seed)
    add_weights(weights, config)
    image_token_id = sizes["vocab_size"] - len(SPECIAL_TOKENS)
    return weights.writer.save(path, config, tokenizer, image_token_id, spec["num_shards"])

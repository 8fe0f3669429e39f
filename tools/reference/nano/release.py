"""Training parameters to and from a checkpoint in the release format."""
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from v41 import tokens
from v41.checkpoint import Checkpoint, CheckpointWriter

NUM_SHARDS = 2
FP8 = (
    "wq_a.weight",
    "wq_b.weight",
    "attn.wkv.weight",
    "wo_a.weight",
    "wo_b.weight",
    "engram.wkv.weight",
    "main_proj.weight",
)
FP32 = ("attn_sink", "_fn", "_base", "_scale", "gate.bias", "gate.bias_vl")


def _write_experts(writer, name, stack):
    """`....experts.w13` or `....experts.w2` -> one matrix per expert."""
    base, kind = name.rsplit(".", 1)
    is_shared = base.endswith("shared_experts")
    put = writer.fp8 if is_shared else writer.fp4
    for expert, matrix in enumerate(stack):
        prefix = base if is_shared else f"{base}.{expert}"
        if kind == "w13":
            w1, w3 = matrix.reshape(2, -1, matrix.shape[1])
            put(f"{prefix}.w1.weight", w1)
            put(f"{prefix}.w3.weight", w3)
        else:
            put(f"{prefix}.w2.weight", matrix)


def _write_parameter(writer, name, x):
    if name.endswith(("experts.w13", "experts.w2")):
        _write_experts(writer, name, x)
    elif name.endswith("engram.embed.weight"):
        writer.fp8_rows(name, x)
    elif name.endswith(FP8):
        writer.fp8(name, x.reshape(-1, x.shape[-1]))
    elif name.endswith(FP32):
        writer.f32(name, x)
        if name.endswith("gate.bias"):
            writer.f32(name + "_vl", x)
    else:
        writer.bf16(name, x)


def write(folder, parameters, config, engram, tokenizer):
    """Returns the bytes of all tensors."""
    writer = CheckpointWriter()
    for name, value in parameters.items():
        _write_parameter(writer, name, value.detach().float().numpy())
    text_config = dict(
        model_type="deepseek_v41_text",
        hidden_act="silu",
        attention_bias=False,
        scoring_func="sqrtsoftplus",
        topk_method="noaux_tc",
        norm_topk_prob=True,
        tie_word_embeddings=False,
        **config,
        engram_num_embeddings=engram.sizes,
        engram_compressed_vocab_size=int(engram.token_map.max()) + 1,
    )
    ids = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    size = writer.save(folder, text_config, tokenizer, ids["<｜deepseek_image｜>"], NUM_SHARDS)
    tokenizer_config = dict(
        add_bos_token=False,
        add_eos_token=False,
        bos_token=tokens.BEGIN,
        eos_token=tokens.END,
        pad_token=tokens.PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=config["max_position_embeddings"],
        tokenizer_class="PreTrainedTokenizerFast",
    )
    generation_config = dict(
        bos_token_id=0, eos_token_id=1, pad_token_id=2, do_sample=True, temperature=1.0, top_p=0.95
    )
    for name, value in (
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", generation_config),
    ):
        (Path(folder) / name).write_text(json.dumps(value, ensure_ascii=False, indent=2))
    return size


def read(folder):
    """(parameters, configuration, tokenizer) with the quantised values of a stored checkpoint."""
    checkpoint = Checkpoint(folder)
    config = checkpoint.text

    def tensor(name):
        return torch.from_numpy(checkpoint[name].copy())

    def stacked(prefix):
        w13 = torch.cat([tensor(prefix + "w1.weight"), tensor(prefix + "w3.weight")])
        return w13, tensor(prefix + "w2.weight")

    parameters = {}
    for name in checkpoint.names():
        if not name.endswith((".scale", "gate.bias_vl")) and "experts." not in name:
            parameters[name] = tensor(name)
            if name.endswith("wo_a.weight"):
                shape = config["o_groups"], config["o_lora_rank"], -1
                parameters[name] = parameters[name].view(shape)
    for ffn in {name.split("gate.")[0] for name in checkpoint.names() if "ffn.gate." in name}:
        is_draft = ffn.startswith("mtp")
        num_experts = config["dspark_n_routed_experts" if is_draft else "n_routed_experts"]
        routed = [stacked(f"{ffn}experts.{expert}.") for expert in range(num_experts)]
        for group, matrices in (
            ("experts.", routed),
            ("shared_experts.", [stacked(ffn + "shared_experts.")]),
        ):
            w13, w2 = zip(*matrices)
            parameters[ffn + group + "w13"] = torch.stack(w13)
            parameters[ffn + group + "w2"] = torch.stack(w2)
    return parameters, config, checkpoint.tokenizer

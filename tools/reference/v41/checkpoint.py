"""Checkpoints in the release format: shards of safetensors, an index, config.json, tokenizer.json."""
import json
from pathlib import Path

import numpy as np

from . import formats, safetensors
from .formats import f32


class Checkpoint:
    """Reads every shard of a folder; a tensor comes as fp32 with its scales applied."""

    def __init__(self, path):
        self.path = Path(path)
        self.config = json.loads((self.path / "config.json").read_text())
        self.text = self.config.get("text_config", self.config)
        self.tokenizer = json.loads((self.path / "tokenizer.json").read_text())
        self._entries = {}
        for shard in sorted(self.path.glob("*.safetensors")):
            header, base = safetensors.read_header(shard)
            self._entries.update({name: (shard, base, entry) for name, entry in header.items()})
        self._cache = {}

    def names(self):
        return self._entries.keys()

    def __getitem__(self, name):
        if name not in self._cache:
            self._cache[name] = self._load(name)
        return self._cache[name]

    def _raw(self, name):
        shard, base, entry = self._entries[name]
        return safetensors.read_bytes(shard, entry, base), entry["dtype"], entry["shape"]

    def _load(self, name):
        raw, dtype, shape = self._raw(name)
        if dtype == "F32":
            return raw.view(f32).reshape(shape)
        if dtype == "BF16":
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(f32).reshape(shape)
        if dtype == "F8_E4M3":
            weight = formats.E4M3_VALUES[raw].reshape(shape)
        elif dtype in ("I8", "U8"):  # two e2m1 codes per byte, the low nibble first
            codes = raw.reshape(shape)
            weight = np.empty((shape[0], shape[1] * 2), f32)
            weight[:, 0::2] = formats.E2M1_VALUES[codes & 15]
            weight[:, 1::2] = formats.E2M1_VALUES[codes >> 4]
        else:
            raise ValueError(f"{name}: dtype {dtype}")
        raw_scale, _, scale_shape = self._raw(name[: -len("weight")] + "scale")
        scale = np.exp2(raw_scale.astype(np.float64) - 127).reshape(scale_shape)
        rows_per_scale = 1 if scale_shape[0] == shape[0] else 32
        scale = np.repeat(scale, rows_per_scale, 0)[: weight.shape[0]]
        scale = np.repeat(scale, 32, 1)[:, : weight.shape[1]]
        return (weight * scale).astype(f32)


class CheckpointWriter:
    """Collects quantised tensors by release name; `save` writes shards, index and config."""

    def __init__(self):
        self._tensors = {}

    def _put(self, name, dtype, shape, data):
        self._tensors[name] = (dtype, shape, data.tobytes())

    def _put_scale(self, name, exponents):
        scale_name = name[: -len("weight")] + "scale"
        self._put(scale_name, "F8_E8M0", exponents.shape, (exponents + 127).astype(np.uint8))

    def f32(self, name, x):
        self._put(name, "F32", x.shape, np.ascontiguousarray(x, f32))

    def bf16(self, name, x):
        self._put(name, "BF16", x.shape, formats.bf16_bits(x))

    def fp8(self, name, x):
        """Dense matrices: one scale per 32 x 32 block."""
        n, k = x.shape
        blocks = x.astype(np.float64).reshape(n // 32, 32, k // 32, 32)
        exponents = formats.block_exponent(np.abs(blocks).max((1, 3)), 448.0)
        codes = formats.encode_e4m3(blocks / np.exp2(exponents)[:, None, :, None])
        self._put(name, "F8_E4M3", x.shape, codes)
        self._put_scale(name, exponents)

    def fp8_rows(self, name, x):
        """Embedding tables: one scale per row and 32 columns."""
        n, k = x.shape
        blocks = x.astype(np.float64).reshape(n, k // 32, 32)
        exponents = formats.block_exponent(np.abs(blocks).max(-1), 448.0)
        codes = formats.encode_e4m3(blocks / np.exp2(exponents)[..., None])
        self._put(name, "F8_E4M3", x.shape, codes)
        self._put_scale(name, exponents)

    def fp4(self, name, x):
        """Routed experts: two codes per byte, one scale per row and 32 columns."""
        n, k = x.shape
        blocks = x.astype(np.float64).reshape(n, k // 32, 32)
        exponents = formats.block_exponent(np.abs(blocks).max(-1), 6.0)
        codes = formats.encode_e2m1(blocks / np.exp2(exponents)[..., None]).reshape(n, k)
        self._put(name, "I8", (n, k // 2), codes[:, 0::2] | (codes[:, 1::2] << 4))
        self._put_scale(name, exponents)

    def _narrowness(self, name):
        return {"F32": 0, "BF16": 1}.get(self._tensors[name][0], 2)

    def save(self, path, text_config, tokenizer, image_token_id, num_shards):
        """Writes the folder and returns the bytes of all tensors."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        _write_json(path / "config.json", _config(text_config, image_token_id), indent=2)
        _write_json(path / "tokenizer.json", tokenizer, ensure_ascii=False)
        names, weight_map = sorted(self._tensors), {}
        for shard in range(num_shards):
            begin, end = (len(names) * i // num_shards for i in (shard, shard + 1))
            # Wide elements first, as the official library does: every tensor is aligned.
            ordered = sorted(names[begin:end], key=self._narrowness)
            part = {name: self._tensors[name] for name in ordered}
            file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
            safetensors.write_raw(path / file, part, {"format": "pt"})
            weight_map.update({name: file for name in part})
        total = sum(len(data) for _, _, data in self._tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(path / "model.safetensors.index.json", index, indent=0)
        return total


def _write_json(path, value, **options):
    path.write_text(json.dumps(value, **options))


def _config(text_config, image_token_id):
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": image_token_id,
        "tie_word_embeddings": False,
        "text_config": text_config,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
    }

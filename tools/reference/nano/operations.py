"""Differentiable operations of the architecture, on the C kernels of kernels.c.

Rows are tokens: T = batch * sequence. A layer's hyper-connection mixes are [T, 24]: 4 pre, 4 post,
16 comb. Everything is fp32 and contiguous.
"""
import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch

NORM_EPS = 1e-20


def _build_kernels():
    """Compiled for this very machine and kept between runs."""
    source = Path(__file__).with_name("kernels.c")
    name = f"nano_kernels_{int(source.stat().st_mtime)}.so"
    library = Path(tempfile.gettempdir()) / name
    if not library.exists():
        flags = ["-O3", "-march=native", "-shared", "-fPIC"]
        flags += ["-fno-math-errno", "-fno-trapping-math", "-fassociative-math"]
        flags += ["-fno-signed-zeros", "-ffinite-math-only"]
        partial = f"{library}.partial"
        command = ["gcc", *flags, str(source), "-o", partial, "-lopenblas", "-lm"]
        subprocess.run(command, check=True)
        Path(partial).rename(library)  # another process may be waiting for it
    loaded = ctypes.CDLL(str(library))
    for name in ("index_kl", "head_cross_entropy", "draft_head"):
        getattr(loaded, name).restype = ctypes.c_double
    return loaded


kernels = _build_kernels()
real = ctypes.c_float
long = ctypes.c_long


def pointer(tensor):
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())


def pointers(*tensors):
    return [pointer(t) for t in tensors]


class FakeQuantise(torch.autograd.Function):
    """Straight through: the forward pass sees the quantised values. Kinds as in kernels.c."""

    ACTIVATION, NVFP4, MXFP4, FP4_WEIGHT, FP8_ROWS, FP8_WEIGHT = range(6)

    @staticmethod
    def forward(ctx, x, kind):
        x = x.contiguous()
        y = torch.empty_like(x)
        if kind == FakeQuantise.FP8_WEIGHT:
            kernels.fake_fp8_weight(*pointers(x, y), x.shape[0], x.shape[1])
        else:
            kernels.fake_rows(*pointers(x, y), long(x.numel()), kind)
        return y

    @staticmethod
    def backward(ctx, g):
        return g, None


class Mixes(torch.autograd.Function):
    """Streams [T, 4, D] -> mixes [T, 24]."""

    @staticmethod
    def forward(ctx, streams, fn, scale, base, iters, eps):
        streams = streams.contiguous()
        num_rows, width = streams.shape[0], fn.shape[1]
        flat = streams.view(num_rows, width)
        rms = torch.empty(num_rows)
        kernels.row_rms(*pointers(flat, rms), num_rows, width, real(NORM_EPS))
        m = (flat @ fn.t()) * rms[:, None]
        scales = scale[[0] * 4 + [1] * 4 + [2] * 16]
        a = m * scales + base
        out = torch.empty_like(a)
        kernels.mhc_fwd(*pointers(a, out), num_rows, iters, real(eps))
        ctx.save_for_backward(flat, fn, rms, m, a, scales)
        ctx.options = iters, eps, streams.shape
        return out

    @staticmethod
    def backward(ctx, g):
        flat, fn, rms, m, a, scales = ctx.saved_tensors
        iters, eps, shape = ctx.options
        g = g.contiguous()
        da = torch.empty_like(a)
        num_rows, width = flat.shape
        kernels.mhc_bwd(*pointers(a, g, da), num_rows, iters, real(eps))
        dscales = (da * m).sum(0)
        dscale = torch.stack([dscales[:4].sum(), dscales[4:8].sum(), dscales[8:].sum()])
        dm = da * scales
        through_rms = -(dm * m).sum(1) * rms * rms / width
        dproduct = dm * rms[:, None]
        dstreams = torch.addmm(flat * through_rms[:, None], dproduct, fn)
        return dstreams.view(shape), dproduct.t() @ flat, dscale, da.sum(0), None, None


class Collapse(torch.autograd.Function):
    """Mixes and streams [T, 4, D] -> the input of a sublayer [T, D]."""

    @staticmethod
    def forward(ctx, mix, streams):
        num_rows, _, width = streams.shape
        x = torch.empty(num_rows, width)
        kernels.collapse_fwd(*pointers(mix, streams, x), num_rows, width)
        ctx.save_for_backward(mix, streams)
        return x

    @staticmethod
    def backward(ctx, g):
        mix, streams = ctx.saved_tensors
        g = g.contiguous()
        dmix, dstreams = torch.empty_like(mix), torch.empty_like(streams)
        num_rows, _, width = streams.shape
        kernels.collapse_bwd(*pointers(mix, streams, g, dmix, dstreams), num_rows, width)
        return dmix, dstreams


class Expand(torch.autograd.Function):
    """Mixes, streams and a sublayer's output [T, D] -> the next streams."""

    @staticmethod
    def forward(ctx, mix, streams, y):
        y = y.contiguous()
        out = torch.empty_like(streams)
        num_rows, _, width = streams.shape
        kernels.combine_fwd(*pointers(mix, streams, y, out), num_rows, width)
        ctx.save_for_backward(mix, streams, y)
        return out

    @staticmethod
    def backward(ctx, g):
        mix, streams, y = ctx.saved_tensors
        g = g.contiguous()
        dmix, dstreams, dy = torch.empty_like(mix), torch.empty_like(streams), torch.empty_like(y)
        num_rows, _, width = streams.shape
        kernels.combine_bwd(*pointers(mix, streams, y, g, dmix, dstreams, dy), num_rows, width)
        return dmix, dstreams, dy


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        x = x.contiguous()
        width = x.shape[-1]
        num_rows = x.numel() // width
        y, rms = torch.empty_like(x), torch.empty(num_rows)
        kernels.rmsnorm_fwd(*pointers(x, weight, y, rms), num_rows, width, real(NORM_EPS))
        ctx.save_for_backward(x, weight, rms)
        return y

    @staticmethod
    def backward(ctx, g):
        x, weight, rms = ctx.saved_tensors
        g = g.contiguous()
        width = x.shape[-1]
        dx, dweight = torch.empty_like(x), torch.empty_like(weight)
        kernels.rmsnorm_bwd(*pointers(x, weight, rms, g, dx, dweight), x.numel() // width, width)
        return dx, dweight


class Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin, num_heads, rope_dim, sign):
        """x [T, H, d] or [T, H * d]; the tables repeat every len(cos) rows."""
        x = x.contiguous()
        head_dim = x.shape[-1] // num_heads if x.dim() == 2 else x.shape[-1]
        ctx.options = cos, sin, num_heads, head_dim, rope_dim, sign
        return Rope.turn(x, *ctx.options)

    @staticmethod
    def backward(ctx, g):
        *shape, sign = ctx.options
        return Rope.turn(g.contiguous(), *shape, -sign), None, None, None, None, None

    @staticmethod
    def turn(x, cos, sin, num_heads, head_dim, rope_dim, sign):
        y = torch.empty_like(x)
        num_rows = x.numel() // (num_heads * head_dim)
        sizes = num_rows, num_heads, head_dim, rope_dim, cos.shape[0]
        kernels.rope(*pointers(x, y, cos, sin), *sizes, real(sign))
        return y


class Attention(torch.autograd.Function):
    """dims: (batch, sequence, H, d, window, compressed rows, ratio). `selected` None means every
    visible row; `probability_sums` [B, S, rows] collects what the indexer should learn."""

    @staticmethod
    def forward(ctx, q, window, compressed, sink, selected, probability_sums, dims):
        batch, sequence, num_heads, *_ = dims
        o, logsumexp = torch.empty_like(q), torch.empty(batch * sequence * num_heads)
        tensors = q, window, compressed, selected, sink, o, logsumexp, probability_sums
        kernels.attn_fwd(*pointers(*tensors), *dims)
        ctx.save_for_backward(q, window, compressed, sink, selected, o, logsumexp)
        ctx.dims = dims
        return o

    @staticmethod
    def backward(ctx, g):
        q, window, compressed, sink, selected, o, logsumexp = ctx.saved_tensors
        g = g.contiguous()
        dq, dwindow, dsink = torch.empty_like(q), torch.zeros_like(window), torch.zeros_like(sink)
        dcompressed = None if compressed is None else torch.zeros_like(compressed)
        inputs = q, window, compressed, selected, sink, o, logsumexp, g
        kernels.attn_bwd(*pointers(*inputs, dq, dwindow, dcompressed, dsink), *ctx.dims)
        return dq, dwindow, dcompressed, dsink, None, None, None


class IndexLoss(torch.autograd.Function):
    """KL between attention's own distribution over rows and the indexer's."""

    @staticmethod
    def forward(ctx, q, k, weight, target, selected, dims):
        q, k, weight = q.contiguous(), k.contiguous(), weight.contiguous()
        gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(weight)
        loss = kernels.index_kl(*pointers(q, k, weight, target, selected, *gradients), *dims)
        ctx.save_for_backward(*gradients)
        return torch.tensor(loss, dtype=torch.float32)

    @staticmethod
    def backward(ctx, g):
        return (*(t * g for t in ctx.saved_tensors), None, None, None)


class Experts(torch.autograd.Function):
    """`rows` are token numbers sorted by expert, `offsets` [E + 1] where each expert begins;
    `rounding` 0: none, 1: fp8 activations, 2: also bf16."""

    @staticmethod
    def forward(ctx, x, w13, w2, weight, rows, offsets, limit, rounding):
        x, w13, w2, weight = x.contiguous(), w13.contiguous(), w2.contiguous(), weight.contiguous()
        num_experts, width, inner = w2.shape
        h, z = torch.empty(len(rows), 2 * inner), torch.empty(len(rows), inner)
        y = torch.zeros_like(x)
        tensors = x, rows, offsets, weight, w13, w2, h, z, y
        sizes = num_experts, width, inner
        kernels.moe_fwd(*pointers(*tensors), *sizes, real(limit), rounding)
        ctx.save_for_backward(x, w13, w2, weight, rows, offsets, h, z)
        ctx.limit = limit
        return y

    @staticmethod
    def backward(ctx, g):
        x, w13, w2, weight, rows, offsets, h, z = ctx.saved_tensors
        g = g.contiguous()
        dx, dweight = torch.zeros_like(x), torch.empty_like(weight)
        dw13, dw2 = torch.empty_like(w13), torch.empty_like(w2)
        inputs = x, rows, offsets, weight, w13, w2, h, z, g
        kernels.moe_bwd(*pointers(*inputs, dx, dweight, dw13, dw2), *w2.shape, real(ctx.limit))
        return dx, dw13, dw2, dweight, None, None, None, None


class HeadCrossEntropy(torch.autograd.Function):
    """Sum of weight * NLL over rows; `nll` [T] is filled."""

    @staticmethod
    def forward(ctx, x, head, target, weight, nll):
        x = x.contiguous()
        dx, dhead = torch.empty_like(x), torch.empty_like(head)
        tensors = x, head, target, weight, dx, dhead, nll
        loss = kernels.head_cross_entropy(*pointers(*tensors), *x.shape, head.shape[0])
        ctx.save_for_backward(dx, dhead)
        return torch.tensor(loss, dtype=torch.float32)

    @staticmethod
    def backward(ctx, g):
        dx, dhead = ctx.saved_tensors
        return dx * g, dhead * g, None, None, None


class DraftHead(torch.autograd.Function):
    """Distils the draft's logits towards the target's; `distance` (total variation) and `hit` (same
    argmax) are filled. `parts` weighs cross entropy, KL and total variation."""

    @staticmethod
    def forward(ctx, logits, target_logits, weight, distance, hit, parts):
        logits, target_logits = logits.contiguous(), target_logits.contiguous()
        weight = weight.contiguous()
        gradient, vocab = torch.empty_like(logits), logits.shape[-1]
        tensors = logits, target_logits, weight, gradient, distance, hit
        num_rows = logits.numel() // vocab
        loss = kernels.draft_head(*pointers(*tensors), num_rows, vocab, *map(real, parts))
        ctx.save_for_backward(gradient)
        return torch.tensor(loss, dtype=torch.float32)

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g, None, None, None, None, None


def adamw_step(parameter, gradients, moments, step, rate, betas=(0.9, 0.98), eps=1e-9):
    """In place; `gradients` are the two processes' halves."""
    corrections = [1 / (1 - beta**step) for beta in betas]
    kernels.adamw(
        *pointers(parameter, *gradients, *moments),
        long(parameter.numel()),
        *map(real, (rate, *betas, eps, *corrections)),
    )


def muon_step(parameter, gradients, momentum, shape, rate, beta=0.95, weight_decay=0.02):
    """In place, for a stack of matrices; shape = (count, rows, columns)."""
    tensors = pointers(parameter, *gradients, momentum)
    kernels.muon(*tensors, *shape, *map(real, (rate, beta, weight_decay)))

"""Number formats: rounding onto them, their codes, and the quantisation of activations and KV."""
import numpy as np

f32 = np.float32


def bf16(x):
    """Rounds to bf16 (half to even), as fp32."""
    return (bf16_bits(x).astype(np.uint32) << 16).view(f32)


def bf16_bits(x):
    u = np.ascontiguousarray(x, dtype=f32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16).reshape(np.shape(x))


def _round_to_grid(x, min_exponent, mantissa_bits, limit):
    """Rounds half to even onto the grid of a float format without infinities; saturates."""
    x = np.clip(np.asarray(x, dtype=np.float64), -limit, limit)
    a = np.abs(x)
    e = np.floor(np.log2(np.where(a > 0, a, 1.0)))
    e = np.where(np.exp2(e) > a, e - 1, e)  # log2 may be off by one unit next to a power of two
    e = np.where(np.exp2(e + 1) <= a, e + 1, e)
    q = np.exp2(np.maximum(e, min_exponent) - mantissa_bits)
    return (np.rint(x / q) * q).astype(f32)


def e4m3(x):
    return _round_to_grid(x, -6, 3, 448.0)


def e2m1(x):
    return _round_to_grid(x, 0, 1, 6.0)


def _e4m3_value(code):
    sign, exponent, mantissa = code >> 7, (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return np.nan
    implicit_one = exponent > 0
    value = (implicit_one + mantissa / 8) * 2.0 ** (max(exponent, 1) - 7)
    return -value if sign else value


E4M3_VALUES = np.array([_e4m3_value(code) for code in range(256)], f32)
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], f32)


def encode_e4m3(x):
    x = e4m3(x)
    code = np.searchsorted(E4M3_VALUES[:127], np.abs(x))
    return (code | (np.signbit(x) << 7)).astype(np.uint8)


def encode_e2m1(x):
    x = e2m1(x)
    code = np.searchsorted(E2M1_VALUES[:8], np.abs(x))
    return (code | (np.signbit(x) << 3)).astype(np.uint8)


def ceil_log2(x):
    """The smallest integer e with 2^e >= x (x > 0), exact."""
    mantissa, exponent = np.frexp(np.asarray(x, np.float64))
    return np.where(mantissa == 0.5, exponent - 1, exponent)


def block_exponent(amax, largest):
    """Exponent of the power-of-two scale that brings a block of maximum `amax` within `largest`."""
    return ceil_log2(np.where(amax > 0, amax, largest) / largest).astype(int)


def _pow2_scale(x):
    return np.exp2(ceil_log2(x).astype(np.float64))


def fake_fp8(x):
    """Activations and window KV: blocks of 32, power-of-two scales; returns the values."""
    b = x.reshape(-1, 32)
    amax = np.maximum(np.abs(b).max(-1, keepdims=True), f32(1e-4)).astype(f32)
    scale = _pow2_scale((amax * f32(1 / 448)).astype(f32))
    return (e4m3(b / scale) * scale).astype(f32).reshape(x.shape)


def fake_nvfp4(x):
    """Compressed KV rows: blocks of 16, e4m3 scales; returns the values."""
    b = x.reshape(-1, 16).astype(np.float64)
    amax = np.maximum(np.abs(b).max(-1, keepdims=True), 6 * 2.0**-9)
    scale = e4m3((amax.astype(f32) / f32(6)).astype(f32))
    return (e2m1((b.astype(f32) / scale).astype(f32)) * scale).astype(f32).reshape(x.shape)


def fake_mxfp4(x):
    """Indexer queries and keys: blocks of 32, power-of-two scales; returns the values."""
    b = x.reshape(-1, 32).astype(np.float64)
    amax = np.maximum(np.abs(b).max(-1, keepdims=True), 6 * 2.0**-126)
    scale = _pow2_scale((amax / 6).astype(f32))
    return (e2m1(b / scale) * scale).astype(f32).reshape(x.shape)

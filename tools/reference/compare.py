#!/usr/bin/python3
"""How well two safetensors files agree, tensor by tensor.

OURS comes from `millrace forward` (--logits, --trace or --draft), GOLDEN from golden.py or
tests/golden. A tensor NAME of OURS is compared with PREFIX + NAME of GOLDEN, or PREFIX + `trace.`
or `draft.` + NAME. Columns:

  max diff  largest absolute difference
  same      fraction of equal elements (the only column for integers)
  rows      fraction of rows (last axis) whose elements all differ by at most 1e-3
  ulp       fraction of elements within one bf16 unit in the last place
  of rms    the worst element, relative to the root mean square of its golden row
  argmax    logits only: rows with the same largest element, and the largest golden margin
            (best minus second) among the rows that differ

With bounds, the exit status is 1 unless every compared tensor keeps them.
"""
import argparse
import re
import signal
import sys
from dataclasses import dataclass

import numpy as np

from v41 import safetensors

ROW_TOLERANCE = 1e-3


@dataclass
class Agreement:
    num_rows: int
    same: float  # fraction of elements
    max_diff: float = 0.0
    rows: float = 1.0
    ulp: float = 1.0
    of_rms: float = 0.0
    argmax: float = 1.0
    worst_margin: float = 0.0  # of a row whose argmax differs


def bf16_ulp(x):
    exponent = np.floor(np.log2(np.maximum(np.abs(x), 2.0**-126)))
    return np.exp2(exponent - 7)


def compare_integers(ours, golden):
    return Agreement(num_rows=len(golden), same=float(np.mean(ours == golden)))


def compare_floats(ours, golden):
    """ours, golden [rows, columns]"""
    same = (ours == golden) | (np.isnan(ours) & np.isnan(golden))
    a, b = ours.astype(np.float64), golden.astype(np.float64)
    diff = np.where(same, 0.0, np.abs(a - b))
    diff[np.isnan(diff)] = np.inf  # a number against a NaN
    rms = np.sqrt((b * b).mean(1, keepdims=True))
    return Agreement(
        num_rows=len(golden),
        same=float(same.mean()),
        max_diff=float(diff.max()),
        rows=float((diff.max(1) <= ROW_TOLERANCE).mean()),
        ulp=float((diff <= bf16_ulp(np.maximum(np.abs(a), np.abs(b)))).mean()),
        of_rms=float(np.where(diff > 0, diff / np.maximum(rms, 1e-30), 0).max()),
    )


def compare_argmax(ours, golden, agreement):
    best = np.sort(golden, 1)[:, -2:]
    margin = best[:, 1] - best[:, 0]
    differs = ours.argmax(1) != golden.argmax(1)
    agreement.argmax = float(1 - differs.mean())
    agreement.worst_margin = float(margin[differs].max(initial=0.0))


def compare(name, ours, golden):
    if ours.shape != golden.shape:
        raise SystemExit(f"{name}: shape {ours.shape}, golden {golden.shape}")
    if golden.size == 0:
        return Agreement(num_rows=0, same=1.0)
    width = golden.shape[-1] if golden.ndim else 1
    ours, golden = ours.reshape(-1, width), golden.reshape(-1, width)
    if golden.dtype.kind != "f":
        return compare_integers(ours, golden)
    agreement = compare_floats(ours, golden)
    if name.endswith("logits") and width > 1:
        compare_argmax(ours, golden, agreement)
    return agreement


def pairs(ours, golden, prefix, only):
    """(name in OURS, name in GOLDEN), in the order of OURS."""
    for name in ours:
        if re.search(only, name):
            for middle in ("", "trace.", "draft."):
                if prefix + middle + name in golden:
                    yield name, prefix + middle + name
                    break


def broken_bounds(agreement, is_float, options):
    a = agreement
    bounds = [("same", a.same, options.same)]
    if is_float:
        bounds += [("rows", a.rows, options.rows), ("ulp", a.ulp, options.ulp)]
    broken = [f"{n} {v:.4f} < {limit}" for n, v, limit in bounds if limit and v < limit]
    if options.of_rms is not None and a.of_rms > options.of_rms:
        broken.append(f"of rms {a.of_rms:.3g} > {options.of_rms}")
    if options.margin is not None and a.worst_margin >= options.margin:
        broken.append(f"argmax differs at margin {a.worst_margin:.3g} >= {options.margin}")
    return broken


def describe(name, a, is_float):
    line = f"{name:44} {a.num_rows:6} {a.same:8.4f}"
    if is_float:
        line += f" {a.max_diff:9.2e} {a.rows:7.4f} {a.ulp:7.4f} {a.of_rms:9.2e}"
    if name.endswith("logits"):
        line += f"  argmax {a.argmax:.4f}"
        if a.argmax < 1:
            line += f", worst margin {a.worst_margin:.3g}"
    return line


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ours")
    parser.add_argument("golden")
    parser.add_argument("--prefix", default="", help="of the golden names, e.g. fp32.medium.")
    parser.add_argument("--only", default="", metavar="REGEX", help="compare only these of OURS")
    bounds = parser.add_argument_group("bounds")
    bounds.add_argument("--same", type=float, metavar="FRACTION")
    bounds.add_argument("--rows", type=float, metavar="FRACTION")
    bounds.add_argument("--ulp", type=float, metavar="FRACTION")
    bounds.add_argument("--of-rms", type=float, metavar="LIMIT")
    bounds.add_argument(
        "--margin", type=float, metavar="NATS", help="argmax may differ only below this margin"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `compare.py ... | head` ends quietly

    ours, golden = safetensors.read(options.ours), safetensors.read(options.golden)
    compared, failures = 0, []
    print(
        f"{'tensor':44} {'#rows':>6} {'same':>8} {'max diff':>9} {'rows':>7} {'ulp':>7} {'of rms':>9}"
    )
    for name, golden_name in pairs(ours, golden, options.prefix, options.only):
        is_float = golden[golden_name].dtype.kind == "f"
        agreement = compare(name, ours[name], golden[golden_name])
        print(describe(name, agreement, is_float))
        failures += [f"{name}: {text}" for text in broken_bounds(agreement, is_float, options)]
        compared += 1
    if not compared:
        raise SystemExit(f"no tensor of {options.ours} stands in {options.golden}")
    for failure in failures:
        print("OUTSIDE", failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()

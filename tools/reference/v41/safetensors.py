"""The safetensors container: plain tensors as numpy arrays, and writing of any tensors."""
import json
import struct

import numpy as np

NUMPY_TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def read_header(path):
    """({name: {dtype, shape, data_offsets}}, offset of the data) of one file."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return header, 8 + size


def read_bytes(path, entry, base):
    begin, end = entry["data_offsets"]
    with open(path, "rb") as file:
        file.seek(base + begin)
        return np.frombuffer(file.read(end - begin), np.uint8)


def read(path):
    """{name: array} of a file of plain tensors."""
    header, base = read_header(path)
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] not in NUMPY_TYPES:
            raise ValueError(f"{path}: {name} has dtype {entry['dtype']}, which is not a plain one")
        data = read_bytes(path, entry, base).view(NUMPY_TYPES[entry["dtype"]])
        tensors[name] = data.reshape(entry["shape"])
    return tensors


def write(path, tensors, metadata):
    """tensors: {name: array}."""
    names = {np.dtype(t): name for name, t in NUMPY_TYPES.items()}
    write_raw(
        path, {n: (names[a.dtype], a.shape, a.tobytes()) for n, a in tensors.items()}, metadata
    )


def write_raw(path, tensors, metadata):
    """tensors: {name: (dtype, shape, bytes)}."""
    header, offset = {"__metadata__": metadata}, 0
    for name, (dtype, shape, data) in tensors.items():
        end = offset + len(data)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)

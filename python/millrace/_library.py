"""include/millrace.h in ctypes: structs, functions, errors, and where the library is."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32
from ctypes import c_uint64, c_void_p
from pathlib import Path
from typing import List, Tuple, Union

OK, TIMED_OUT, END = 0, 1, 2
INVALID_ARGUMENT, EXHAUSTED = -1, -4
ADD_BOS, TRUSTED_TEXT = 1, 2
SKIP_SPECIAL_TOKENS = 1
REPLY_NONE = 0
FINISH_ERROR = 6
PART_REASONING, PART_CONTENT, PART_TOOL_CALL, PART_ARGUMENTS = range(4)


class Exhausted(RuntimeError):
    """A limit was reached: too many requests, or no more memory."""


class Text(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t)]

    def bytes(self) -> bytes:
        return ctypes.string_at(self.data, self.size) if self.size else b""

    def __str__(self) -> str:
        return self.bytes().decode("utf-8", "replace")


class TokenIds(ctypes.Structure):
    _fields_ = [("data", POINTER(c_int32)), ("size", c_size_t)]


class EngineOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("numerics", c_int32),
        ("model_dir", c_char_p),
        ("isa", c_char_p),
        ("num_threads", c_int32),
        ("reserved", c_int32),
        ("prefill_chunk", c_int64),
        ("max_model_len", c_int64),
        ("max_num_seqs", c_int64),
        ("max_num_batched_tokens", c_int64),
        ("max_waiting", c_int64),
        ("kv_bytes", c_int64),
        ("max_step_ms", c_double),
        ("on_progress", c_void_p),
        ("progress_data", c_void_p),
        ("expert_cache_bytes", c_int64),
    ]


class EngineInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("num_threads", c_int32),
        ("numerics_id", Text),
        ("isa", Text),
        ("vocab_size", c_int64),
        ("max_model_len", c_int64),
        ("max_num_seqs", c_int64),
        ("kv_bytes", c_int64),
        ("mapped_bytes", c_int64),
        ("copied_bytes", c_int64),
        ("bos_token_id", c_int32),
        ("reserved", c_int32),
    ]


class LogitBias(ctypes.Structure):
    _fields_ = [("token_id", c_int32), ("bias", c_double)]


class SamplingParams(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("include_stop_str_in_output", c_int32),
        ("skip_special_tokens", c_int32),
        ("ignore_eos", c_int32),
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("top_k", c_int64),
        ("presence_penalty", c_double),
        ("frequency_penalty", c_double),
        ("repetition_penalty", c_double),
        ("seed", POINTER(c_uint64)),
        ("max_tokens", POINTER(c_int64)),
        ("logprobs", POINTER(c_int64)),
        ("prompt_logprobs", POINTER(c_int64)),
        ("min_tokens", c_int64),
        ("stop", POINTER(Text)),
        ("num_stop", c_size_t),
        ("bad_words", POINTER(Text)),
        ("num_bad_words", c_size_t),
        ("bad_words_token_ids", POINTER(TokenIds)),
        ("num_bad_words_token_ids", c_size_t),
        ("logit_bias", POINTER(LogitBias)),
        ("num_logit_bias", c_size_t),
        ("stop_token_ids", TokenIds),
        ("allowed_token_ids", TokenIds),
    ]


class RequestOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("text_flags", c_uint32),
        ("text", Text),
        ("chat_json", Text),
        ("token_ids", TokenIds),
        ("reply_start", c_int32),
        ("num_choices", c_int32),
        ("sampling", POINTER(SamplingParams)),
        ("priority", c_int32),
        ("reserved", c_int32),
        ("timeout_ms", c_double),
        ("fairness_key", Text),
        ("request_id", Text),
        ("on_event", c_void_p),
        ("event_data", c_void_p),
    ]


class RequestInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("num_choices", c_int32),
        ("seed", c_uint64),
        ("num_prompt_tokens", c_int64),
        ("reply_start", c_int32),
        ("reserved", c_int32),
    ]


class Logprob(ctypes.Structure):
    _fields_ = [("token_id", c_int32), ("logprob", c_float), ("rank", c_int64)]


class TokenLogprobs(ctypes.Structure):
    _fields_ = [("token", Logprob), ("top", POINTER(Logprob)), ("num_top", c_size_t)]


class ReplyPart(ctypes.Structure):
    _fields_ = [("kind", c_int32), ("call_idx", c_int32), ("text", Text)]


class Event(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("choice_idx", c_int32),
        ("token_id", c_int32),
        ("finish_reason", c_int32),
        ("num_computed_tokens", c_int64),
        ("text", Text),
        ("parts", POINTER(ReplyPart)),
        ("num_parts", c_size_t),
        ("logprobs", POINTER(TokenLogprobs)),
        ("prompt_logprobs", POINTER(TokenLogprobs)),
        ("num_prompt_logprobs", c_size_t),
        ("stop_string", Text),
        ("stop_token_id", c_int32),
        ("error_status", c_int32),
        ("error", Text),
    ]


# Of those that return a status: handles are void*, and so are pointers to them.
_STATUS_FUNCTIONS = {
    "engine_options_init": [POINTER(EngineOptions), c_size_t],
    "engine_create": [POINTER(EngineOptions), POINTER(c_void_p)],
    "engine_destroy": [c_void_p],
    "engine_info_init": [POINTER(EngineInfo), c_size_t],
    "get_engine_info": [c_void_p, POINTER(EngineInfo)],
    "tokenize": [c_void_p, Text, c_uint32, POINTER(c_int32), c_size_t, POINTER(c_size_t)],
    "detokenize": [c_void_p, TokenIds, c_uint32, c_void_p, c_size_t, POINTER(c_size_t)],
    "token_bytes": [c_void_p, c_int32, POINTER(Text)],
    "encode_chat": [
        c_void_p, Text, POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(c_int32),
    ],
    "sampling_params_init": [POINTER(SamplingParams), c_size_t],
    "default_sampling_params": [c_void_p, POINTER(SamplingParams)],
    "request_options_init": [POINTER(RequestOptions), c_size_t],
    "submit": [c_void_p, POINTER(RequestOptions), POINTER(c_void_p)],
    "cancel": [c_void_p],
    "request_destroy": [c_void_p],
    "request_info_init": [POINTER(RequestInfo), c_size_t],
    "get_request_info": [c_void_p, POINTER(RequestInfo)],
    "event_init": [POINTER(Event), c_size_t],
    "next_event": [c_void_p, c_int64, POINTER(Event)],
}


def _candidates() -> List[str]:
    named = os.environ.get("MILLRACE_LIBRARY")
    if named:
        return [named]
    package = Path(__file__).resolve().parent
    files = [
        package / "libmillrace.so.0",
        package / "libmillrace.so",
        package.parents[1] / "build" / "libmillrace.so",
    ]
    if package.parent.name == "dist-packages":  # PREFIX/lib/python3/dist-packages/millrace
        files.append(package.parents[2] / "libmillrace.so.0")
    found = [str(file) for file in files if file.exists()]
    return found + ["libmillrace.so.0"]  # the system's


@functools.lru_cache(maxsize=None)
def load() -> ctypes.CDLL:
    """Loaded once, when it is first needed: that starts no threads."""
    errors = []
    for candidate in _candidates():
        try:
            loaded = ctypes.CDLL(candidate)
            break
        except OSError as error:
            errors.append(str(error))
    else:
        raise RuntimeError(
            "libmillrace.so: not found (%s); build it with `ninja -C build millrace_shared`, or"
            " name it with MILLRACE_LIBRARY" % "; ".join(errors)
        )
    for name, arguments in _STATUS_FUNCTIONS.items():
        function = getattr(loaded, "millrace_" + name)
        function.argtypes, function.restype = arguments, c_int32
    loaded.millrace_last_error.argtypes = loaded.millrace_version.argtypes = []
    loaded.millrace_last_error.restype = loaded.millrace_version.restype = c_char_p
    loaded.millrace_finish_reason_name.argtypes = [c_int32]
    loaded.millrace_finish_reason_name.restype = c_char_p
    return loaded


def error(status: int, text: str) -> Exception:
    if status == INVALID_ARGUMENT:
        return ValueError(text)
    return Exhausted(text) if status == EXHAUSTED else RuntimeError(text)


def check(status: int) -> int:
    if status >= 0:
        return status
    raise error(status, load().millrace_last_error().decode("utf-8", "replace"))


def initialised(struct: type, name: str):
    value = struct()
    init = getattr(load(), "millrace_%s_init" % name)
    check(init(ctypes.byref(value), ctypes.sizeof(struct)))
    return value


def text(value: Union[str, bytes]) -> Tuple[Text, bytes]:
    """The text, and the bytes that it points into: keep them."""
    data = value.encode("utf-8") if isinstance(value, str) else value
    return Text(ctypes.cast(c_char_p(data), c_void_p), len(data)), data


def token_ids(ids: List[int]) -> TokenIds:
    """Checks nothing; ctypes keeps the array alive as long as the struct."""
    return TokenIds((c_int32 * len(ids))(*ids), len(ids))

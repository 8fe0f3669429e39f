"""How tokens are chosen, and when to stop."""

from __future__ import annotations

import ctypes
import operator
from dataclasses import dataclass, fields
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from millrace import _library

_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (-(2**63), 2**63 - 1)


def _refuse(name: str, found: Any, expected: str) -> ValueError:
    return ValueError("%s: found %r, expected %s" % (name, found, expected))


def check_number(name: str, value: Any) -> float:
    if isinstance(value, (bool, str, bytes)):
        raise _refuse(name, value, "a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise _refuse(name, value, "a number") from None


def check_integer(name: str, value: Any, low: int, high: int) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise _refuse(name, value, "an integer from %d to %d" % (low, high))
    return number


def check_token_ids(name: str, ids: Any) -> List[int]:
    if isinstance(ids, (str, bytes, dict)):
        raise _refuse(name, ids, "a list of token ids")
    try:
        ids = list(ids)
    except TypeError:
        raise _refuse(name, ids, "a list of token ids") from None
    return [check_integer(name, one, *_INT32) for one in ids]


def _check_texts(name: str, texts: Any) -> List[str]:
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, (list, tuple)) or not all(isinstance(one, str) for one in texts):
        raise _refuse(name, texts, "a string or a list of strings")
    return list(texts)


@dataclass
class SamplingParams:
    """Names, meanings and defaults are those of vLLM; docs/sampling.md says what each one does.

    Types are checked here, values by the library when they are used.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0  # 0: the likeliest token, always
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: off
    min_p: float = 0.0
    seed: Optional[int] = None  # None: one is drawn; RequestOutput.seed reports it
    stop: Union[None, str, Sequence[str]] = None
    stop_token_ids: Optional[Sequence[int]] = None
    bad_words: Optional[Sequence[str]] = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: Optional[int] = 16  # None: as many as the context holds
    min_tokens: int = 0
    logprobs: Optional[int] = None  # so many alternatives beside the token itself; -1: all
    prompt_logprobs: Optional[int] = None
    skip_special_tokens: bool = True
    logit_bias: Optional[Dict[int, float]] = None
    allowed_token_ids: Optional[Sequence[int]] = None

    def __post_init__(self) -> None:
        self._to_c()

    def _to_c(self) -> Tuple[_library.SamplingParams, List[Any]]:
        """The struct, and what it points to: keep it as long as the struct."""
        params = _library.initialised(_library.SamplingParams, "sampling_params")
        kept: List[Any] = []
        check_integer("n", self.n, *_INT32)
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type == "float":
                setattr(params, name, check_number(name, value))
            elif field.type == "bool":
                if not isinstance(value, bool):
                    raise _refuse(name, value, "True or False")
                setattr(params, name, int(value))
        params.top_k = check_integer("top_k", self.top_k, *_INT64)
        params.min_tokens = check_integer("min_tokens", self.min_tokens, *_INT64)
        if self.seed is not None:
            seed = ctypes.c_uint64(check_integer("seed", self.seed, 0, 2**64 - 1))
            params.seed = ctypes.pointer(seed)
        for name in ("max_tokens", "logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                number = ctypes.c_int64(check_integer(name, value, *_INT64))
                setattr(params, name, ctypes.pointer(number))
        for name in ("stop", "bad_words"):
            texts = [_library.text(one) for one in _check_texts(name, getattr(self, name) or [])]
            array = (_library.Text * len(texts))(*(one for one, _ in texts))
            kept += [texts, array]
            setattr(params, name, array)
            setattr(params, "num_" + name, len(texts))
        for name in ("stop_token_ids", "allowed_token_ids"):
            ids = check_token_ids(name, getattr(self, name) or [])
            setattr(params, name, _library.token_ids(ids))
        if self.logit_bias is not None and not isinstance(self.logit_bias, dict):
            raise _refuse("logit_bias", self.logit_bias, "a dict from token ids to numbers")
        biases = [
            _library.LogitBias(
                check_integer("logit_bias", token_id, *_INT32), check_number("logit_bias", bias)
            )
            for token_id, bias in (self.logit_bias or {}).items()
        ]
        params.logit_bias = (_library.LogitBias * len(biases))(*biases)
        params.num_logit_bias = len(biases)
        return params, kept

"""Handles of the library as objects: they are destroyed when nobody uses them any more."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from millrace import _library
from millrace._library import Text, check
from millrace.outputs import Logprob, LogprobDict, StreamPiece, ToolCallPiece

_INT32P = ctypes.POINTER(ctypes.c_int32)


def _filled(call: Callable[..., int], element: Any, capacity: int) -> Any:
    """An array that `call(array, capacity, size)` fills, called again if it needs more room."""
    size = ctypes.c_size_t()
    while True:
        array = (element * max(capacity, 1))()
        status = call(array, capacity, ctypes.byref(size))
        if status != _library.EXHAUSTED or size.value <= capacity:
            check(status)
            return array[: size.value]
        capacity = size.value


class Engine:
    """The handle of an engine. Whoever calls it holds it, so it never ends under a call."""

    def __init__(self, options: _library.EngineOptions) -> None:
        self._library = _library.load()
        handle = ctypes.c_void_p()
        check(self._library.millrace_engine_create(ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle
        weakref.finalize(self, self._library.millrace_engine_destroy, handle)
        info = _library.initialised(_library.EngineInfo, "engine_info")
        check(self._library.millrace_get_engine_info(handle, ctypes.byref(info)))
        self.numerics_id, self.isa = str(info.numerics_id), str(info.isa)
        self.num_threads: int = info.num_threads
        self.vocab_size: int = info.vocab_size
        self.max_model_len: int = info.max_model_len
        self.max_num_seqs: int = info.max_num_seqs
        self.bos_token_id: Optional[int] = info.bos_token_id if info.bos_token_id >= 0 else None
        self._decoded: Dict[int, str] = {}

    def encode(self, text: str, add_bos: bool, trusted: bool) -> List[int]:
        c_text, kept = _library.text(text)
        flags = _library.ADD_BOS * bool(add_bos) + _library.TRUSTED_TEXT * bool(trusted)

        def call(ids: Any, capacity: int, size: Any) -> int:
            return self._library.millrace_tokenize(
                self.handle, c_text, flags, ids, capacity, size
            )

        return _filled(call, ctypes.c_int32, len(kept) + 1)

    def encode_chat(self, json: str) -> Tuple[List[int], int]:
        """Token ids, and where in a reply the first token stands."""
        c_text, kept = _library.text(json)
        reply_start = ctypes.c_int32()

        def call(ids: Any, capacity: int, size: Any) -> int:
            return self._library.millrace_encode_chat(
                self.handle, c_text, ids, capacity, size, ctypes.byref(reply_start)
            )

        return _filled(call, ctypes.c_int32, len(kept) + 1024), reply_start.value

    def decode(self, ids: List[int], skip_special_tokens: bool) -> str:
        c_ids = _library.token_ids(ids)
        flags = _library.SKIP_SPECIAL_TOKENS * bool(skip_special_tokens)

        def call(text: Any, capacity: int, size: Any) -> int:
            return self._library.millrace_detokenize(
                self.handle, c_ids, flags, text, capacity, size
            )

        return _filled(call, ctypes.c_char, 16 * len(ids)).decode("utf-8")

    def token_bytes(self, token_id: int) -> bytes:
        text = Text()
        check(self._library.millrace_token_bytes(self.handle, token_id, ctypes.byref(text)))
        return text.bytes()

    def decoded_token(self, token_id: int) -> str:
        decoded = self._decoded.get(token_id)
        if decoded is None:
            decoded = self.token_bytes(token_id).decode("utf-8", "replace")
            self._decoded[token_id] = decoded
        return decoded


class Request:
    """The handle of a request. One thread reads it at a time."""

    def __init__(self, engine: Engine, options: _library.RequestOptions) -> None:
        self._engine = engine
        self._library = engine._library
        self._event = _library.initialised(_library.Event, "event")
        info = _library.initialised(_library.RequestInfo, "request_info")
        handle = ctypes.c_void_p()
        check(
            self._library.millrace_submit(
                engine.handle, ctypes.byref(options), ctypes.byref(handle)
            )
        )
        self._handle = handle
        self._destroy = weakref.finalize(self, self._library.millrace_request_destroy, handle)
        check(self._library.millrace_get_request_info(handle, ctypes.byref(info)))
        self.seed: int = info.seed
        self.is_finished = False

    def close(self) -> None:
        """Ends the request if it has not ended."""
        self._destroy()

    def next_piece(self, timeout_ms: int) -> Optional[StreamPiece]:
        """None: nothing came in time, or all is read (is_finished)."""
        event = self._event
        status = check(
            self._library.millrace_next_event(self._handle, timeout_ms, ctypes.byref(event))
        )
        if status != _library.OK:
            self.is_finished = status == _library.END
            return None
        if event.finish_reason == _library.FINISH_ERROR:
            raise _library.error(event.error_status, str(event.error))
        return self._piece(event)

    def _piece(self, event: _library.Event) -> StreamPiece:
        piece = StreamPiece(
            index=event.choice_idx,
            text=str(event.text),
            token_id=event.token_id if event.token_id >= 0 else None,
            logprobs=self._logprobs(event.logprobs[0]) if event.logprobs else None,
            prompt_logprobs=[
                self._logprobs(event.prompt_logprobs[i]) for i in range(event.num_prompt_logprobs)
            ],
            finish_reason=None,
            stop_reason=None,
        )
        for i in range(event.num_parts):
            self._add_part(event.parts[i], piece)
        if event.finish_reason:
            name = self._library.millrace_finish_reason_name(event.finish_reason)
            piece.finish_reason = name.decode()
            if event.stop_token_id >= 0:
                piece.stop_reason = event.stop_token_id
            elif event.stop_string.data:
                piece.stop_reason = str(event.stop_string)
        return piece

    @staticmethod
    def _add_part(part: _library.ReplyPart, piece: StreamPiece) -> None:
        text = str(part.text)
        if part.kind == _library.PART_REASONING:
            piece.reasoning += text
        elif part.kind == _library.PART_CONTENT:
            piece.content += text
        elif part.kind == _library.PART_TOOL_CALL:
            piece.tool_calls.append(ToolCallPiece(part.call_idx, text, ""))
        elif piece.tool_calls and piece.tool_calls[-1].index == part.call_idx:
            piece.tool_calls[-1].arguments += text
        else:
            piece.tool_calls.append(ToolCallPiece(part.call_idx, None, text))

    def _logprobs(self, from_c: _library.TokenLogprobs) -> LogprobDict:
        tokens = [from_c.token] + from_c.top[: from_c.num_top]
        return {
            one.token_id: Logprob(
                one.logprob, one.rank, self._engine.decoded_token(one.token_id)
            )
            for one in tokens
        }

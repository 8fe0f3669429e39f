"""One model in this process: prompts in, answers out."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from millrace import _library
from millrace._engine import Engine, Request
from millrace._progress import Progress
from millrace.outputs import CompletionOutput, RequestOutput, StreamPiece, ToolCall
from millrace.sampling_params import (
    SamplingParams,
    check_integer,
    check_number,
    check_token_ids,
)
from millrace.tokenizer import Tokenizer

Prompt = Union[str, Dict[str, Any]]  # {"prompt": TEXT} or {"prompt_token_ids": [ID, ...]}
Conversation = List[Dict[str, Any]]

_NUMERICS = {"reference": 0, "fp32": 1}
# Ctrl-C is noticed, and other requests are looked at, after so long.
_POLL_MS = 50
_CHAT_TEMPLATE_KWARGS = (
    "drop_thinking",
    "reasoning_effort",
    "response_format",
    "thinking",
    "tool_choice",
)


@dataclass
class _EncodedPrompt:
    text: Optional[str]
    token_ids: List[int]
    reply_start: int = _library.REPLY_NONE


class _Answers:
    """Pieces of one request added up."""

    def __init__(self, request_id: str, prompt: _EncodedPrompt, sampling: SamplingParams) -> None:
        self._request_id, self._prompt = request_id, prompt
        wants_logprobs = sampling.logprobs is not None
        self._outputs = [
            CompletionOutput(
                index=i,
                text="",
                token_ids=[],
                cumulative_logprob=0.0 if wants_logprobs else None,
                logprobs=[] if wants_logprobs else None,
                finish_reason=None,
                stop_reason=None,
            )
            for i in range(sampling.n)
        ]
        self._prompt_logprobs: Optional[List[Any]] = (
            [None] if sampling.prompt_logprobs is not None else None
        )
        self.num_tokens = 0

    def add(self, piece: StreamPiece) -> None:
        output = self._outputs[piece.index]
        output.text += piece.text
        output.reasoning += piece.reasoning
        output.content += piece.content
        for call in piece.tool_calls:
            if call.name is not None:
                output.tool_calls.append(ToolCall(call.name, ""))
            output.tool_calls[call.index].arguments += call.arguments
        if self._prompt_logprobs is not None:
            self._prompt_logprobs += piece.prompt_logprobs
        if piece.token_id is not None:
            self.num_tokens += 1
            output.token_ids.append(piece.token_id)
            if output.logprobs is not None and piece.logprobs is not None:
                output.logprobs.append(piece.logprobs)
                output.cumulative_logprob += piece.logprobs[piece.token_id].logprob
        if piece.finish_reason is not None:
            output.finish_reason, output.stop_reason = piece.finish_reason, piece.stop_reason

    def output(self, seed: int) -> RequestOutput:
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt.text,
            prompt_token_ids=self._prompt.token_ids,
            outputs=self._outputs,
            prompt_logprobs=self._prompt_logprobs,
            finished=all(output.finish_reason is not None for output in self._outputs),
            seed=seed,
        )


class LLM:
    """A loaded model and the engine that runs it. Any number of threads may ask it at once.

    Options that are None are the library's defaults (include/millrace.h). An LLM is of use only in
    the process that made it: a child of fork() needs one of its own.
    """

    def __init__(
        self,
        model: Union[str, "os.PathLike[str]"],
        *,
        numerics: str = "reference",
        num_threads: Optional[int] = None,
        isa: Optional[str] = None,
        prefill_chunk: Optional[int] = None,
        max_model_len: Optional[int] = None,
        max_num_seqs: Optional[int] = None,
        max_num_batched_tokens: Optional[int] = None,
        max_step_ms: Optional[float] = None,
        max_waiting: Optional[int] = None,
        kv_bytes: Optional[int] = None,
        expert_cache_bytes: Optional[int] = None,
    ) -> None:
        self._engine: Optional[Engine] = None
        self._request_ids = itertools.count()
        options = _library.initialised(_library.EngineOptions, "engine_options")
        if numerics not in _NUMERICS:
            names = " or ".join(repr(name) for name in _NUMERICS)
            raise ValueError("numerics: found %r, expected %s" % (numerics, names))
        options.numerics = _NUMERICS[numerics]
        options.model_dir = os.fsencode(model)
        if isa is not None:
            options.isa = isa.encode("utf-8")
        integers = {
            "prefill_chunk": prefill_chunk,
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "max_waiting": max_waiting,
            "kv_bytes": kv_bytes,
        }
        for name, value in integers.items():
            if value is not None:
                setattr(options, name, check_integer(name, value, 1, 2**63 - 1))
        if expert_cache_bytes is not None:
            options.expert_cache_bytes = check_integer(
                "expert_cache_bytes", expert_cache_bytes, 0, 2**63 - 1
            )
        if num_threads is not None:
            options.num_threads = check_integer("num_threads", num_threads, 0, 2**31 - 1)
        if max_step_ms is not None:
            options.max_step_ms = check_number("max_step_ms", max_step_ms)
        self._engine = Engine(options)

    # ---- Asking.

    def generate(
        self,
        prompts: Union[Prompt, Sequence[Prompt]],
        sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None,
        use_tqdm: bool = True,
        *,
        priority: Union[None, int, Sequence[int]] = None,
        trusted: bool = False,
    ) -> List[RequestOutput]:
        """Continues every prompt, all of them together. The outputs are in the prompts' order.

        `trusted`: literals of control tokens in the prompts become those tokens.
        """
        return self._run(
            [self._text_prompt(one, trusted) for one in _as_list(prompts, (str, dict))],
            sampling_params,
            use_tqdm,
            priority,
        )

    def chat(
        self,
        messages: Union[Conversation, Sequence[Conversation]],
        sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None,
        use_tqdm: bool = True,
        *,
        tools: Optional[List[Dict[str, Any]]] = None,
        chat_template_kwargs: Optional[Dict[str, Any]] = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        priority: Union[None, int, Sequence[int]] = None,
    ) -> List[RequestOutput]:
        """Answers one conversation or several. Outputs also hold reasoning, content, tool_calls.

        chat_template_kwargs: thinking, reasoning_effort, tool_choice, response_format,
        drop_thinking, as in a Chat Completions request.
        """
        is_single = len(messages) > 0 and isinstance(messages[0], dict)
        prompts = [
            self._chat_prompt(
                one,
                tools,
                chat_template_kwargs or {},
                add_generation_prompt,
                continue_final_message,
            )
            for one in ([messages] if is_single else messages)
        ]
        return self._run(prompts, sampling_params, use_tqdm, priority)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: Optional[SamplingParams] = None,
        *,
        trusted: bool = False,
    ) -> Iterator[StreamPiece]:
        """The answers to one prompt as they come. Closing the iterator ends the request."""
        return self._pieces(self._text_prompt(prompt, trusted), sampling_params)

    def stream_chat(
        self,
        messages: Conversation,
        sampling_params: Optional[SamplingParams] = None,
        *,
        tools: Optional[List[Dict[str, Any]]] = None,
        chat_template_kwargs: Optional[Dict[str, Any]] = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> Iterator[StreamPiece]:
        prompt = self._chat_prompt(
            messages,
            tools,
            chat_template_kwargs or {},
            add_generation_prompt,
            continue_final_message,
        )
        return self._pieces(prompt, sampling_params)

    # ---- What it is.

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self)

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json recommends."""
        params = _library.initialised(_library.SamplingParams, "sampling_params")
        engine = self._engine_or_raise()
        _library.check(
            engine._library.millrace_default_sampling_params(engine.handle, ctypes.byref(params))
        )
        return SamplingParams(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
        )

    @property
    def numerics_id(self) -> str:
        """Equal ids: equal answers, whatever the machine."""
        return self._engine_or_raise().numerics_id

    @property
    def max_model_len(self) -> int:
        return self._engine_or_raise().max_model_len

    @property
    def vocab_size(self) -> int:
        return self._engine_or_raise().vocab_size

    # ---- The end.

    def close(self) -> None:
        """Ends the engine, once nothing that was asked is still being answered."""
        self._engine = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- Inside.

    def _engine_or_raise(self) -> Engine:
        engine = self._engine
        if engine is None:
            raise RuntimeError("LLM: found closed, expected open")
        return engine

    def _text_prompt(self, prompt: Any, trusted: bool) -> _EncodedPrompt:
        if isinstance(prompt, dict):
            if len(prompt) != 1 or not prompt.keys() <= {"prompt", "prompt_token_ids"}:
                raise ValueError(
                    "prompt: found the keys %s, expected one of prompt and prompt_token_ids"
                    % sorted(map(str, prompt))
                )
            if "prompt_token_ids" in prompt:
                ids = check_token_ids("prompt_token_ids", prompt["prompt_token_ids"])
                return _EncodedPrompt(None, ids)
            prompt = prompt["prompt"]
        if not isinstance(prompt, str):
            raise ValueError(
                'prompt: found %r, expected a string, {"prompt": ...} or {"prompt_token_ids": ...}'
                % (prompt,)
            )
        return _EncodedPrompt(prompt, self._engine_or_raise().encode(prompt, True, trusted))

    def _chat_prompt(
        self,
        messages: Any,
        tools: Any,
        template: Dict[str, Any],
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> _EncodedPrompt:
        for name in template:
            if name not in _CHAT_TEMPLATE_KWARGS:
                raise ValueError(
                    "chat_template_kwargs: found %r, expected one of %s"
                    % (name, ", ".join(_CHAT_TEMPLATE_KWARGS))
                )
        request: Dict[str, Any] = {"messages": messages, **template}
        if tools is not None:
            request["tools"] = tools
        if not add_generation_prompt:
            request["add_generation_prompt"] = False
        if continue_final_message:
            request["continue_final_message"] = True
        try:
            text = json.dumps(request, ensure_ascii=False)
        except TypeError as error:
            raise ValueError("messages: %s" % error) from None
        engine = self._engine_or_raise()
        ids, reply_start = engine.encode_chat(text)
        return _EncodedPrompt(engine.decode(ids, False), ids, reply_start)

    def _submit(
        self, request_id: str, prompt: _EncodedPrompt, sampling: SamplingParams, priority: int
    ) -> Request:
        options = _library.initialised(_library.RequestOptions, "request_options")
        params, kept_by_params = sampling._to_c()
        options.token_ids = _library.token_ids(prompt.token_ids)
        options.reply_start = prompt.reply_start
        options.num_choices = sampling.n
        options.sampling = ctypes.pointer(params)
        options.priority = priority
        options.request_id, kept_by_id = _library.text(request_id)
        request = Request(self._engine_or_raise(), options)
        del kept_by_params, kept_by_id  # the library has copied what it needs
        return request

    def _run(
        self,
        prompts: List[_EncodedPrompt],
        sampling_params: Any,
        use_tqdm: bool,
        priority: Any,
    ) -> List[RequestOutput]:
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        samplings = _one_each("sampling_params", sampling_params, SamplingParams, len(prompts))
        priorities = _one_each("priority", 0 if priority is None else priority, int, len(prompts))
        progress = Progress(len(prompts), use_tqdm)
        batch = _Batch(self, prompts, samplings, priorities, progress)
        try:
            return batch.run()
        finally:
            batch.close()
            progress.close()

    def _pieces(
        self, prompt: _EncodedPrompt, sampling: Optional[SamplingParams]
    ) -> Iterator[StreamPiece]:
        if sampling is None:
            sampling = self.get_default_sampling_params()
        if not isinstance(sampling, SamplingParams):
            raise ValueError("sampling_params: found %r, expected SamplingParams" % (sampling,))
        request = self._submit(str(next(self._request_ids)), prompt, sampling, 0)
        return _read_pieces(request)


def _read_pieces(request: Request) -> Iterator[StreamPiece]:
    try:
        while not request.is_finished:
            piece = request.next_piece(_POLL_MS)
            if piece is None:
                continue
            says_something = piece.token_id is not None or piece.finish_reason is not None
            if says_something or piece.prompt_logprobs:
                yield piece
    finally:
        request.close()


def _as_list(value: Any, single: Tuple[type, ...]) -> List[Any]:
    if isinstance(value, single):
        return [value]
    if isinstance(value, (list, tuple)):
        return list(value)
    raise ValueError("prompts: found %r, expected a prompt or a list of prompts" % (value,))


def _one_each(name: str, value: Any, kind: type, count: int) -> List[Any]:
    values = [value] * count if isinstance(value, kind) else value
    if not isinstance(values, (list, tuple)) or not all(isinstance(one, kind) for one in values):
        raise ValueError("%s: found %r, expected %s or a list" % (name, value, kind.__name__))
    if len(values) != count:
        raise ValueError(
            "%s: found %d, expected one for each of %d prompts" % (name, len(values), count)
        )
    return list(values)


@dataclass
class _Open:
    request: Request
    answers: _Answers
    num_counted: int = field(default=0)  # tokens that the progress bar knows


class _Batch:
    """Prompts that are answered together: as many are open as the engine takes."""

    def __init__(
        self,
        llm: LLM,
        prompts: List[_EncodedPrompt],
        samplings: List[SamplingParams],
        priorities: List[int],
        progress: Progress,
    ) -> None:
        self._llm, self._progress = llm, progress
        self._prompts, self._samplings, self._priorities = prompts, samplings, priorities
        self._waiting: Deque[int] = deque(range(len(prompts)))
        self._open: Dict[int, _Open] = {}
        self._outputs: List[Optional[RequestOutput]] = [None] * len(prompts)

    def run(self) -> List[RequestOutput]:
        while self._waiting or self._open:
            self._submit()
            for index in list(self._open):
                self._read(index, 0)
            # All rows of a step come together, so it does not matter much for which one we wait.
            first = next(iter(self._open), None)
            if first is not None:
                self._read(first, _POLL_MS)
            elif self._waiting:
                time.sleep(_POLL_MS / 1000)  # others have filled the engine
        return [output for output in self._outputs if output is not None]

    def close(self) -> None:
        for one in self._open.values():
            one.request.close()
        self._open.clear()

    def _submit(self) -> None:
        while self._waiting:
            index = self._waiting[0]
            prompt, sampling = self._prompts[index], self._samplings[index]
            request_id = str(next(self._llm._request_ids))
            try:
                request = self._llm._submit(request_id, prompt, sampling, self._priorities[index])
            except _library.Exhausted:
                return
            except ValueError as error:
                raise ValueError(self._named(index, error)) from None
            self._waiting.popleft()
            self._open[index] = _Open(request, _Answers(request_id, prompt, sampling))

    def _read(self, index: int, timeout_ms: int) -> None:
        """What there is of one request; waits for the first piece of it."""
        one = self._open[index]
        try:
            while True:
                piece = one.request.next_piece(timeout_ms)
                if piece is None:
                    break
                one.answers.add(piece)
                timeout_ms = 0
        except _library.Exhausted as error:
            # It was one too many after all; once it has begun, it has a place.
            if one.answers.num_tokens > 0:
                raise RuntimeError(self._named(index, error)) from None
            one.request.close()
            del self._open[index]
            self._waiting.append(index)
            return
        except RuntimeError as error:
            raise RuntimeError(self._named(index, error)) from None
        num_tokens = one.answers.num_tokens - one.num_counted
        one.num_counted = one.answers.num_tokens
        if one.request.is_finished:
            self._outputs[index] = one.answers.output(one.request.seed)
            one.request.close()
            del self._open[index]
        self._progress.add(int(one.request.is_finished), num_tokens)

    def _named(self, index: int, error: Exception) -> str:
        return str(error) if len(self._prompts) == 1 else "prompt %d: %s" % (index, error)

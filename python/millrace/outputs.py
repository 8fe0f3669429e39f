"""What comes back: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Union


@dataclass
class Logprob:
    """One token's log-probability, before penalties and temperature. The rank counts from 1."""

    logprob: float
    rank: int
    decoded_token: str


# The token that stands at a position, then the likeliest ones, by token id.
LogprobDict = Dict[int, Logprob]


@dataclass
class ToolCall:
    name: str
    arguments: str  # JSON if the model wrote JSON and the call is complete


@dataclass
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str  # a chat's as the model wrote it
    token_ids: List[int]
    cumulative_logprob: Optional[float]  # None: logprobs were not asked for
    logprobs: Optional[List[LogprobDict]]
    finish_reason: Optional[str]  # "stop", "length", "tool_calls", "abort", "timeout"
    stop_reason: Union[int, str, None]  # the stop token or stop string; None: an end token
    # Of a chat: its text, parsed.
    reasoning: str = ""
    content: str = ""
    tool_calls: List[ToolCall] = field(default_factory=list)


@dataclass
class RequestOutput:
    """A prompt and the answers to it."""

    request_id: str
    prompt: Optional[str]  # None: it was given as tokens
    prompt_token_ids: List[int]
    outputs: List[CompletionOutput]
    # By position, None at the first: nothing comes before it.
    prompt_logprobs: Optional[List[Optional[LogprobDict]]]
    finished: bool
    seed: int  # the one given, or the one drawn: with it the answer can be repeated


@dataclass
class ToolCallPiece:
    index: int
    name: Optional[str]  # on the first piece of a call
    arguments: str  # more of their JSON text


@dataclass
class StreamPiece:
    """One step of one answer. Its text may lag behind its tokens."""

    index: int
    text: str
    token_id: Optional[int]
    logprobs: Optional[LogprobDict]
    prompt_logprobs: List[LogprobDict]  # of the next prompt tokens, from the second one on
    finish_reason: Optional[str]  # on the last piece of each answer
    stop_reason: Union[int, str, None]
    reasoning: str = ""
    content: str = ""
    tool_calls: List[ToolCallPiece] = field(default_factory=list)

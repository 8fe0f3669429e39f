"""Millrace in this process.

    from millrace import LLM, SamplingParams

    with LLM(model="models/nano") as llm:
        for output in llm.generate(["Once upon a time"], SamplingParams(temperature=0)):
            print(output.outputs[0].text)

The names are those that users of vLLM know. docs/library.md has the ideas.
"""

from millrace.llm import LLM
from millrace.outputs import (
    CompletionOutput,
    Logprob,
    RequestOutput,
    StreamPiece,
    ToolCall,
    ToolCallPiece,
)
from millrace.sampling_params import SamplingParams
from millrace.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StreamPiece",
    "Tokenizer",
    "ToolCall",
    "ToolCallPiece",
]

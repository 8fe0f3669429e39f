"""Text to tokens and back."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Union

from millrace import _library
from millrace.sampling_params import check_token_ids

if TYPE_CHECKING:
    from millrace.llm import LLM


class Tokenizer:
    """The tokenizer of an LLM, as long as that is open. May be used by any thread."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    @property
    def vocab_size(self) -> int:
        return self._llm.vocab_size

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def bos_token_id(self) -> Optional[int]:
        return self._llm._engine_or_raise().bos_token_id

    def encode(
        self, text: str, add_special_tokens: bool = True, *, trusted: bool = False
    ) -> List[int]:
        """`trusted`: literals of control tokens in the text become those tokens."""
        return self._llm._engine_or_raise().encode(text, add_special_tokens, trusted)

    def decode(
        self, token_ids: Union[int, Sequence[int]], skip_special_tokens: bool = False
    ) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        engine = self._llm._engine_or_raise()
        return engine.decode(check_token_ids("token_ids", ids), skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """They need not be whole characters."""
        return self._llm._engine_or_raise().token_bytes(*check_token_ids("token_id", [token_id]))

    def apply_chat_template(
        self,
        conversation: List[Dict[str, Any]],
        tools: Optional[List[Dict[str, Any]]] = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **chat_template_kwargs: Any,
    ) -> Union[List[int], str]:
        """The prompt of a conversation, as tokens or as text."""
        prompt = self._llm._chat_prompt(
            conversation, tools, chat_template_kwargs, add_generation_prompt, continue_final_message
        )
        return prompt.token_ids if tokenize else self.decode(prompt.token_ids)

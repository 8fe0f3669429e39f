"""A progress bar on stderr, if that is a terminal."""

from __future__ import annotations

import sys
import time

_WIDTH = 30
_SECONDS = 0.1  # between two pictures


class Progress:
    def __init__(self, num_prompts: int, wanted: bool) -> None:
        self._num_prompts = num_prompts
        self._is_shown = wanted and sys.stderr is not None and sys.stderr.isatty()
        self._begin = self._shown_at = time.monotonic()
        self._num_done = 0
        self._num_tokens = 0

    def add(self, num_prompts: int, num_tokens: int) -> None:
        self._num_done += num_prompts
        self._num_tokens += num_tokens
        if self._is_shown and time.monotonic() >= self._shown_at + _SECONDS:
            self._show("")

    def close(self) -> None:
        if self._is_shown:
            self._show("\n")

    def _show(self, end: str) -> None:
        self._shown_at = time.monotonic()
        seconds = max(self._shown_at - self._begin, 1e-9)
        filled = _WIDTH * self._num_done // max(self._num_prompts, 1)
        sys.stderr.write(
            "\r[%s%s] %d/%d prompts, %.0f tokens/s%s"
            % (
                "#" * filled,
                "." * (_WIDTH - filled),
                self._num_done,
                self._num_prompts,
                self._num_tokens / seconds,
                end,
            )
        )
        sys.stderr.flush()

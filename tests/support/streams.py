"""A stream that is read in the background while the test breaks something."""

import threading

from cluster import wait_until
from openai import OpenAI


class Stream:
    """One streamed chat; counts what has arrived, and keeps how it ended."""

    def __init__(self, client: OpenAI, model: str, tokens: int) -> None:
        self.tokens = 0
        self.finish_reason = ""
        self.error: Exception | None = None
        self._client, self._model, self._max = client, model, tokens
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            stream = self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": "Go on"}],
                max_tokens=self._max,
                stream=True,
            )
            for chunk in stream:
                self.tokens += 1
                if chunk.choices and chunk.choices[0].finish_reason:
                    self.finish_reason = chunk.choices[0].finish_reason
        except Exception as error:  # noqa: BLE001  what a client sees is the subject
            self.error = error

    def flowing(self, what: str, seconds: float = 60) -> int:
        """Wait until ten more tokens have arrived than now; how many there are."""
        start = self.tokens
        wait_until(f"tokens {what} (so far {start}, {self.error!r})", seconds, lambda: self.tokens >= start + 10)
        return self.tokens

    def finished(self, seconds: float) -> str:
        """Wait for the end; the finish reason. Raises what the client raised."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"the stream did not end within {seconds} s; {self.tokens} tokens"
        if self.error is not None:
            raise self.error
        return self.finish_reason

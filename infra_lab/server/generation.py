"""The answer to one HTTP request under way: the streams of its prompts, read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from infra_lab.outputs import RequestOutput
from infra_lab.server.api_errors import ApiError, too_late, unavailable
from infra_lab.server.request_stream import RequestStream


class Generation:
    """Close it, come what may: that aborts what still runs and gives the client's places back.

    Args:
        request_id: the answer's; those of its streams begin with it.
        streams: one a prompt, in order.
        deadline_s: on the event loop's clock; an answer that is not whole by then fails with 504.
    """

    def __init__(
        self,
        request_id: str,
        streams: Sequence[RequestStream],
        leave: Callable[[], None],
        deadline_s: float,
    ) -> None:
        self.request_id = request_id
        self._streams = streams
        self._leave = leave
        self._deadline_s = deadline_s
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        self.finish_reasons: list[str] = []

    @property
    def usage(self) -> dict[str, object]:
        """Token counts of the prompts that have ended, in OpenAI's form."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        self._leave()

    async def outputs(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """Every output with its prompt's number, in the order of arrival.

        Raises ApiError: 500 where the engine failed, 503 at a shut-down, 504 at the deadline.
        """
        waiting = {
            asyncio.ensure_future(stream.next_output()): index
            for index, stream in enumerate(self._streams)
        }
        try:
            while waiting:
                seconds_left = self._deadline_s - asyncio.get_running_loop().time()
                if seconds_left <= 0:
                    raise too_late()
                done, _ = await asyncio.wait(
                    waiting, timeout=seconds_left, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    index = waiting.pop(task)
                    output = _sound(task.result())
                    if output.finished:
                        self._note_end(output)
                    else:
                        stream = self._streams[index]
                        waiting[asyncio.ensure_future(stream.next_output())] = index
                    yield index, output
        finally:
            for task in waiting:
                task.cancel()

    async def results(self) -> list[RequestOutput]:
        """The finished output of every prompt, in order; raises like `outputs`."""
        results: dict[int, RequestOutput] = {}
        async for index, output in self.outputs():
            if output.finished:
                results[index] = output
        return [results[index] for index in range(len(self._streams))]

    def _note_end(self, output: RequestOutput) -> None:
        self.num_prompt_tokens += len(output.prompt_token_ids)
        self.num_cached_tokens += output.num_cached_tokens
        self.num_output_tokens += sum(len(sample.token_ids) for sample in output.outputs)
        self.finish_reasons += [sample.finish_reason or "stop" for sample in output.outputs]


def _sound(output: RequestOutput | None) -> RequestOutput:
    if output is None:
        raise ApiError(500, "the request was closed before its end")
    if output.error is not None:
        raise ApiError(500, output.error)
    if any(sample.finish_reason == "abort" for sample in output.outputs):
        raise unavailable("the server was shut down before the answer was whole")
    return output

"""Stop strings in streamed text: where to cut, and how much may be shown already.

Answers "how do you match a stop string that spans tokens without ever showing half of it?".
The occurrence that completes first wins, because a stream has to stop there before it can know
about any other; of those that complete at the same character the longest wins. Both depend on
the text alone, so the result is the same however the text was cut into pieces. Where the text
must have a form, an occurrence counts only if what stands before it is a whole document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


class StopChecker:
    """Passes text through until a stop string completes.

    While running it holds back only the longest end of the text that is the beginning of a stop
    string: any occurrence still to come starts inside that end, and everything before is safe.

    Args:
        may_end_after: tells of the text before an occurrence whether it may be all there is; None
            lets every occurrence count.
    """

    def __init__(
        self,
        stop: Sequence[str],
        include_stop_str_in_output: bool = False,
        may_end_after: Callable[[str], bool] | None = None,
    ) -> None:
        self._stop = tuple(stop)
        self._include = include_stop_str_in_output
        self._longest = max((len(item) for item in self._stop), default=0)
        self._held = ""
        self._may_end_after = may_end_after
        self._passed = ""  # kept only where `may_end_after` wants to know it
        self.matched: str | None = None

    def append(self, text: str, *, may_stop: bool = True) -> str:
        """Takes the next piece and returns what may now be shown.

        An occurrence that completes inside a piece with `may_stop` False does not count, then or
        later: that is how min_tokens is kept. After a match nothing more is let through.
        """
        if self.matched is not None or not text:
            return ""
        if not self._stop:
            return text
        known = len(self._held)
        window = self._held + text
        if may_stop and (found := self._first_match(window, known)) is not None:
            end, start, self.matched = found
            self._held = ""
            return window[: end if self._include else start]
        self._held = self._beginning_of_a_stop(window)
        passed = window[: len(window) - len(self._held)]
        if self._may_end_after is not None:
            self._passed += passed
        return passed

    def flush(self) -> str:
        """What was held back, now that no more text will come."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, window: str, known: int) -> tuple[int, int, str] | None:
        """(end, start, stop string) of the occurrence that completes first after `known`."""
        for end, start, item in sorted(self._matches(window, known)):
            if self._may_end_after is None or self._may_end_after(self._passed + window[:start]):
                return end, start, item
        return None

    def _matches(self, window: str, known: int) -> Iterator[tuple[int, int, str]]:
        for item in self._stop:
            start = window.find(item, max(0, known - len(item) + 1))
            while start >= 0:
                yield start + len(item), start, item
                start = window.find(item, start + 1)

    def _beginning_of_a_stop(self, window: str) -> str:
        for length in range(min(self._longest - 1, len(window)), 0, -1):
            end = window[-length:]
            if any(len(item) > length and item.startswith(end) for item in self._stop):
                return end
        return ""

"""Logs as JSON lines: one a request, with its id, and none of its text unless asked for."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

FIELDS = "infra_lab_fields"
logger = logging.getLogger("infra_lab.server")


class JsonFormatter(logging.Formatter):
    """A record as one line; what `log_event` was given become fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)  # no line break can be smuggled in


def log_event(name: str, **fields: Any) -> None:
    logger.info(name, extra={FIELDS: fields})


def configure_logging(level: str) -> None:
    """Sends what the server, the engine and uvicorn have to say to stderr, in lines of JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    for name in ("infra_lab", "uvicorn"):
        one = logging.getLogger(name)
        one.handlers = [handler]
        one.setLevel(level.upper())
        one.propagate = False
    logging.getLogger("uvicorn.access").disabled = True  # the server's own line says more

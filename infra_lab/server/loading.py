"""A model made ready to be served: nothing that could be done before a request is left for it.

Answers "why is a step in the server slower than the same step in a benchmark?". Three things that
nobody sees offline lengthen the gaps between tokens here: threads of another pool, memory that is
touched for the first time under load, and a garbage collector that looks through the whole model.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from infra_lab.config import EngineConfig
from infra_lab.engine.build import choose_device
from infra_lab.engine.llm import LLM

# A processor is as fast at 128 tokens a step as at 512 (it has read the weights in the time of
# about 25), and everybody's gap beside a prompt is a quarter as long.
CPU_STEP_TOKENS = 128
Result = TypeVar("Result")


def serving_config(device: str, given: dict[str, Any]) -> dict[str, Any]:
    """Engine settings for a server: those given, and the server's own defaults for the rest.

    Raises UsageError for a device that is not there.
    """
    settings = {"pretouch_kv_cache": True, **given}
    if choose_device(device).type == "cpu":
        max_num_seqs = given.get("max_num_seqs", EngineConfig().max_num_seqs)
        settings.setdefault("max_num_batched_tokens", max(CPU_STEP_TOKENS, max_num_seqs))
    return settings


def load_for_serving(load: Callable[[], LLM]) -> LLM:
    """What `load` gives, without the threads it computed with, and left alone by the collector."""
    llm = on_passing_thread(load)
    gc.collect()
    gc.freeze()  # a full collection would look at every object of the model, for 0.1 s or more
    return llm


def on_passing_thread(function: Callable[[], Result]) -> Result:
    """Runs a function on a thread that ends with it.

    OpenMP keeps a pool of workers for every thread that has computed, for as long as that thread
    lives. Once the pools together have more threads than the machine has cores, GNU's waits at a
    barrier by sleeping, not by spinning: a step of 33 ms then takes 54. So the thread that loads a
    model must not outlive its work: the engine's is to have the only pool.

    An interrupt reaches the function as if it ran here.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    # A daemon, so that a second interrupt ends the program even if the first one is not heard.
    thread = threading.Thread(target=run, name="loading", daemon=True)
    thread.start()
    try:
        return future.result()
    except KeyboardInterrupt:
        number = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(KeyboardInterrupt))
        raise
    finally:
        thread.join()

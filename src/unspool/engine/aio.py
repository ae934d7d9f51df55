"""The engine beside an event loop: one thread takes the steps, and tasks await what comes of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator

from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.engine.request import Request
from unspool.errors import UnspoolError
from unspool.results import Chunk


class EngineThread:
    """A thread that drives an engine while there is anything to compute, and sleeps while there is not.

    It starts with the first request. It does not keep the interpreter from ending.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._closing = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._flights: set[Flight] = set()

    async def events(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """A request's chunks as they come; leaving early, or a cancelled task, ends the request.

        What a slow reader has not taken yet waits for it, and for nobody else. Raises the request's error.
        """
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        called = False

        def wake() -> None:  # by the engine's thread
            nonlocal called
            if not called:
                called = True
                with contextlib.suppress(RuntimeError):  # the loop was closed: nobody reads any more
                    loop.call_soon_threadsafe(ready.set)

        self._start()
        flight = self.engine.submit(request, streaming=True, on_event=wake)
        self._flights.add(flight)
        try:
            while True:
                await ready.wait()
                ready.clear()
                called = False  # before looking: what comes after is called out again
                while flight.outbox:
                    yield flight.outbox.popleft()
                if flight.done and not flight.outbox:
                    break
        finally:
            self._flights.discard(flight)
            self.engine.cancel(flight)
        if flight.error is not None:
            raise flight.error

    def close(self) -> None:
        """End this thread's requests with an error, and the thread after the step under way; waits for it.

        May be called again.
        """
        with self._starting:
            self._closing = True
            thread, self._thread = self._thread, None
        self.engine.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        for flight in tuple(self._flights):
            self.engine.cancel(flight, UnspoolError("the AsyncLLM was closed before the request was done"))

    def _start(self) -> None:
        """Start the thread, if it does not run. Raises ``UnspoolError`` after ``close``."""
        with self._starting:
            if self._closing:
                raise UnspoolError("the AsyncLLM is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="unspool-engine", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        engine = self.engine

        def idle() -> bool:
            return self._closing or not engine.busy

        while not self._closing:
            try:
                engine.drive(idle)
            except Exception as error:  # of the engine itself: whoever waits must be told
                engine.abort(UnspoolError(f"the engine failed: {type(error).__name__}: {error}"))
            engine.sleep(lambda: self._closing)

"""The engine beside an event loop: one thread takes the steps, and tasks await what comes of them."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable

from unspool.engine.engine import Engine
from unspool.engine.flight import Flight
from unspool.engine.request import Request
from unspool.errors import UnspoolError
from unspool.results import Chunk


class EngineThread:
    """A thread that drives an engine while there is anything to compute, and sleeps while there is not.

    interval: how many seconds of a stream make one event at least.

    It starts with the first request. It does not keep the interpreter from ending.
    """

    def __init__(self, engine: Engine, interval: float) -> None:
        self.engine = engine
        self.interval = interval
        self._closing = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._flights: set[Flight] = set()

    async def events(self, request: Request, owner: object) -> AsyncGenerator[Chunk, None]:
        """A request's chunks as they come; leaving early, a cancelled task or a closed loop ends the request.

        What a slow reader has not taken yet waits for it, and for nobody else. Raises the request's error.

        owner: what is to be kept from being collected until then.
        """
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        called = False

        def wake() -> None:  # by the engine's thread
            nonlocal called
            if loop.is_closed():  # nobody reads any more
                self._flights.discard(flight)
                self.engine.cancel(flight)
            elif not called:
                called = True
                with contextlib.suppress(RuntimeError):  # closed just now
                    loop.call_soon_threadsafe(ready.set)

        flight = self._submit(request, wake)
        try:
            while True:
                await ready.wait()
                ready.clear()
                called = False  # before looking: what comes after is called out again
                while flight.outbox:
                    yield flight.outbox.popleft()
                if flight.done and not flight.outbox:
                    break
            if request.select is not None:
                for chunk in await loop.run_in_executor(None, flight.conclude):
                    yield chunk
        finally:
            self._flights.discard(flight)
            self.engine.cancel(flight)
        if flight.error is not None:
            raise flight.error

    def close(self) -> None:
        """End this thread's requests with an error, and the thread after the step under way; waits for it.

        May be called again; does nothing in a forked process.
        """
        if self.engine.forked:
            return
        with self._starting:
            self._closing = True
            thread = self._thread
        self.engine.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def stop(self) -> None:
        """As ``close``, but waits for nothing: a garbage collection comes where the thread cannot go on."""
        self._closing = True
        if not self.engine.forked:
            self.engine.wake()

    def _submit(self, request: Request, on_event: Callable[[], None]) -> Flight:
        """Let a request begin, and the thread if it does not run.

        Raises ``UnspoolError`` after ``close``, and as ``Engine.submit`` does.
        """
        self.engine.check_process()
        with self._starting:  # either ``close`` comes first and this raises, or the thread ends the request
            if self._closing:
                raise UnspoolError("the AsyncLLM is closed")
            flight = self.engine.submit(request, streaming=True, on_event=on_event, interval=self.interval)
            self._flights.add(flight)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="unspool-engine", daemon=True)
                self._thread.start()
                atexit.register(self.close)  # a thread within native code must not outlive the interpreter
            return flight

    def _run(self) -> None:
        engine = self.engine

        def idle() -> bool:
            return self._closing or not engine.busy

        while not self._closing:
            try:
                engine.drive(idle)
            except BaseException as error:  # of the engine itself: whoever waits must be told
                engine.abort(UnspoolError(f"the engine failed: {type(error).__name__}: {error}"))
            engine.sleep(lambda: self._closing)
        for flight in tuple(self._flights):
            engine.cancel(flight, UnspoolError("the AsyncLLM was closed before the request was done"))
        atexit.unregister(self.close)

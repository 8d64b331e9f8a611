"""Garbage collections are seen by whoever listens, by one callback, which is gone with the last."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator

import pytest

from dask_otel.seam import gc_pauses
from dask_otel.seam.gc_pauses import PauseLog, paused


@pytest.fixture(autouse=True)
def only_asked_for() -> Iterator[None]:
    """No collection but those that a test asks for."""
    enabled = gc.isenabled()
    gc.disable()
    before = list(gc.callbacks)
    yield
    assert gc.callbacks == before
    if enabled:
        gc.enable()


def ours() -> int:
    return gc.callbacks.count(gc_pauses._collector._called)


def test_each_log_has_every_pause_once_in_their_order() -> None:
    begun = time.perf_counter()
    first, second = PauseLog(), PauseLog()
    total = paused()
    for generation in (0, 1, 2):
        gc.collect(generation)
    pauses = first.take()
    assert [generation for _, _, generation in pauses] == [0, 1, 2]
    moments = [begun, *(moment for start, end, _ in pauses for moment in (start, end)), time.perf_counter()]
    assert moments == sorted(moments)
    assert paused() - total == pytest.approx(sum(end - start for start, end, _ in pauses), abs=1e-12)
    assert not first
    assert first.take() == []
    assert second.take() == pauses
    first.close()
    second.close()


def test_there_is_one_callback_until_the_last_has_gone() -> None:
    found = [ours()]
    logs = [PauseLog(), PauseLog()]
    found.append(ours())
    logs[0].close()
    found.append(ours())
    logs[1].close()
    found.append(ours())
    assert found == [0, 1, 1, 0]


def test_a_log_that_is_closed_gets_no_more() -> None:
    closed, open_ = PauseLog(), PauseLog()
    closed.close()
    gc.collect()
    assert (len(closed), len(open_)) == (0, 1)
    open_.close()


def test_a_log_holds_the_last_and_the_total_all() -> None:
    log, none = PauseLog(most=2), PauseLog(most=0)
    total = paused()
    for generation in (0, 1, 2):
        gc.collect(generation)
    assert [generation for _, _, generation in log] == [1, 2]
    assert not none
    assert paused() - total > sum(end - start for start, end, _ in log)
    log.close()
    none.close()


def test_a_collection_that_had_begun_is_left_out() -> None:
    log = PauseLog()
    gc_pauses._collector._called("stop", {"generation": 2})
    assert log.take() == []
    log.close()


def test_a_collection_in_any_thread_also_within_a_lock_of_ours_is_seen() -> None:
    log = PauseLog()

    def collect() -> None:
        with gc_pauses._collector._lock:
            gc.collect(1)

    thread = threading.Thread(target=collect)
    thread.start()
    thread.join(30)
    assert [generation for _, _, generation in log.take()] == [1]
    log.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_in_a_forked_child_nobody_listens_and_one_may_again() -> None:
    log = PauseLog()
    # Held by nobody in the child.
    with gc_pauses._collector._lock:
        child = os.fork()
        if not child:
            gone = ours() == 0
            again = PauseLog()
            gc.collect(1)
            os._exit(0 if gone and len(again) == 1 and not log else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gc.collect(0)
    assert len(log) == 1
    log.close()

"""Durations of attempts: few series, exact totals, bounded notes."""

from __future__ import annotations

from dask_otel import names
from dask_otel.distributions import Distributions, Exemplar, Histogram, Histograms
from dask_otel.durations import MAX_KINDS, MAX_NOTED, Kept, TaskDurations, TransferDurations
from dask_otel.folding import Folding
from dask_otel.instruments import INCOMING, TASK_DURATION

KEPT = Kept(b"t" * 16, b"s" * 8, 1000.0)


def snapshots(durations: TaskDurations) -> dict[tuple[str, ...], Histogram]:
    durations.count()
    return durations.snapshots()


def test_prefixes_that_are_not_given_out_are_folded_and_stay_so() -> None:
    folding, durations = Folding(limit=1), TaskDurations(Histograms())

    def folded() -> dict[tuple[str, ...], Histogram]:
        return folding.fold(snapshots(durations), 0, TASK_DURATION)

    durations.add("idle", names.SUCCESS, 0.5, "", None)
    durations.add("busy", names.SUCCESS, 1.0, "", None)
    folding.choose({"idle": 0.5, "busy": 1.0})
    assert {of: (one.total, one.sum) for of, one in folded().items()} == {
        ("busy", "success", "", ""): (1, 1.0),
        ("other", "success", "", ""): (1, 0.5),
    }
    for prefix in ("idle", "new", "busy"):
        durations.add(prefix, names.SUCCESS, 2.0, "", None)
    folding.choose({"idle": 100.0, "busy": 3.0, "new": 2.0})
    found = folded()
    assert {of: (one.total, one.sum, one.min, one.max) for of, one in found.items()} == {
        ("busy", "success", "", ""): (2, 3.0, 1.0, 2.0),
        ("other", "success", "", ""): (3, 4.5, 0.5, 2.0),
    }
    assert [sum(one.counts) for one in found.values()] == [one.total for one in found.values()]


def test_error_types_and_spans_of_a_prefix_are_few() -> None:
    durations = TaskDurations(Histograms())
    for n in range(MAX_KINDS):
        durations.add("inc", names.FAILED, 1.0, f"Error{n}", None)
    durations.add("inc", names.FAILED, 1.0, "Error", None, "load")
    durations.add("inc", names.SUCCESS, 1.0, "", None, "load")
    durations.add("add", names.FAILED, 1.0, "Error", None)
    found = snapshots(durations)
    of_errors = {("failed", f"Error{n}", "") for n in range(MAX_KINDS)}
    few = {("failed", names.OTHER_ERROR, ""), ("success", "", "")}
    assert {of[1:] for of in found if of[0] == "inc"} == of_errors | few
    assert {of[1:] for of in found if of[0] == "add"} == {("failed", "Error", "")}
    assert sum(one.total for one in found.values()) == MAX_KINDS + 3


def test_what_is_noted_is_bounded_and_nothing_is_missing() -> None:
    durations = TaskDurations(Histograms())
    for _ in range(3 * MAX_NOTED + 1):
        durations.add("inc", names.SUCCESS, 1.0, "", None)
        assert len(durations._noted) < MAX_NOTED
    assert snapshots(durations)["inc", "success", "", ""].total == 3 * MAX_NOTED + 1


def test_a_kept_span_is_an_exemplar_of_what_was_measured_in_it() -> None:
    durations, transfers = TaskDurations(Histograms()), TransferDurations(Histograms())
    durations.add("inc", names.SUCCESS, 0.2, "", KEPT)
    transfers.add(INCOMING, names.SUCCESS, 0.5, 1000, KEPT)
    (task,) = snapshots(durations).values()
    found = [task, *(of.snapshots()[key] for of, key in _of(transfers))]
    assert [one.exemplars for one in found] == [
        (Exemplar(value, 1000.0, b"t" * 16, b"s" * 8),) for value in (0.2, 0.5, 1000.0, 2000.0)
    ]
    assert snapshots(durations)["inc", "success", "", ""].exemplars == ()


def _of(transfers: TransferDurations) -> list[tuple[Distributions, tuple[str, ...]]]:
    both = (INCOMING, names.SUCCESS)
    return [(transfers.seconds, both), (transfers.bytes, both), (transfers.bandwidth, (INCOMING,))]


def test_a_transfer_in_which_nothing_came_has_no_size() -> None:
    transfers = TransferDurations(Histograms())
    transfers.add(INCOMING, names.MISSING, 0.5, None, None)
    transfers.add(INCOMING, names.SUCCESS, 0.0, 10, None)
    assert set(transfers.seconds.snapshots()) == {(INCOMING, "missing"), (INCOMING, "success")}
    assert set(transfers.bytes.snapshots()) == {(INCOMING, "success")}
    assert transfers.bandwidth.snapshots() == {}

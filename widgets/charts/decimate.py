"""Fewer points that look the same: drawing cost must not grow with the history."""

from __future__ import annotations

import numpy as np
import numpy.ma
from numpy.typing import NDArray

from widgets.charts.ring import Floats


def decimate(times: Floats, values: Floats, width: float, max_points: int) -> tuple[Floats, Floats]:
    """At most about `max_points` of a line that spans `width` seconds, extremes kept.

    Every bucket of time gives its smallest and its largest value in their order. Buckets are
    multiples of an absolute width: as time goes on they do not move against the data, so the line
    does not shimmer. A bucket with a gap (NaN) in it stays a gap.
    """
    count = len(times)
    if count <= max_points:
        return times, values
    bucket = width / (max_points // 2)
    index = np.floor(times / bucket).astype(np.int64)
    starts = np.flatnonzero(np.diff(index, prepend=index[0] - 1))
    if 2 * len(starts) > count:
        return times, values
    lows = np.minimum.reduceat(values, starts)  # NaN wins in minimum and maximum
    highs = np.maximum.reduceat(values, starts)
    ends = np.append(starts[1:], count) - 1
    rising = values[ends] >= values[starts]
    pairs = np.where(rising, (lows, highs), (highs, lows))
    at = np.stack((times[starts], times[ends]))
    return at.T.ravel(), pairs.T.ravel()


def pick_states(times: Floats, width: float, max_points: int) -> NDArray[np.intp]:
    """Indices of at most about `max_points` times: the newest of every bucket, and the first.

    For series that are drawn together (a stack), which must keep their common times.
    """
    count = len(times)
    if count <= max_points:
        return np.arange(count)
    bucket = np.floor(times / (width / max_points)).astype(np.int64)
    ends = np.flatnonzero(np.diff(bucket, append=bucket[-1] + 1))
    return np.union1d([0], ends)


def thin_samples(
    times: Floats, values: Floats, first_index: int, width: float, max_points: int
) -> tuple[Floats, Floats]:
    """At most about `max_points` of a cloud of samples, the outliers kept.

    A sample is chosen by its running number (`first_index` is that of times[0]), so that those
    chosen stay the same from one redraw to the next; the largest sample of every bucket of time is
    added, since a spike is what one looks for.
    """
    count = len(times)
    if count <= max_points:
        return times, values
    num_buckets = max_points // 4
    stride = 1
    while count // stride > max_points - num_buckets:
        stride *= 2
    chosen = np.arange(-first_index % stride, count, stride)
    bucket = np.floor(times / (width / num_buckets)).astype(np.int64)
    starts = np.flatnonzero(np.diff(bucket, prepend=bucket[0] - 1))
    largest = np.maximum.reduceat(values, starts)
    of_bucket = np.repeat(np.arange(len(starts)), np.diff(starts, append=count))
    peaks = np.flatnonzero(values == largest[of_bucket])
    _, first = np.unique(of_bucket[peaks], return_index=True)  # one peak a bucket, if equal ones
    keep = np.union1d(chosen, peaks[first])
    return times[keep], values[keep]


def before_silences(times: Floats, longest: float) -> NDArray[np.intp]:
    """Indices of the values after which there is none for longer than `longest` seconds."""
    return np.flatnonzero(np.diff(times) > longest)


def as_steps(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """A line that holds each value until it changes: counts have no slopes."""
    if len(values) < 2:
        return times, values
    changed = np.flatnonzero(values[1:] != values[:-1]) + 1
    at = np.concatenate(([times[0]], np.repeat(times[changed], 2), [times[-1]]))
    return at, np.repeat(values[np.concatenate(([0], changed))], 2)

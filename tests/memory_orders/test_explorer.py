"""The explorer knows what C++'s memory model allows, by the litmus tests of the literature."""

import pytest
from explorer import (
    ACQ_REL,
    ACQUIRE,
    RELAXED,
    RELEASE,
    SEQ_CST,
    Await,
    Fence,
    Found,
    Load,
    Sleep,
    Store,
    Update,
    explore,
)


def outcomes(threads):
    """The results of all loads of two threads, in every execution."""
    found = set()

    def recorded(number, body):
        def thread():
            results = yield from body()
            for i, result in enumerate(results):
                yield Store(f"result {number}.{i}", result, SEQ_CST)
            yield Update("ended", lambda n: n + 1)

        return thread

    def collect():
        yield Await("ended", lambda n: n == len(threads))
        values = []
        for number, count in enumerate(counts):
            for i in range(count):
                values.append((yield Load(f"result {number}.{i}", SEQ_CST)))
        found.add(tuple(values))

    counts = [body.loads for body in threads]
    explore([*(recorded(i, body) for i, body in enumerate(threads)), collect])
    return found


def body(loads):
    def mark(function):
        function.loads = loads
        return function

    return mark


def store_buffering(order_of_stores, order_of_loads):
    def thread(own, other):
        @body(1)
        def run():
            yield Store(own, 1, order_of_stores)
            return [(yield Load(other, order_of_loads))]

        return run

    return outcomes([thread("x", "y"), thread("y", "x")])


def test_store_buffering_needs_sequential_consistency():
    assert (0, 0) in store_buffering(RELEASE, ACQUIRE)
    assert (0, 0) in store_buffering(SEQ_CST, ACQUIRE)
    assert (0, 0) in store_buffering(RELEASE, SEQ_CST)
    assert store_buffering(SEQ_CST, SEQ_CST) == {(0, 1), (1, 0), (1, 1)}


def message_passing(store, load, fences=False):
    @body(0)
    def writer():
        yield Store("x", 1, RELAXED)
        if fences:
            yield Fence(RELEASE)
        yield Store("y", 1, store)
        return []

    @body(2)
    def reader():
        flag = yield Load("y", load)
        if fences:
            yield Fence(ACQUIRE)
        return [flag, (yield Load("x", RELAXED))]

    return outcomes([writer, reader])


def test_message_passing_needs_release_and_acquire_or_two_fences():
    assert (1, 0) not in message_passing(RELEASE, ACQUIRE)
    assert (1, 0) in message_passing(RELAXED, ACQUIRE)
    assert (1, 0) in message_passing(RELEASE, RELAXED)
    assert (1, 0) not in message_passing(RELAXED, RELAXED, fences=True)


@pytest.mark.parametrize("order", [RELAXED, SEQ_CST])
def test_a_relaxed_store_may_be_seen_before_the_sequentially_consistent_one_in_front_of_it(order):
    """x86 never shows that. Such a store orders what comes before it, not what comes behind. A sequentially
    consistent load changes nothing: the one order of such accesses says nothing of the others."""

    @body(0)
    def writer():
        yield Store("x", 1, SEQ_CST)
        yield Store("y", 1, RELAXED)
        return []

    @body(2)
    def reader():
        later = yield Load("y", RELAXED)
        yield Fence(ACQUIRE)
        return [later, (yield Load("x", order))]

    assert (1, 0) in outcomes([writer, reader])


@pytest.mark.parametrize(("order", "allowed"), [(ACQUIRE, True), (SEQ_CST, False)])
def test_independent_readers_agree_on_the_order_only_if_it_is_sequentially_consistent(order, allowed):
    def writer(place):
        @body(0)
        def run():
            yield Store(place, 1, SEQ_CST if order is SEQ_CST else RELEASE)
            return []

        return run

    def reader(first, second):
        @body(2)
        def run():
            return [(yield Load(first, order)), (yield Load(second, order))]

        return run

    found = outcomes([writer("x"), writer("y"), reader("x", "y"), reader("y", "x")])
    assert ((1, 0, 1, 0) in found) is allowed


def test_a_location_is_coherent():
    @body(0)
    def writer():
        yield Store("x", 1, RELAXED)
        yield Store("x", 2, RELAXED)
        return []

    @body(2)
    def reader():
        return [(yield Load("x", RELAXED)), (yield Load("x", RELAXED))]

    assert outcomes([writer, reader]) == {(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)}


def test_updates_are_atomic_and_go_on_with_a_release_sequence():
    @body(0)
    def writer():
        yield Store("data", 1, RELAXED)
        yield Update("x", lambda n: n + 1, RELEASE)
        return []

    @body(0)
    def relay():
        yield Update("x", lambda n: n + 1, RELAXED)
        return []

    @body(2)
    def reader():
        return [(yield Load("x", ACQUIRE)), (yield Load("data", RELAXED))]

    found = outcomes([writer, relay, reader])
    assert (2, 1) in found
    assert (2, 0) not in found


def test_plain_accesses_race_unless_they_are_ordered():
    def writes():
        yield Store("data", 1)

    def reads():
        yield Load("data")

    def orderly():
        yield Update("lock", lambda n: 1 if n == 0 else None, ACQ_REL)

    with pytest.raises(Found, match=r"reads data while|writes data while"):
        explore([writes, reads])
    with pytest.raises(Found, match="writes data while"):
        explore([writes, writes])
    assert explore([reads, reads]).ends == 1
    assert explore([writes, orderly]).ends >= 1


def test_a_read_after_a_write_must_be_seen_by_the_next_write():
    def reads_twice():
        yield Load("data")
        yield Store("flag", 1, RELEASE)
        yield Load("data")

    def writes():
        yield Await("flag", lambda n: n == 1, ACQUIRE)
        yield Store("data", 1)

    with pytest.raises(Found, match="data while"):
        explore([reads_twice, writes])


def test_a_sleeper_that_nobody_wakes_is_found():
    def sleeper():
        yield Sleep("word", 0)

    with pytest.raises(Found, match="wait for ever: thread 0 in sleep word"):
        explore([sleeper])


def test_a_program_without_end_is_refused():
    def endless():
        while True:
            yield Update("x", lambda n: n + 1, RELAXED)

    with pytest.raises(RuntimeError, match="more than 50 states"):
        explore([endless], most=50)

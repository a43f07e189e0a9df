"""The protocols between threads and processes whose comments claim that accesses pair."""

from functools import partial

from explorer import (
    ACQ_REL,
    ACQUIRE,
    RELAXED,
    RELEASE,
    SEQ_CST,
    Await,
    Fence,
    Load,
    Sleep,
    Store,
    Update,
)
from protocol import Access, Protocol

# Every access by which a thread says that it sleeps or begins, and then looks for news.
ANNOUNCES = Access(SEQ_CST, (RELEASE, RELAXED))
LOOKS = Access(SEQ_CST, (ACQUIRE, RELAXED))
PUBLISHES = Access(SEQ_CST, (RELAXED,))
AWAITS = Access(SEQ_CST, (RELAXED,))


# --- a flag, and the rank that sleeps until it is set ---


def flag(orders):
    def waker():
        yield Store("data", 1)
        yield Store("flag", 1, orders["flag.store"])
        if (yield Load("sleepers", orders["sleepers.load"])) != 0:
            yield Update("wakeups", lambda n: n + 1)

    def sleeper():
        while True:
            seen = yield Load("wakeups", SEQ_CST)
            yield Update("sleepers", lambda n: n + 1, orders["sleepers.fetch_add"])
            if (yield Load("flag", orders["flag.load"])) == 1:
                break
            yield Sleep("wakeups", seen)
            yield Update("sleepers", lambda n: n - 1)
        assert (yield Load("data")) == 1, "the flag without the data"

    return [waker, sleeper]


FLAG = Protocol(
    "flag_and_sleeper",
    {
        "transport/shared/flags.hpp": (
            "flag.store(value);",
            "if (line.sleepers.load() != 0) wake_sleepers(line);",
            "return flag.load();",
        ),
        "transport/host/waiter.cpp": (
            "const std::uint32_t seen = line.wakeups.load();",
            "line.sleepers.fetch_add(1);",
            "if (!ready() && !failures_.happened() && left.count() > 0) {",
        ),
    },
    {
        "flag.store": ANNOUNCES,
        "sleepers.load": LOOKS,
        "sleepers.fetch_add": Access(SEQ_CST, (ACQ_REL, RELAXED)),
        "flag.load": LOOKS,
    },
    flag,
)


def message_thread(orders, sees_first=True):
    def peer():
        yield Store("packet", 1)
        yield Store("written", 1, orders["written.store"])
        if (yield Load("sleep", orders["sleep.load"])) != 1:
            return
        if (yield Update("sleep", lambda state: 0 if state == 1 else None)) == 1:
            yield Update("wakeups", lambda n: n + 1)

    def thread():
        while True:
            seen = (yield Load("wakeups", SEQ_CST)) if sees_first else 0
            yield Store("sleep", 1, orders["sleep.store"])
            if (yield Load("written", orders["written.load"])) == 1:
                break
            if not sees_first:
                seen = yield Load("wakeups", SEQ_CST)
            yield Sleep("wakeups", seen)
            yield Store("sleep", 0, SEQ_CST)
        assert (yield Load("packet")) == 1, "the counter without the packet"

    return [peer, thread]


MESSAGE_THREAD = Protocol(
    "sleep_of_the_message_thread",
    {
        "transport/shared/message_channel.cpp": (
            "channel_.counters->written.store(written_);",
            "std::uint32_t state = line.sleep.load();",
            "if (!line.sleep.compare_exchange_strong(state, MessageLine::awake)) return;",
            "line.wakeups.fetch_add(1);",
            "const std::uint64_t there = channel_.counters->written.load() - read_;",
        ),
        "transport/messages/message_engine_thread.cpp": (
            "const std::uint32_t seen = line_.wakeups.load();",
            "line_.sleep.store(under_way() ? MessageLine::waiting",
            "if (!news && time.count() > 0) {",
            "sleep_for_messages(line_, seen, time);",
        ),
    },
    {
        "written.store": ANNOUNCES,
        "sleep.load": LOOKS,
        "sleep.store": ANNOUNCES,
        "written.load": LOOKS,
    },
    message_thread,
    {"the futex word is read after the look": partial(message_thread, sees_first=False)},
)


# --- slots ---


def operation_start(orders, slots=2):
    def rank(own, peer):
        for number in (1, 2, 3):
            yield Store(f"slot {own}.{number % slots}", number)
            yield Store(f"sequence {own}.{number % slots}", number, orders["sequence.store"])
            yield Await(
                f"sequence {peer}.{number % slots}", lambda n, k=number: n == k, orders["sequence.load"]
            )
            found = yield Load(f"slot {peer}.{number % slots}")
            assert found == number, "the announcement of another operation"

    return [partial(rank, 0, 1), partial(rank, 1, 0)]


OPERATION_START = Protocol(
    "slots_of_announcements",
    {
        "transport/host/operation_start.cpp": (
            "own.sequence.store(operation_.sequence());",
            "while (arrived < ranks && read(slot(arrived).sequence) == number) ++arrived;",
            "return group_.host.line(index).operations[operation_.sequence() & 1];",
        ),
        "transport/shared/control_memory.hpp": ("OperationSlot operations[2];",),
    },
    {"sequence.store": PUBLISHES, "sequence.load": AWAITS},
    operation_start,
    {"one slot": partial(operation_start, slots=1)},
)


def ring_slots(orders, slots=2, allowed=2):
    blocks = 3

    def sender():
        for block in range(blocks):
            yield Await("consumed", lambda n, k=block: k - n < allowed, orders["consumed.load"])
            yield Store(f"slot {block % slots}", block + 1)
            yield Store("posted", block + 1, orders["posted.store"])
        yield Await("consumed", lambda n: n == blocks, orders["consumed.load"])
        yield Store("slot 0", 0)

    def receiver():
        for block in range(blocks):
            yield Await("posted", lambda n, k=block: n > k, orders["posted.load"])
            assert (yield Load(f"slot {block % slots}")) == block + 1, "another block"
            yield Store("consumed", block + 1, orders["consumed.store"])

    return [sender, receiver]


SLOT_ORDERS = {
    "posted.store": PUBLISHES,
    "posted.load": AWAITS,
    "consumed.store": PUBLISHES,
    "consumed.load": AWAITS,
}
RING_SLOTS = Protocol(
    "slots_of_the_ring",
    {
        "transport/host/mapped_link.cpp": (
            "const auto ready = [&] { return posted_ - read(peer_.consumed) < kSlots; };",
            "publish(own_.posted, ++posted_, peer_);",
            "waiter_.until([&] { return read(peer_.posted) > consumed_; }, left_",
            "publish(own_.consumed, ++consumed_, peer_);",
        )
    },
    SLOT_ORDERS,
    ring_slots,
    {"one block too many": partial(ring_slots, allowed=3)},
)
MESSAGE_SLOTS = Protocol(
    "slots_of_messages",
    {
        "transport/shared/message_channel.cpp": (
            "const bool full = posted_ - channel_.counters->released.load() >= MessageChannel::kSlots;",
            "channel_.counters->posted.store(++posted_);",
            "return channel_.counters->posted.load() == released_ ? nullptr : channel_.slot(released_);",
            "channel_.counters->released.store(++released_);",
        )
    },
    SLOT_ORDERS,
    ring_slots,
)


# --- hand-over: of work items, of memory that was lent, and of results ---


def work_items(orders):
    def rank(own):
        done = 0
        yield Store(f"phase {own}", 1, orders["phase.store"])
        for item in (own, 1 - own):
            if (yield Update(f"claimed {item}", lambda n: 1 if n == 0 else None, orders["claimed"])) == 0:
                yield Store(f"item {item}", 1)
                yield Update("done", lambda n: n + 1, orders["done"])
                done += 1
            elif item == own:
                # The other rank has claimed it, so it must be seen to be at work.
                assert (yield Load(f"phase {1 - own}", orders["phase.load"])) == 1, "claimed by nobody"
        yield Await("done", lambda n: n == 2, orders["done.load"])
        for item in (0, 1):
            assert (yield Load(f"item {item}")) == 1, "an item that is not done"

    return [partial(rank, 0), partial(rank, 1)]


WORK_ITEMS = Protocol(
    "hand_over_of_work_items",
    {
        "transport/host/mapped_peers.cpp": (
            "phase.store(number(kSharing));",
            "if (claimed.compare_exchange_weak(seen, wanted)) return true;",
            "while (!done.compare_exchange_weak(seen, next));",
            "const auto ready = [&] { return read(group_.host.work_items_done()) >= all; };",
        )
    },
    {
        "phase.store": Access(SEQ_CST),
        "phase.load": Access(SEQ_CST),
        "claimed": Access(SEQ_CST, (RELAXED,)),
        "done": Access(SEQ_CST, (RELAXED, ACQUIRE)),
        "done.load": AWAITS,
    },
    work_items,
)


def barrier(orders, resets_first=True):
    size = 2

    def process(own):
        for round_number in (1, 2):
            yield Store(f"data {own}", round_number)
            turn = yield Load("turn", SEQ_CST)
            if (yield Update("arrived", lambda n: n + 1, orders["arrived.fetch_add"])) + 1 == size:
                if resets_first:
                    yield Store("arrived", 0, orders["arrived.store"])
                yield Store("turn", turn + 1, orders["turn.store"])
                if not resets_first:
                    yield Store("arrived", 0, orders["arrived.store"])
            yield Await("turn", lambda n, k=turn: n != k, orders["turn.load"])
            assert (yield Load(f"data {1 - own}")) == round_number, "before the other has arrived"
            # The second barrier of a round lets nobody write while others read.
            turn = yield Load("turn", SEQ_CST)
            if (yield Update("arrived", lambda n: n + 1, orders["arrived.fetch_add"])) + 1 == size:
                yield Store("arrived", 0, orders["arrived.store"])
                yield Store("turn", turn + 1, orders["turn.store"])
            yield Await("turn", lambda n, k=turn: n != k, orders["turn.load"])

    return [partial(process, 0), partial(process, 1)]


BARRIER = Protocol(
    "host_barrier",
    {
        "csrc_pg/benchmark/host_barrier.cpp": (
            "const std::uint32_t turn = words_.turn.load();",
            "if (words_.arrived.fetch_add(1) + 1 == size_) {",
            "words_.arrived.store(0);",
            "words_.turn.store(turn + 1);",
        )
    },
    {
        "arrived.fetch_add": Access(SEQ_CST, (RELAXED, ACQUIRE, RELEASE)),
        "arrived.store": Access(SEQ_CST),
        "turn.store": PUBLISHES,
        "turn.load": AWAITS,
    },
    barrier,
    {"the turn ends before the count is reset": partial(barrier, resets_first=False)},
)


def lent_block(orders):
    def receiver():
        yield Load("memory")
        yield Update("entry", lambda messages: messages - 1, orders["take_off"])

    def owner():
        yield Await("entry", lambda messages: messages == -1, orders["entry.load"])
        yield Store("memory", 2)

    return [receiver, owner]


LENT_BLOCK = Protocol(
    "lent_block",
    {
        "csrc_device/runtime/sharing/ledger.cpp": (
            "!entry.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,",
            "if (messages_of(entry.load(std::memory_order_acquire)) != 0) return false;",
        )
    },
    {"take_off": Access(ACQ_REL, (ACQUIRE, RELAXED)), "entry.load": Access(ACQUIRE, (RELAXED,))},
    lent_block,
)


def completion(orders):
    def stream():
        yield Store("result", 1)
        yield Store("failures", 1)
        yield Store("reached", 1, orders["store"])

    def waiter():
        yield Await("reached", lambda n: n == 1, orders["load"])
        assert (yield Load("failures")) == 1
        assert (yield Load("result")) == 1

    return [stream, waiter]


PAIR = {"store": Access(RELEASE, (RELAXED,)), "load": Access(ACQUIRE, (RELAXED,))}
COMPLETION = Protocol(
    "completion_of_a_stream",
    {
        "csrc_device/runtime/queues/completion.hpp": (
            "return reached_at.load(std::memory_order_acquire) != 0;",
            "reached_at.store(now, std::memory_order_release);",
        ),
        "csrc_device/runtime/queues/queue_items.hpp": (
            "return finished_.load(std::memory_order_acquire) >= sequence;",
        ),
        "csrc_device/runtime/queues/queue_items.cpp": (
            "finished_.store(item.sequence, std::memory_order_release);",
        ),
    },
    PAIR,
    completion,
)


def region_table(orders):
    def owner():
        yield Store("entry", 1)
        yield Store("table.count", 1, orders["store"])
        # The message that names the region goes through the channel.
        yield Store("packet", 1, SEQ_CST)

    def peer():
        yield Await("packet", lambda n: n == 1, SEQ_CST)
        assert (yield Load("table.count", orders["load"])) == 1, "a message in a region that is not there"
        assert (yield Load("entry")) == 1

    return [owner, peer]


REGION_TABLE = Protocol(
    "table_of_regions",
    {
        "transport/messages/message_regions.cpp": (
            "table.count.store(number + 1, std::memory_order_release);",
            "if (region >= table.count.load(std::memory_order_acquire)) return false;",
        )
    },
    # The packet's counter orders the two more than enough, so that no weaker order could be found here.
    {"store": Access(RELEASE), "load": Access(ACQUIRE)},
    region_table,
)


# --- failures ---


def failure_record(orders):
    def fails(number):
        if (yield Update("state", lambda n: 1 if n == 0 else None, orders["claim"])) == 0:
            yield Store("text", number)
            yield Store("state", 2, orders["state.store"])

    def reads():
        yield Await("state", lambda n: n == 2, orders["state.load"])
        assert (yield Load("text")) in (1, 2)

    return [partial(fails, 1), partial(fails, 2), reads]


FAILURE_RECORD = Protocol(
    "failure_record",
    {
        "transport/state/recorded_failure.cpp": (
            "if (!record_.state.compare_exchange_strong(expected, FailureRecord::writing)) return false;",
            "record_.state.store(FailureRecord::set);",
            "while (record_.state.load(std::memory_order_acquire) != FailureRecord::set) {",
        )
    },
    {
        "claim": Access(SEQ_CST),
        "state.store": Access(SEQ_CST, (RELAXED,)),
        "state.load": Access(ACQUIRE, (RELAXED,)),
    },
    failure_record,
)


def failure_at_begin(orders, waits=True):
    """A rank that gives up either is seen, or sees the ranks that have begun and waits for them."""

    def gives_up():
        yield Update("state", lambda n: 1 if n == 0 else None, orders["claim"])
        yield Store("withdrawn", 1, orders["withdrawn.store"])
        if (yield Load("sequence", orders["sequence.load"])) == 1 and waits:
            yield Await("phase", lambda n: n == 1, orders["phase.load"])
        yield Store("memory", 2)

    def begins():
        yield Store("sequence", 1, orders["sequence.store"])
        failed = yield Load("state", orders["state.load"])
        if failed == 0 or (yield Load("withdrawn", orders["withdrawn.load"])) == 0:
            yield Load("memory")
        yield Store("phase", 1, orders["phase.store"])

    return [gives_up, begins]


FAILURE_AT_BEGIN = Protocol(
    "failure_at_the_begin_of_an_operation",
    {
        "transport/state/recorded_failure.hpp": ("return record_.state.load() != FailureRecord::none;",),
        "transport/host/operation_start.cpp": (
            "own.sequence.store(operation_.sequence());",
            "check_given_up(group_, operation_, failures_);",
        ),
        "transport/host/given_up.cpp": (
            "if (!failures.happened()) return;",
            "if (read(group.host.line(i).phase) == withdrawn) failures.check();",
        ),
        "transport/host/mapped_peers.cpp": (
            "arrive(RankLine::kWithdrawn);",
            "return read(start_.announced(peer).sequence) != operation_.sequence() ||",
            "group_.own_line().phase.store(number(phase));",
        ),
    },
    {
        "claim": Access(SEQ_CST, (ACQ_REL, RELAXED)),
        "sequence.load": LOOKS,
        "sequence.store": ANNOUNCES,
        "state.load": LOOKS,
        "withdrawn.store": ANNOUNCES,
        "withdrawn.load": LOOKS,
        "phase.store": PUBLISHES,
        "phase.load": AWAITS,
    },
    failure_at_begin,
    {"the rank that gives up does not wait": partial(failure_at_begin, waits=False)},
)


def memory_taken_back(orders, sender_fence=True, reader_fence=True):
    """A reader that has read a later content of the memory sees that its owner has given up."""

    def owner():
        yield Update("state", lambda n: 1 if n == 0 else None, orders["state"])
        yield Store("phase", 1, orders["phase.store"])
        if sender_fence:
            yield Fence(RELEASE)
        yield Store("memory", 2, RELAXED)

    def reader():
        found = yield Load("memory", RELAXED)
        if reader_fence:
            yield Fence(ACQUIRE)
        failed = yield Load("state", orders["state.load"])
        withdrawn = yield Load("phase", orders["phase.load"])
        assert found == 0 or (failed == 1 and withdrawn == 1), "a result of which a part was overwritten"

    return [owner, reader]


MEMORY_TAKEN_BACK = Protocol(
    "memory_taken_back",
    {
        "transport/shared/taken_back.hpp": (
            "std::atomic_thread_fence(std::memory_order_acquire);",
            "std::atomic_thread_fence(std::memory_order_release);",
        ),
        "transport/messages/mapped_port.cpp": (
            "finish_reads(); const bool left =",
            "if (left || failures_.happened()) continue;",
        ),
        "transport/messages/message_engine.cpp": ("announce_before_writes();",),
        "transport/host/mapped_peers.cpp": (
            "arrive(RankLine::kWithdrawn);",
            "announce_before_writes(); }",
            "check_reads(group_, operation_, failures_);",
        ),
        "transport/host/given_up.cpp": (
            "finish_reads();",
            "if (!failures.happened()) return;",
        ),
        "transport/links/remote_blocks.cpp": (
            "check_reads(links_.group(), links_.operation(), links_.failures());",
        ),
    },
    # The fences order enough, whatever the orders of the accesses are.
    {
        "state": Access(SEQ_CST),
        "state.load": Access(SEQ_CST),
        "phase.store": Access(SEQ_CST),
        "phase.load": Access(SEQ_CST),
    },
    memory_taken_back,
    {
        "the owner has no fence": partial(memory_taken_back, sender_fence=False),
        "the reader has no fence": partial(memory_taken_back, reader_fence=False),
    },
)


# --- others ---


def wait_record(orders):
    def writer():
        for version in (2, 4):
            yield Store("version", version - 1, RELAXED)
            for word in ("a", "b"):
                yield Store(word, version, orders["words.store"])
            yield Store("version", version, orders["version.store"])

    def reader():
        version = yield Load("version", orders["version.load"])
        if version == 0 or version % 2 == 1:
            return
        words = []
        for word in ("a", "b"):
            words.append((yield Load(word, orders["words.load"])))
        if (yield Load("version", RELAXED)) == version:
            assert words == [version, version], "words of two versions"

    return [writer, reader]


WAIT_RECORD = Protocol(
    "record_of_waits",
    {
        "transport/shared/wait_record.cpp": (
            "version_.store(version - 1, std::memory_order_relaxed);",
            "words_[i].store(words[i], std::memory_order_release);",
            "version_.store(version, std::memory_order_release);",
            "const std::uint64_t version = version_.load(std::memory_order_acquire);",
            "words[i] = words_[i].load(std::memory_order_acquire);",
            "if (version_.load(std::memory_order_relaxed) != version) return copy;",
        )
    },
    {
        "words.store": Access(RELEASE, (RELAXED,)),
        "version.store": Access(RELEASE, (RELAXED,)),
        "version.load": Access(ACQUIRE, (RELAXED,)),
        "words.load": Access(ACQUIRE, (RELAXED,)),
    },
    wait_record,
)


def reservation(orders, bytes_first=True):
    """Two processes reserve the whole of a card without the table's lock. One of them takes over the entry of
    a process that had other cards. The other must not take its bytes for those of other cards."""

    def enters():
        yield Store("cards", 1, RELAXED)
        yield Store("noted 0", 1, orders["noted.store"])
        if (yield Load("noted 1", orders["noted.load"])) == 0:
            yield Update("granted", lambda n: n + 1)
            assert (yield Load("granted", SEQ_CST)) < 2, "granted twice"

    def reserves():
        yield Store("noted 1", 1, orders["noted.store"])
        if bytes_first:
            noted = yield Load("noted 0", orders["noted.load"])
            same = yield Load("cards", RELAXED)
        else:
            same = yield Load("cards", RELAXED)
            noted = yield Load("noted 0", orders["noted.load"])
        if noted * same == 0:
            yield Update("granted", lambda n: n + 1)
            assert (yield Load("granted", SEQ_CST)) < 2, "granted twice"

    return [enters, reserves]


RESERVATION = Protocol(
    "reservation_of_card_memory",
    {
        "csrc_device/runtime/memory/usage_table.cpp": (
            "noted.store(mine + bytes);",
            "const std::size_t bytes = entry.bytes[static_cast<std::size_t>(card)].load();",
            "if (entry.host == cards_.host && entry.capacity == cards_.capacity) all += bytes;",
        )
    },
    {"noted.store": ANNOUNCES, "noted.load": LOOKS},
    reservation,
    {"the cards are read before the bytes": partial(reservation, bytes_first=False)},
)


def timer(orders):
    """A queue with a deferred task is found by the timer's thread, or sets the timer."""

    def queue():
        yield Update("waiting", lambda n: n + 1, orders["waiting.fetch_add"])
        if (yield Load("due", orders["due.load"])) == 0:
            yield Update("found", lambda n: n + 1)

    def thread():
        yield Store("due", 0, orders["due.store"])
        if (yield Load("waiting", orders["waiting.load"])) > 0:
            yield Update("found", lambda n: n + 1)

    def start():
        yield Store("due", 1, SEQ_CST)
        yield Store("started", 1, SEQ_CST)

    def after_start(body):
        yield Await("started", lambda n: n == 1)
        yield from body()
        yield Update("ended", lambda n: n + 1)

    def check():
        yield Await("ended", lambda n: n == 2)
        assert (yield Load("found", SEQ_CST)) > 0, "a task that nobody runs"

    return [start, partial(after_start, queue), partial(after_start, thread), check]


TIMER = Protocol(
    "timer_of_deferred_tasks",
    {
        "csrc_device/runtime/queues/deferred_task_timer.cpp": (
            "const bool is_first = waiting_.fetch_add(1) == 0;",
            "const std::int64_t due = due_.load();",
            "due_.store(0);",
            "const bool left_alone = waiting_.load() > 0",
        )
    },
    {
        "waiting.fetch_add": Access(SEQ_CST, (ACQ_REL, RELAXED)),
        "due.load": LOOKS,
        "due.store": ANNOUNCES,
        "waiting.load": LOOKS,
    },
    timer,
)

PROTOCOLS = [
    FLAG,
    MESSAGE_THREAD,
    OPERATION_START,
    RING_SLOTS,
    MESSAGE_SLOTS,
    WORK_ITEMS,
    BARRIER,
    LENT_BLOCK,
    COMPLETION,
    REGION_TABLE,
    FAILURE_RECORD,
    FAILURE_AT_BEGIN,
    MEMORY_TAKEN_BACK,
    WAIT_RECORD,
    RESERVATION,
    TIMER,
]

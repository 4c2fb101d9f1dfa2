"""Wake-ups: after the commit only, together, and between processes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator

import pytest

from milepost.domain.events import RunStarted, StreamKind
from milepost.domain.turns import Turn
from milepost.ports.ledger import Delta, LedgerTx, NewEvent, OutboxKind
from milepost.ports.notifier import OUTBOX_TOPIC, Notifier, stop_topic
from milepost.storage import Hub, PgNotifier, open_ledger
from milepost.storage.pg_notifier import MAX_BUFFERED, MAX_PAYLOAD_BYTES, payloads
from tests.ledger.samples import in_parallel, new_turn, sql
from tests.support.databases import OpenLedger

SOON = 20.0
NOT = 0.05


async def test_a_subscriber_wakes_for_its_topics_only() -> None:
    hub = Hub()
    first, both = hub.subscribe("a"), hub.subscribe("a", "b")
    hub.publish(frozenset({"b", "c"}))
    assert await both.wait(SOON)
    assert not await first.wait(NOT)
    hub.publish(frozenset({"a"}))
    assert await first.wait(SOON)
    assert await both.wait(SOON)


async def test_wake_ups_before_the_wait_are_not_lost_and_are_one() -> None:
    hub = Hub()
    subscription = hub.subscribe("a")
    for _ in range(1000):
        hub.publish(frozenset({"a"}))
    assert await subscription.wait(SOON)
    assert not await subscription.wait(NOT)


async def test_a_closed_subscription_leaves_nothing_behind() -> None:
    hub = Hub()
    kept, closed = hub.subscribe("a", "b"), hub.subscribe("a", "c")
    closed.close()
    closed.close()
    hub.publish(frozenset({"a", "c"}))
    assert not await closed.wait(NOT)
    assert await kept.wait(SOON)
    kept.close()
    assert hub._subscriptions == {}


async def test_threads_may_publish() -> None:
    hub = Hub()
    subscription = hub.subscribe("t")
    woken = 0

    def publish() -> None:
        for _ in range(200):
            hub.publish(frozenset({"t"}))

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        woken += await subscription.wait(0.01)
    for thread in threads:
        thread.join()
    woken += await subscription.wait(NOT)
    assert woken >= 1
    hub.publish(frozenset({"t"}))  # still works after the storm
    assert await subscription.wait(SOON)


class _Recorder(Hub):
    """Keeps every set of topics that was published, and what the ledger held by then."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[frozenset[str]] = []

    def publish(self, topics: frozenset[str]) -> None:
        self.published.append(topics)
        super().publish(topics)


@pytest.fixture
async def recorded(ledger_url: str) -> AsyncIterator[tuple[OpenLedger, _Recorder]]:
    recorder = _Recorder()
    ledger = await open_ledger(ledger_url, recorder)
    yield OpenLedger(ledger, recorder, ledger_url), recorder
    await ledger.close()


async def test_topics_are_published_after_the_commit(recorded: tuple[OpenLedger, _Recorder]) -> None:
    opened, recorder = recorded

    def body(tx: LedgerTx) -> int:
        tx.notify("mine")
        tx.events.append("run_1", StreamKind.RUN, [NewEvent("k", RunStarted("r", "a", {}))], 1)
        return len(recorder.published)

    seen: list[int] = []

    def publish(topics: frozenset[str]) -> None:
        seen.append(sql(opened.url, "SELECT count(*) FROM events")[0][0])

    recorder.publish = publish  # type: ignore[method-assign]
    assert await opened.ledger.write(body) == 0
    assert seen == [1]


async def test_topics_of_a_rolled_back_body_are_not_published(recorded: tuple[OpenLedger, _Recorder]) -> None:
    opened, recorder = recorded

    async def write(n: int) -> None:
        def body(tx: LedgerTx) -> None:
            tx.notify(f"topic{n}")
            if n % 2:
                raise LookupError

        await opened.ledger.write(body)

    await in_parallel(20, write)
    assert frozenset().union(*recorder.published) == {f"topic{n}" for n in range(0, 20, 2)}


async def test_what_changes_wakes_who_watches_it(recorded: tuple[OpenLedger, _Recorder]) -> None:
    opened, recorder = recorded
    turn: Turn = await new_turn(opened.ledger)
    delta = Delta(turn.turn_id, "a", "e", 1, "text", 0, "x")

    async def topics(body: object) -> set[str]:
        recorder.published.clear()
        await opened.ledger.write(body)  # type: ignore[arg-type]
        return set().union(*recorder.published)

    assert await topics(lambda tx: tx.deltas.add(turn.session_id, [delta], 1)) == {turn.session_id}
    assert await topics(lambda tx: tx.outbox.add(OutboxKind.CANCEL_TURN, turn.turn_id, 1)) == {OUTBOX_TOPIC}
    assert await topics(lambda tx: tx.outbox.add(OutboxKind.CANCEL_TURN, turn.turn_id, 1)) == set()
    assert await topics(lambda tx: tx.turns.request_stop(turn.turn_id, 1)) == {stop_topic(turn.turn_id)}
    assert await topics(lambda tx: tx.leases.acquire("a", "b", 1, 1)) == set()
    new = [NewEvent("k", RunStarted("r", "a", {}))]
    assert await topics(lambda tx: tx.events.append("run_1", StreamKind.RUN, new, 1)) == {"run_1"}
    assert await topics(lambda tx: tx.events.append("run_1", StreamKind.RUN, new, 1)) == set()


# --- between processes ------------------------------------------------------------------------------------------


@pytest.fixture
async def pair(postgres_url: str) -> AsyncIterator[tuple[PgNotifier, PgNotifier]]:
    """Two notifiers on one database, as two processes have them."""
    one, two = PgNotifier(postgres_url), PgNotifier(postgres_url)
    assert await one.listening(SOON)
    assert await two.listening(SOON)
    yield one, two
    await one.close()
    await two.close()


@pytest.mark.postgres
async def test_another_process_is_woken(pair: tuple[PgNotifier, PgNotifier]) -> None:
    one, two = pair
    local, remote, other = one.subscribe("a"), two.subscribe("a"), two.subscribe("b")
    await other.wait(NOT)
    one.publish(frozenset({"a"}))
    assert await local.wait(SOON)
    assert await remote.wait(SOON)
    assert not await other.wait(NOT)
    assert not await local.wait(NOT)  # its own NOTIFY does not come back as a second wake-up
    two.publish(frozenset({"a"}))
    assert await local.wait(SOON)


@pytest.mark.postgres
async def test_a_ledger_wakes_the_readers_of_another_process(
    postgres_url: str, pair: tuple[Notifier, Notifier]
) -> None:
    ledger = await open_ledger(postgres_url, pair[0])
    remote = pair[1].subscribe("run_1")
    await remote.wait(NOT)
    new = [NewEvent("k", RunStarted("r", "a", {}))]
    await ledger.write(lambda tx: tx.events.append("run_1", StreamKind.RUN, new, 1))
    assert await remote.wait(SOON)
    await ledger.close()


@pytest.mark.postgres
async def test_many_topics_at_once_arrive(pair: tuple[PgNotifier, PgNotifier]) -> None:
    one, two = pair
    subscriptions = [two.subscribe(f"topic{n}") for n in range(0, 3000, 7)]
    for subscription in subscriptions:
        await subscription.wait(0)
    one.publish(frozenset(f"topic{n}" for n in range(3000)))
    assert all([await subscription.wait(SOON) for subscription in subscriptions])


@pytest.mark.postgres
async def test_more_topics_than_are_kept_wake_everyone(pair: tuple[PgNotifier, PgNotifier]) -> None:
    one, two = pair
    remote = two.subscribe("not among them")
    await remote.wait(NOT)
    one.publish(frozenset(f"topic{n}" for n in range(MAX_BUFFERED + 1)))
    assert await remote.wait(SOON)


@pytest.mark.postgres
async def test_a_lost_connection_comes_back_and_wakes_everyone(
    postgres_url: str, pair: tuple[PgNotifier, PgNotifier]
) -> None:
    one, two = pair
    remote = two.subscribe("a")
    await remote.wait(NOT)
    sql(
        postgres_url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'milepost-notify' AND datname = current_database()",
    )
    assert await remote.wait(SOON)  # something may have been missed
    async with asyncio.timeout(SOON):
        while True:
            one.publish(frozenset({"a"}))
            if await remote.wait(0.2):
                break


@pytest.mark.postgres
async def test_a_process_that_ends_at_once_still_tells(postgres_url: str, pair: tuple[PgNotifier, PgNotifier]) -> None:
    remote = pair[0].subscribe("last words")
    await remote.wait(NOT)
    short = PgNotifier(postgres_url)
    assert await short.listening(SOON)
    short.publish(frozenset({"last words"}))
    await short.close()
    assert await remote.wait(SOON)


@pytest.mark.postgres
async def test_foreign_notifications_are_ignored(postgres_url: str, pair: tuple[PgNotifier, PgNotifier]) -> None:
    remote = pair[1].subscribe("a")
    await remote.wait(NOT)
    for payload in ("", "{", "[]", '["x", 1]', '{"a": 1}', '["x", [["a"]]]'):
        sql(postgres_url, f"SELECT pg_notify('milepost', '{payload}')")
    pair[0].publish(frozenset({"a"}))
    assert await remote.wait(SOON)


async def test_without_a_server_local_wake_ups_go_on() -> None:
    notifier = PgNotifier("postgresql://milepost@127.0.0.1:1/none")
    subscription = notifier.subscribe("a")
    notifier.publish(frozenset({"a"}))
    assert await subscription.wait(SOON)
    assert not await notifier.listening(NOT)
    await notifier.close()


def test_payloads_fit_and_lose_nothing() -> None:
    topics = {f"{'é' * 40}{n}" for n in range(500)}
    found = list(payloads("origin", topics))
    assert all(len(payload.encode()) <= MAX_PAYLOAD_BYTES for payload in found)
    assert {topic for payload in found for topic in json.loads(payload)[1]} == topics

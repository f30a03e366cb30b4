"""The admin pages, by Queen's own client."""

from queen import Queen
from queen_words import OLD, items, ns, popped, scenario


@scenario
async def admin_figures(queen: Queen, url: str, name: str) -> None:
    await queen.queue(name).namespace(f"{name}-ns").task(f"{name}-task").create()
    await queen.queue(name).partition("p").push(items(1, 2))
    (held,) = await popped(queen.queue(name).group("g").batch(1))
    await queen.ack(held, True, {"group": "g"})
    admin = queen.admin

    overview = await admin.get_overview()
    assert overview["queues"] >= 1
    assert overview["messages"]["total"] >= 2
    assert f"{name}-ns" in [row["namespace"] for row in (await admin.get_namespaces())["namespaces"]]
    assert f"{name}-task" in [row["task"] for row in (await admin.get_tasks())["tasks"]]
    (row,) = [queue for queue in (await admin.list_queues(limit=1000))["queues"] if queue["name"] == name]
    assert (row["partitions"], row["messages"]["total"]) == (1, 2)
    assert (await admin.get_queue(name))["partitions"][0]["name"] == "p"
    assert name in [part["queue"] for part in (await admin.get_partitions(queue=name))["partitions"]]
    assert "throughput" in await admin.get_status()
    assert name in [queue["name"] for queue in (await admin.get_queue_stats(limit=1000))["queues"]]
    detail = await admin.get_queue_detail(name)
    assert detail["queue"]["name"] == name
    assert detail["partitions"][0]["cursor"]["totalConsumed"] == 1
    assert "dataPoints" in await admin.get_analytics(interval="minute")
    assert (await admin.refresh_consumer_stats())["success"] is True
    (group,) = [g for g in await admin.list_consumer_groups() if g["queueName"] == name]
    assert (group["name"], group["members"], group["totalLag"]) == ("g", 1, 1)
    assert name in await admin.get_consumer_group("g")
    assert isinstance(await admin.get_lagging_consumers(3600), list)
    lagging = await admin.get_lagging_consumers(0)
    assert name in [place["queue_name"] for place in lagging]


@scenario
async def admin_messages(queen: Queen, url: str, name: str) -> None:
    rows = await queen.queue(name).partition("p").push(items(1, 2, 3, 4))
    where = rows[0]["partition_id"]
    admin = queen.admin

    listed = await admin.list_messages(queue=name, partition="p", limit=2, offset=1)
    assert [row["transactionId"] for row in listed["messages"]] == ["t3", "t2"]
    assert (await admin.list_messages(queue=name, status="completed"))["messages"] == []
    shown = await admin.get_message(where, "t2")
    assert (shown["payload"], shown["status"], shown["queue"]) == ({"n": 2}, "pending", name)
    assert (await admin.delete_message(where, "t2"))["success"] is True
    assert ns(await popped(queen.queue(name).group("g").batch(10))) == [1, 3, 4]
    if OLD:  # the newest client refuses these two before it sends them
        assert (await admin.move_message_to_dlq(where, "t1"))["success"] is True
        assert len((await queen.queue(name).dlq().get())["messages"]) == 1
        assert (await admin.clear_queue(name, "p"))["cleared"] == 3
        assert await popped(queen.queue(name).batch(10)) == []


@scenario
async def admin_of_the_node(queen: Queen, url: str, name: str) -> None:
    admin = queen.admin

    assert (await admin.health())["status"] == "healthy"
    assert "uptime" in await admin.metrics()
    assert "replicas" in await admin.get_system_metrics()
    assert "summary" in await admin.get_worker_metrics()
    if OLD:
        assert await admin.get_postgres_stats() in ({}, None)


@scenario
async def maintenance_spools_and_pauses(queen: Queen, url: str, name: str) -> None:
    if not OLD:
        return  # the newest client has no such calls
    admin = queen.admin
    assert (await admin.get_maintenance_mode())["maintenanceMode"] is False
    await admin.set_maintenance_mode(True)
    try:
        rows = await queen.queue(name).push(items(1, 2))
        assert {row["status"] for row in rows} == {"buffered"}
        assert (await admin.get_maintenance_mode())["bufferedMessages"] == 2
        assert await popped(queen.queue(name).batch(10)) == []
    finally:
        await admin.set_maintenance_mode(False)
    got = await queen.queue(name).batch(10).wait(True).timeout_millis(30_000).pop()
    assert ns(got) == [1, 2]

    await queen.queue(f"{name}-2").push(items(3))
    await admin.set_pop_maintenance_mode(True)
    try:
        assert (await admin.get_pop_maintenance_mode())["popMaintenanceMode"] is True
        assert await popped(queen.queue(f"{name}-2").batch(10)) == []
    finally:
        await admin.set_pop_maintenance_mode(False)
    assert ns(await popped(queen.queue(f"{name}-2").batch(10))) == [3]


@scenario
async def a_client_of_several_servers_goes_on_without_one(queen: Queen, url: str, name: str) -> None:
    for strategy in ("affinity", "round-robin", "session"):
        config = {"urls": ["http://127.0.0.1:9", url], "load_balancing_strategy": strategy}
        other = Queen({**config, "retry_attempts": 2, "retry_delay_millis": 1, "enable_failover": True})
        try:
            for n in range(4):
                await other.queue(f"{name}-{strategy}").push(items(n))
            assert ns(await popped(other.queue(f"{name}-{strategy}").batch(10))) == [0, 1, 2, 3]
        finally:
            await other.close()

import structlog

from penstock.protocols.http.connections import (
    LINGER_SECONDS,
    LOG_INTERVAL_SECONDS,
    Connections,
    HttpLimits,
    Wait,
)

LIMITS = HttpLimits(connections=2, head_seconds=11, idle_seconds=12, stall_seconds=13)


def test_as_many_connections_are_admitted_as_the_limit_says() -> None:
    connections = Connections(LIMITS)
    assert [connections.admit(count) for count in range(4)] == [True, True, False, False]
    assert connections.refused == 2


def test_every_wait_has_its_timeout() -> None:
    assert {wait: LIMITS.seconds(wait) for wait in Wait} == {
        Wait.FIRST_REQUEST: 11,
        Wait.HEAD: 11,
        Wait.BODY: 13,
        Wait.REQUEST: 12,
        Wait.READ: 13,
        Wait.CLOSE: LINGER_SECONDS,
    }


def test_refused_connections_are_logged_together_once_in_a_while() -> None:
    connections = Connections(LIMITS)
    with structlog.testing.capture_logs() as events:
        connections.log_refused(1)
        for second in range(2, LOG_INTERVAL_SECONDS + 10):
            connections.admit(2)
            connections.log_refused(second)
    told = {"event": "http_connections_refused", "limit": 2, "log_level": "warning"}
    assert events == [{**told, "connections": 1}, {**told, "connections": LOG_INTERVAL_SECONDS}]


def test_metrics_count_refusals_by_reason() -> None:
    connections = Connections(LIMITS)
    connections.admit(2)
    connections.count_refusal(431)
    connections.count_refusal(431)
    connections.count_timeout(Wait.HEAD)
    values = {metric.name: metric.values for metric in connections.metrics(7)}
    assert values["penstock_http_connections"] == [({}, 7)]
    assert values["penstock_http_connections_refused"] == [({}, 1)]
    assert values["penstock_http_requests_refused"] == [({"status": "431"}, 2)]
    assert ({"wait": "head"}, 1) in values["penstock_http_timeouts"]
    assert ({"wait": "body"}, 0) in values["penstock_http_timeouts"]

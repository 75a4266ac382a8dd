"""The commands for channels, run against a real broker."""

import json
import subprocess
from typing import Any

import pytest

from tests.integration.channels.api import Api, Receiver, eventually
from tests.integration.process import PENSTOCK, clean_environment

pytestmark = pytest.mark.feature("X09")


@pytest.fixture
def run(api: Api) -> Any:
    environ = clean_environment({"PENSTOCK_URL": f"http://{api.host}:{api.port}"})

    def call(*arguments: str, stdin: str = "", fails: bool = False) -> str:
        done = subprocess.run(
            [PENSTOCK, *arguments], input=stdin, capture_output=True, text=True, env=environ
        )
        assert done.returncode == fails, done
        return done.stderr if fails else done.stdout

    return call


def test_commands_from_a_producer_to_a_finished_job(run: Any) -> None:
    producer = json.loads(run("producer", "put", "p", "--token", "pt", "--json"))
    assert (producer["ID"], producer["Token"]) == ("p", "pt")
    assert "Token" in run("producer", "info", "p")
    assert run("producer", "list").split() == ["p"]
    run("channel", "put", "orders", "--title", "Orders")
    renamed = json.loads(run("channel", "put", "orders", "--title", "All orders", "--json"))
    assert renamed["Name"] == "All orders"
    assert renamed["Token"] == json.loads(run("channel", "info", "orders", "--json"))["Token"]
    assert run("channel", "list").split() == ["orders"]
    run("consumer", "put", "orders", "work", "--callback", "http://a/", "--type", "pull")
    assert run("consumer", "list", "orders").split() == ["work"]
    where = run("channel", "broadcast", "orders", '{"n":1}', "--producer", "p", "--id", "m 1")
    assert where == "/channel/orders/message/m%201\n"
    urgent = ("--producer", "p", "--priority", "7", "--type", "text/plain")
    run("channel", "broadcast", "orders", "-", *urgent, stdin="from stdin")
    assert json.loads(run("channel", "info", "orders", "--json"))["Messages"] == {"DISPATCHED": 2}
    assert run("channel", "messages", "orders").split("\n")[1] == "m 1"
    shown = run("channel", "messages", "orders", "m 1")
    assert "DISPATCHED" in shown
    assert "QUEUED" in shown
    assert "from stdin" in run("job", "list", "orders", "work", "--limit", "1")
    (first,) = run("job", "claim", "orders", "work", "--timeout", "60", "--json").splitlines()
    claimed = json.loads(first)
    assert claimed["Message"]["Payload"] == "from stdin"
    job = claimed["ID"]
    done = run("job", "move", "orders", "work", job, "delivered", "--lease", claimed["Lease"])
    assert done == f"{job} is DELIVERED\n"
    assert "DELIVERED" in run("job", "info", "orders", "work", job)
    assert run("consumer", "replay", "orders", "work") == "queued 1 jobs again\n"
    assert run("consumer", "delete", "orders", "work") == "deleted work\n"
    assert run("consumer", "list", "orders") == ""


def test_commands_for_dead_letters_and_consumers(run: Any, receiver: Receiver) -> None:
    receiver.answer = lambda call: (500, {})
    run("producer", "put", "dp")
    run("channel", "put", "dead")
    run("consumer", "put", "dead", "push", "--callback", receiver.url())
    run("channel", "broadcast", "dead", "x", "--producer", "dp")
    eventually(lambda: json.loads(run("dlq", "status", "--json").splitlines()[0])["deadCount"] == 1)
    assert "push" in run("dlq", "status")
    (line,) = run("dlq", "list", "dead", "push", "--json").splitlines()
    job = json.loads(line)["JobRequeueURL"].split("/")[-2]
    assert job in run("dlq", "list", "dead", "push")
    attempts = [
        json.loads(a) for a in run("consumer", "attempts", "dead", "push", "--json").splitlines()
    ]
    assert [attempt["Status"] for attempt in attempts] == [500] * 3
    run("consumer", "disable", "dead", "push")
    assert run("dlq", "requeue", "dead", "push", job) == f"queued {job} again\n"
    assert run("dlq", "list", "dead", "push") == ""
    run("consumer", "limit", "dead", "push", "--rate", "5", "--concurrency", "2")
    shown = json.loads(run("consumer", "info", "dead", "push", "--json"))
    assert (shown["RatePerSecond"], shown["Concurrency"], shown["Disabled"]) == (5, 2, True)
    assert run("consumer", "rotate-secret", "dead", "push").startswith("whsec_")
    run("consumer", "enable", "dead", "push")
    eventually(lambda: run("dlq", "list", "dead", "push"))
    assert run("dlq", "requeue", "dead", "push") == "queued all dead jobs again\n"
    eventually(lambda: run("dlq", "list", "dead", "push"))
    assert run("dlq", "purge", "dead", "push") == "forgot 1 jobs\n"


def test_an_error_is_one_line(run: Any) -> None:
    assert run("channel", "info", "none", fails=True) == "error: Request resource not found\n"
    error = run("channel", "broadcast", "none", "x", "--producer", "p", fails=True)
    assert error == "error: Request resource not found\n"

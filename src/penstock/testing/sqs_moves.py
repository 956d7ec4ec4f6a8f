"""The SQS suite's chapter on move tasks. The clock stands still unless a test moves it, so that a task with a rate waits."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any
from uuid import UUID

import pytest

from penstock import Broker
from penstock.broker import LocalBroker
from penstock.server import BackgroundServer
from penstock.server.jobs.book import JOBS
from penstock.testing.clock import FakeClock
from penstock.testing.serving import until
from penstock.testing.sqs_client import ACCOUNT, REGION, Fault
from penstock.testing.sqs_sending import INVALID, SqsClient, SqsMessageFixtures

NOT_FOUND = "ResourceNotFoundException"
FORMAT = "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
ENDED = ("COMPLETED", "CANCELLED", "FAILED")


def arn(queue: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}"


def handle(id: str, queue: str) -> str:
    return b64encode(json.dumps({"taskId": id, "sourceArn": arn(queue)}).encode()).decode()


def missing(parameter: str) -> tuple[str, str]:
    return NOT_FOUND, f"The resource that you specified for the {parameter} parameter doesn't exist."


class MoveTasks:
    """Calls the three operations for the source ``dead``."""

    def __init__(self, sqs: SqsClient, source: str = "dead") -> None:
        self.sqs = sqs
        self.source = source

    def start(self, to: str | None = None, **members: Any) -> str:
        named = {} if to is None else {"DestinationArn": arn(to)}
        return str(self.sqs("StartMessageMoveTask", SourceArn=arn(self.source), **named, **members)["TaskHandle"])

    def refused(self, **members: Any) -> tuple[str, str]:
        return self.sqs.refusal("StartMessageMoveTask", **{"SourceArn": arn(self.source), **members})

    def list(self, most: int | None = None) -> list[dict[str, Any]]:
        members: dict[str, Any] = {} if most is None else {"MaxResults": most}
        return list(self.sqs("ListMessageMoveTasks", SourceArn=arn(self.source), **members).get("Results", []))

    def last(self) -> dict[str, Any]:
        return self.list()[0]

    def end(self) -> dict[str, Any]:
        """Wait until the last task has ended."""
        until(lambda: self.last()["Status"] in ENDED)
        return self.last()

    def cancel(self, task: str) -> int:
        return int(self.sqs("CancelMessageMoveTask", TaskHandle=task)["ApproximateNumberOfMessagesMoved"])


def visible(broker: Broker, queue: str) -> list[str]:
    return sorted(message.text for message in broker[queue].peek(1000))


class SqsMoves(SqsMessageFixtures):
    @pytest.fixture
    def tasks(self, sqs: SqsClient, broker: Broker) -> MoveTasks:
        """The dead letter queue ``dead`` of ``orders``, and ``elsewhere``."""
        for name in ("dead", "elsewhere"):
            sqs("CreateQueue", QueueName=name)
        policy = json.dumps({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 1})
        sqs("SetQueueAttributes", "orders", Attributes={"RedrivePolicy": policy})
        return MoveTasks(sqs)

    def kill(self, broker: Broker, queue: str, *bodies: str) -> None:
        """Let messages die in a queue."""
        home = broker[queue]
        home.send_many([body.encode() for body in bodies])
        while home.stats().messages:
            home.receive(len(bodies), visibility=0)

    def test_a_task_moves_all_messages_to_its_destination(self, tasks: MoveTasks, broker: Broker, clock: FakeClock) -> None:
        self.kill(broker, "orders", "1", "2")
        broker["dead"].send(b"3")
        task = tasks.start("elsewhere")
        named = json.loads(b64decode(task))
        assert (str(UUID(named["taskId"])), named["sourceArn"]) == (named["taskId"], arn("dead"))
        assert tasks.end() == {
            "Status": "COMPLETED",
            "SourceArn": arn("dead"),
            "DestinationArn": arn("elsewhere"),
            "ApproximateNumberOfMessagesMoved": 3,
            "ApproximateNumberOfMessagesToMove": 3,
            "StartedTimestamp": clock() // 1000,
        }
        assert (visible(broker, "elsewhere"), visible(broker, "dead")) == (["1", "2", "3"], [])
        assert visible(broker, JOBS) == []

    def test_without_a_destination_each_message_goes_where_it_died(
        self, sqs: SqsClient, tasks: MoveTasks, broker: Broker
    ) -> None:
        policy = json.dumps({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 1})
        sqs("CreateQueue", QueueName="letters", Attributes={"RedrivePolicy": policy})
        self.kill(broker, "orders", "1", "2")
        self.kill(broker, "letters", "3", "4")
        tasks.start()
        done = tasks.end()
        assert "DestinationArn" not in done
        assert (done["Status"], done["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 4)
        assert (visible(broker, "orders"), visible(broker, "letters")) == (["1", "2"], ["3", "4"])

    def test_a_moved_message_begins_a_new_life(
        self, sqs: SqsClient, tasks: MoveTasks, broker: Broker, clock: FakeClock
    ) -> None:
        sent = sqs(
            "SendMessage", "orders", MessageBody="x", MessageAttributes={"a": {"DataType": "Number", "StringValue": "1"}}
        )
        for _ in range(2):
            sqs("ReceiveMessage", "orders", VisibilityTimeout=0)
        clock.advance(3600)
        tasks.start()
        tasks.end()
        (found,) = sqs("ReceiveMessage", "orders", AttributeNames=["All"], MessageAttributeNames=["All"])["Messages"]
        assert (found["MessageId"], found["Body"]) == (sent["MessageId"], "x")
        assert found["MessageAttributes"] == {"a": {"DataType": "Number", "StringValue": "1"}}
        assert found["Attributes"]["ApproximateReceiveCount"] == "1"
        assert "DeadLetterQueueSourceArn" not in found["Attributes"]
        (message,) = broker["orders"].peek()
        assert message.expires_at == clock() + 345_600 * 1_000_000

    def test_what_comes_later_and_what_is_in_flight_stays(self, tasks: MoveTasks, broker: Broker, clock: FakeClock) -> None:
        broker["dead"].send_many([b"1", b"2", b"3"])
        (held,) = broker["dead"].receive(visibility=3600)
        tasks.start("elsewhere", MaxNumberOfMessagesPerSecond=1)
        until(lambda: len(visible(broker, "elsewhere")) == 1)
        clock.advance(0.5)
        broker["dead"].send(b"later")
        done = self.play(tasks, clock)
        assert (done["Status"], done["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 2)
        assert done["ApproximateNumberOfMessagesToMove"] == 2
        assert visible(broker, "dead") == sorted([held.text, "later"])

    def play(self, tasks: MoveTasks, clock: FakeClock) -> dict[str, Any]:
        """Move the clock until the last task has ended."""

        def ended() -> bool:
            clock.advance(1)
            return tasks.last()["Status"] in ENDED

        until(ended)
        return tasks.last()

    def test_a_task_moves_no_more_in_a_second_than_its_rate(self, tasks: MoveTasks, broker: Broker, clock: FakeClock) -> None:
        broker["dead"].send_many([b"%d" % number for number in range(70)])
        started = clock()
        task = tasks.start("elsewhere", MaxNumberOfMessagesPerSecond=20)
        seen = [0]

        def moved() -> int:
            count = broker["elsewhere"].stats().messages
            assert count <= 2 + 20 * (clock() - started) / 1_000_000, "faster than its rate"
            return count

        for seconds in (0, 0.05, 0.05, 0.1, 0.2):  # a part has 2 messages, and comes each tenth of a second
            clock.advance(seconds)
            if seconds != 0.05 or clock() - started >= 100_000:
                until(lambda: moved() > seen[-1])
            seen.append(moved())
        assert seen[:4] == [0, 2, 2, 4]
        assert tasks.last()["Status"] == "RUNNING"
        assert tasks.last()["MaxNumberOfMessagesPerSecond"] == 20
        assert tasks.last()["TaskHandle"] == task
        done = self.play(tasks, clock)
        assert (done["Status"], done["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 70)
        assert "TaskHandle" not in done

    def test_a_cancelled_task_leaves_the_rest_where_it_is(self, tasks: MoveTasks, broker: Broker, clock: FakeClock) -> None:
        broker["dead"].send_many([b"1", b"2", b"3", b"4"])
        task = tasks.start("elsewhere", MaxNumberOfMessagesPerSecond=1)
        until(lambda: tasks.last()["ApproximateNumberOfMessagesMoved"] == 1)
        clock.advance(1)
        until(lambda: tasks.last()["ApproximateNumberOfMessagesMoved"] == 2)
        assert tasks.cancel(task) == 2
        done = tasks.end()
        assert (done["Status"], done["ApproximateNumberOfMessagesMoved"]) == ("CANCELLED", 2)
        assert "TaskHandle" not in done
        clock.advance(60)
        assert tasks.sqs.refusal("CancelMessageMoveTask", TaskHandle=task) == (INVALID, "Only active tasks can be cancelled.")
        assert [len(visible(broker, name)) for name in ("dead", "elsewhere", JOBS)] == [2, 2, 0]
        tasks.start("elsewhere")
        assert tasks.end()["ApproximateNumberOfMessagesMoved"] == 2

    def test_a_source_has_one_task_at_a_time(self, tasks: MoveTasks, broker: Broker, clock: FakeClock) -> None:
        broker["dead"].send_many([b"1", b"2", b"3"])
        tasks.start("elsewhere", MaxNumberOfMessagesPerSecond=1)
        text = "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
        assert tasks.refused() == (INVALID, text)
        self.play(tasks, clock)
        tasks.start("elsewhere")
        assert [task["Status"] for task in tasks.list(10)] in (["COMPLETED"] * 2, ["RUNNING", "COMPLETED"])

    def test_the_last_ten_tasks_are_listed(self, tasks: MoveTasks, broker: Broker, clock: FakeClock) -> None:
        assert tasks.list() == []
        for number in range(12):
            clock.advance(1)
            broker["dead"].send_many([b"x"] * number)
            tasks.start("elsewhere")
            tasks.end()
        assert [task["ApproximateNumberOfMessagesMoved"] for task in tasks.list(10)] == list(range(11, 1, -1))
        assert len(tasks.list()) == 1
        assert len(tasks.list(3)) == 3
        assert len([name for name in broker["dead"].settings.labels if name.startswith("penstock.job.")]) == 10

    def test_a_message_whose_queue_is_gone_fails_the_task(self, tasks: MoveTasks, broker: Broker) -> None:
        broker.create("gone", redrive=("dead", 1))
        self.kill(broker, "gone", "1")
        self.kill(broker, "orders", "2")
        broker.delete("gone")
        tasks.start()
        done = tasks.end()
        assert (done["Status"], done["FailureReason"]) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
        assert (done["ApproximateNumberOfMessagesMoved"], done["ApproximateNumberOfMessagesToMove"]) == (1, 2)
        assert (visible(broker, "dead"), visible(broker, "orders")) == (["1"], ["2"])

    def test_a_message_that_did_not_die_in_a_queue_fails_a_task_without_a_destination(
        self, tasks: MoveTasks, broker: Broker
    ) -> None:
        broker["dead"].send(b"x")
        tasks.start()
        done = tasks.end()
        assert (done["Status"], done["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")
        assert (done["ApproximateNumberOfMessagesMoved"], visible(broker, "dead")) == (0, ["x"])

    def test_a_destination_that_is_deleted_fails_the_task(self, tasks: MoveTasks, broker: Broker, clock: FakeClock) -> None:
        broker["dead"].send_many([b"1", b"2", b"3"])
        tasks.start("elsewhere", MaxNumberOfMessagesPerSecond=1)
        until(lambda: len(visible(broker, "elsewhere")) == 1)
        tasks.sqs("DeleteQueue", "elsewhere")
        done = self.play(tasks, clock)
        assert (done["Status"], done["FailureReason"]) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
        assert len(visible(broker, "dead")) == 2

    def test_a_task_ends_with_its_source(self, tasks: MoveTasks, broker: Broker, clock: FakeClock) -> None:
        broker["dead"].send_many([b"1", b"2", b"3"])
        task = tasks.start("elsewhere", MaxNumberOfMessagesPerSecond=1)
        until(lambda: len(visible(broker, "elsewhere")) == 1)
        tasks.sqs("DeleteQueue", "dead")
        assert tasks.sqs.refusal("CancelMessageMoveTask", TaskHandle=task) == missing("SourceArn")
        assert tasks.sqs.refusal("ListMessageMoveTasks", SourceArn=arn("dead")) == missing("SourceArn")
        clock.advance(1)
        until(lambda: visible(broker, JOBS) == [])

    # what is refused

    def test_what_cannot_be_a_task_is_refused(self, sqs: SqsClient, tasks: MoveTasks, broker: Broker) -> None:
        broker["dead"].send(b"x")
        wrong = "You must use this format to specify the "
        bad = "Value for parameter {} is invalid. Reason: You must enter a number that's between 1 and {}."
        same = "Source queue arn and destination queue arn cannot be the same."
        assert tasks.refused(SourceArn="dead") == (INVALID, f"{wrong}SourceArn: {FORMAT}")
        assert tasks.refused(SourceArn=arn("none")) == missing("SourceArn")
        assert tasks.refused(SourceArn=arn("no.queue")) == missing("SourceArn")
        assert tasks.refused(SourceArn=arn("dead").replace("sqs", "sns")) == missing("SourceArn")
        assert tasks.refused(SourceArn=arn("elsewhere")) == (
            INVALID,
            "Source queue must be configured as a Dead Letter Queue.",
        )
        assert tasks.refused(DestinationArn="elsewhere") == (INVALID, f"{wrong}DestinationArn: {FORMAT}")
        assert tasks.refused(DestinationArn=arn("none")) == missing("DestinationArn")
        assert tasks.refused(DestinationArn=arn("dead")) == (INVALID, same)
        for number in (0, -1, 501):
            refused = tasks.refused(MaxNumberOfMessagesPerSecond=number)
            assert refused == (INVALID, bad.format("MaxNumberOfMessagesPerSecond", 500))
        for number in (0, 11):
            refused = sqs.refusal("ListMessageMoveTasks", SourceArn=arn("dead"), MaxResults=number)
            assert refused == (INVALID, bad.format("MaxResults", 10))
        assert sqs.refusal("ListMessageMoveTasks", SourceArn=arn("none")) == missing("SourceArn")
        assert (tasks.list(), visible(broker, "dead"), JOBS in broker) == ([], ["x"], False)

    @pytest.mark.parametrize("given", ["foobared", "e30=", "W10=", "bnVsbA==", "é", "A" * 5000])
    def test_a_handle_that_is_none_of_ours_is_refused(self, tasks: MoveTasks, given: str) -> None:
        refused = tasks.sqs.refusal("CancelMessageMoveTask", TaskHandle=given)
        assert refused == (INVALID, "Value for parameter TaskHandle is invalid.")

    def test_a_task_that_does_not_exist_is_not_found(self, tasks: MoveTasks) -> None:
        id = "10f57157-fc38-4da9-a113-4de7e12d05dd"
        with pytest.raises(Fault) as found:
            tasks.cancel(handle(id, "none"))
        assert (found.value.status, found.value.code, found.value.text) == (404, *missing("SourceArn"))
        with pytest.raises(Fault) as found:
            tasks.cancel(handle(id, "dead"))
        assert (found.value.status, found.value.code, found.value.text) == (404, NOT_FOUND, "Task does not exist.")

    # what others may do to it

    def test_no_message_makes_a_task(self, tasks: MoveTasks, broker: Broker, clock: FakeClock) -> None:
        """A sender may write to the queue of tasks, but not to the labels of the source."""
        broker["dead"].send_many([b"1", b"2", b"3"])
        tasks.start("elsewhere", MaxNumberOfMessagesPerSecond=1)
        until(lambda: tasks.last()["ApproximateNumberOfMessagesMoved"] == 1)
        (real,) = broker[JOBS].peek()
        plan = json.loads(real.body)
        forged = [
            {**plan, "to": "orders"},
            {**plan, "id": "other", "to": "orders"},
            {**plan, "rate": None},
            {**plan, "queue": "none"},
        ]
        broker[JOBS].send_many([*(json.dumps(each).encode() for each in forged), b"garbage", b"[]"])
        self.wake(tasks)
        until(lambda: visible(broker, JOBS) == [real.text])
        assert (len(visible(broker, "elsewhere")), visible(broker, "orders")) == (1, [])

    def wake(self, tasks: MoveTasks) -> None:
        """Have the server look for tasks: another one is started."""
        tasks.sqs("CreateQueue", QueueName="dead2")
        policy = json.dumps({"deadLetterTargetArn": arn("dead2"), "maxReceiveCount": 1})
        tasks.sqs("CreateQueue", QueueName="orders2", Attributes={"RedrivePolicy": policy})
        other = MoveTasks(tasks.sqs, "dead2")
        other.start()
        other.end()

    def test_a_task_that_was_removed_has_failed_and_another_can_start(self, tasks: MoveTasks, broker: LocalBroker) -> None:
        broker["dead"].send_many([b"1", b"2", b"3"])
        tasks.start("elsewhere", MaxNumberOfMessagesPerSecond=1)
        until(lambda: tasks.last()["ApproximateNumberOfMessagesMoved"] == 1)
        broker[JOBS].purge()
        assert tasks.last()["Status"] == "FAILED"
        assert "lost" in tasks.last()["FailureReason"]
        tasks.start("elsewhere")
        assert tasks.end()["Status"] == "COMPLETED"
        assert [each["Status"] for each in tasks.list(2)] == ["COMPLETED", "FAILED"]
        assert visible(broker, "elsewhere") == ["1", "2", "3"]

    def test_sqs_does_not_list_the_queue_of_tasks(self, sqs: SqsClient, tasks: MoveTasks, broker: Broker) -> None:
        tasks.start("elsewhere")
        tasks.end()
        names = [url.rpartition("/")[2] for url in sqs("ListQueues")["QueueUrls"]]
        assert names == ["dead", "elsewhere", "orders"]
        assert JOBS in broker

    def test_a_server_that_stops_gives_its_tasks_back(self, broker: LocalBroker, clock: FakeClock, protocol: str) -> None:
        broker.create("dead")
        broker.create("orders", redrive=("dead", 1))
        broker["dead"].send_many([b"1", b"2", b"3"])
        with BackgroundServer(broker, self.server_settings) as first:
            before = MoveTasks(SqsClient(first.url, protocol))
            task = before.start("orders", MaxNumberOfMessagesPerSecond=1)
            until(lambda: before.last()["ApproximateNumberOfMessagesMoved"] == 1)
        (message,) = broker[JOBS].peek()
        assert message.visible_at <= clock()
        with BackgroundServer(broker, self.server_settings) as second:
            after = MoveTasks(SqsClient(second.url, protocol))
            assert after.last()["TaskHandle"] == task
            done = self.play(after, clock)
        assert (done["Status"], done["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 3)
        assert visible(broker, "orders") == ["1", "2", "3"]

    def test_a_task_that_its_server_has_left_goes_on_when_the_claim_lapses(
        self, broker: LocalBroker, clock: FakeClock, protocol: str
    ) -> None:
        broker.create("dead")
        broker.create("orders", redrive=("dead", 1))
        broker["dead"].send_many([b"1", b"2", b"3"])
        with BackgroundServer(broker, self.server_settings) as server:
            tasks = MoveTasks(SqsClient(server.url, protocol))
            task = tasks.start("orders", MaxNumberOfMessagesPerSecond=1)
            until(lambda: tasks.last()["ApproximateNumberOfMessagesMoved"] == 1)
        broker[JOBS].receive(visibility=5)  # as a server that is killed now
        with BackgroundServer(broker, self.server_settings) as server:
            tasks = MoveTasks(SqsClient(server.url, protocol))
            assert tasks.last()["TaskHandle"] == task
            assert self.play(tasks, clock)["Status"] == "COMPLETED"
        assert visible(broker, "orders") == ["1", "2", "3"]


class SqsFifoMoves(SqsMessageFixtures):
    def test_groups_are_moved_whole_and_in_order(self, sqs: SqsClient, broker: Broker, clock: FakeClock) -> None:
        sqs("CreateQueue", QueueName="dead.fifo", Attributes={"FifoQueue": "true"})
        policy = json.dumps({"deadLetterTargetArn": arn("dead.fifo"), "maxReceiveCount": 1})
        sqs("CreateQueue", QueueName="orders.fifo", Attributes={"FifoQueue": "true", "RedrivePolicy": policy})
        for body in [f"{group}{number}" for group in "ab" for number in range(5)]:
            clock.advance(1)
            broker["dead.fifo"].send(body.encode(), group=body[0], key=body)
        tasks = MoveTasks(sqs, "dead.fifo")
        kind = "The source queue and destination queue must be of the same queue type."
        assert tasks.refused(DestinationArn=arn("orders")) == (INVALID, kind)
        tasks.start("orders.fifo")
        done = tasks.end()
        assert (done["Status"], done["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 10)
        found: list[str] = []
        while messages := broker["orders.fifo"].receive(10):
            found += [message.text for message in messages]
            broker["orders.fifo"].delete_many(messages)
        assert [[body for body in found if body[0] == group] for group in "ab"] == [
            [f"{group}{number}" for number in range(5)] for group in "ab"
        ]

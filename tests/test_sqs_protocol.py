"""SQS's two protocols: what they take for a request, and the form of their answers."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest

from penstock.broker import LocalBroker
from penstock.server import BackgroundServer
from penstock.testing.http import SETTINGS, Http, ServerFixtures
from penstock.testing.sqs import SqsFixtures, arn, attributes, refused
from penstock.testing.sqs_client import ACCOUNT, FORM, NAMESPACE, Sqs


class TestProtocols(SqsFixtures, ServerFixtures):
    @pytest.fixture
    def url(self) -> str:
        return "memory:"

    def test_members_that_are_null_or_unknown_are_ignored(self, http: Http) -> None:
        body = {"QueueName": "orders", "Attributes": None, "Colour": {"deep": [1]}, "tags": {"a": None, "b": "1"}}
        sqs = Sqs(http, "json")
        queue = sqs("CreateQueue", **body)["QueueUrl"]
        assert sqs("ListQueueTags", QueueUrl=queue) == {"Tags": {"b": "1"}}

    def test_numbers_and_truth_values_are_taken_for_text(self, http: Http) -> None:
        sqs = Sqs(http, "json")
        queue = sqs("CreateQueue", QueueName="orders", Attributes={"DelaySeconds": 4, "SqsManagedSseEnabled": False})[
            "QueueUrl"
        ]
        assert attributes(sqs, queue, "DelaySeconds", "SqsManagedSseEnabled") == {
            "DelaySeconds": "4",
            "SqsManagedSseEnabled": "false",
        }

    @pytest.mark.parametrize("operation", ["Fly", "createQueue", "", "CreateQueue.x"])
    def test_an_operation_that_does_not_exist_is_unknown(self, http: Http, operation: str) -> None:
        answer = http("POST", "/", b"{}", X_Amz_Target=f"AmazonSQS.{operation}")
        assert (answer.status, answer.json["__type"]) == (400, "com.amazon.coral.service#UnknownOperationException")
        assert http("POST", "/", b"{}", X_Amz_Target="DynamoDB_20120810.ListTables").status == 400
        if operation:
            answer = http("POST", "/", urlencode({"Action": operation}), Content_Type=FORM)
            fault = Sqs(http, "query").fault(answer)
            assert (fault.code, fault.status) == ("InvalidAction", 400)
            assert fault.text == f"The action {operation} is not valid for this endpoint."

    def test_a_member_that_is_missing_is_named(self, sqs: Sqs, queue: str) -> None:
        for operation, members, missing in (
            ("SendMessage", {"QueueUrl": queue}, "MessageBody"),
            ("SendMessage", {"MessageBody": "x"}, "QueueUrl"),
            ("CreateQueue", {}, "QueueName"),
            ("ChangeMessageVisibility", {"QueueUrl": queue, "ReceiptHandle": "x"}, "VisibilityTimeout"),
            (
                "DeleteMessageBatch",
                {"QueueUrl": queue, "Entries": [{"Id": "a", "ReceiptHandle": "x"}, {"Id": "b"}]},
                "DeleteMessageBatchRequestEntry.2.ReceiptHandle",
            ),
        ):
            fault = refused(sqs, operation, **members)
            assert (fault.code, fault.status) == ("MissingParameter", 400)
            assert fault.text == f"The request must contain the parameter {missing}."
            assert fault.shape in ("", "MissingRequiredParameterException")

    @pytest.mark.parametrize(
        "body",
        [
            b"{",
            b"[]",
            b"null",
            b'"x"',
            b"\xff",
            b'{"QueueName": {}}',
            b'{"QueueName": []}',
            b'{"QueueName": "a", "Attributes": []}',
            b'{"QueueName": "a", "Attributes": "x"}',
            b'{"QueueName": "a", "Attributes": {"DelaySeconds": {}}}',
            b'{"QueueName": "a", "tags": {"a": [1]}}',
            b'{"QueueName": ' + b"9" * 5000 + b"}",
            b'{"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        ],
    )
    def test_a_body_of_another_shape_changes_nothing(self, http: Http, body: bytes) -> None:
        answer = http("POST", "/", body, X_Amz_Target="AmazonSQS.CreateQueue")
        fault = Sqs(http, "json").fault(answer)
        assert (fault.status, fault.shape) == (400, "SerializationException")
        assert Sqs(http, "json")("ListQueues") == {}

    @pytest.mark.parametrize("number", ["1.5", "x", "", "9" * 30, "١"])
    def test_a_number_that_is_none_is_refused(self, http: Http, number: str) -> None:
        query = Sqs(http, "query")
        assert refused(query, "ListQueues", MaxResults=number).code == "InvalidParameterValue"
        fault = refused(Sqs(http, "json"), "ListQueues", MaxResults=number)
        assert fault.shape == "SerializationException"

    def test_a_form_of_very_many_parameters_is_refused(self, http: Http) -> None:
        for name in ("x", "AttributeName", "a.b.c"):
            body = "&".join(f"{name}.{number}=x" for number in range(6000))
            answer = http("POST", "/", "Action=ListQueues&" + body, Content_Type=FORM)
            assert Sqs(http, "query").fault(answer).code == "InvalidParameterValue"
        deep = "Action=ListQueues&" + "a." * 500_000 + "=1&Attribute.1=x&Attribute.1.Name=y&" + "Attribute.99999999999.Name=z"
        assert http("POST", "/", deep, Content_Type=FORM).status == 200

    def test_a_form_that_is_not_utf_8_is_refused(self, http: Http) -> None:
        for body in (b"Action=CreateQueue&QueueName=%FF", b"Action=CreateQueue&QueueName=\xff"):
            fault = Sqs(http, "query").fault(http("POST", "/", body, Content_Type=FORM))
            assert fault.status == 400
        assert Sqs(http, "json")("ListQueues") == {}

    def test_the_first_of_several_parameters_of_one_name_counts(self, http: Http) -> None:
        http("POST", "/", "Action=CreateQueue&QueueName=first&QueueName=second&Action=DeleteQueue", Content_Type=FORM)
        assert [url[-5:] for url in Sqs(http, "json")("ListQueues")["QueueUrls"]] == ["first"]

    def test_a_list_may_have_gaps_and_one_item_needs_no_number(self, http: Http) -> None:
        http("POST", "/", "Action=CreateQueue&QueueName=q&Attribute.Name=DelaySeconds&Attribute.Value=7", Content_Type=FORM)
        for names in ("AttributeName=DelaySeconds", "AttributeName.7=DelaySeconds&AttributeName.12=QueueArn"):
            answer = http("POST", "/", f"Action=GetQueueAttributes&QueueUrl=q&{names}", Content_Type=FORM)
            assert b"<Name>DelaySeconds</Name><Value>7</Value>" in answer.body
            assert (b"<Name>QueueArn</Name>" in answer.body) == ("QueueArn" in names)

    def test_a_list_without_a_value_is_empty(self, http: Http) -> None:
        http("POST", "/", "Action=CreateQueue&QueueName=orders", Content_Type=FORM)
        for action, member, code in (
            ("SendMessageBatch", "Entries", "AWS.SimpleQueueService.EmptyBatchRequest"),
            ("UntagQueue", "TagKeys", "InvalidParameterValue"),
        ):
            answer = http("POST", "/", f"Action={action}&QueueUrl=orders&{member}=", Content_Type=FORM)
            assert Sqs(http, "query").fault(answer).code == code

    def test_what_a_large_request_is_read_into_is_counted_in_the_budget(self, broker: LocalBroker) -> None:
        with BackgroundServer(broker, replace(SETTINGS, max_memory=1024 * 1024)) as server:
            http = Http(server.url)
            body = json.dumps({"QueueUrl": "q", "AttributeNames": ["x"] * 40_000}).encode()
            fault = Sqs(http, "json").fault(http("POST", "/", body, X_Amz_Target="AmazonSQS.GetQueueAttributes"))
            assert (fault.status, fault.code) == (503, "ServiceUnavailable")
            form = "Action=ListQueues&x=" + "x" * 200_000
            fault = Sqs(http, "query").fault(http("POST", "/", form, Content_Type=FORM))
            assert (fault.status, fault.code) == (503, "ServiceUnavailable")
            Sqs(http, "json")("CreateQueue", QueueName="orders")
            assert server.app.budget.used < 100_000

    # addresses

    def test_a_queue_answers_at_its_own_path(self, http: Http) -> None:
        path = f"/{ACCOUNT}/orders"
        Sqs(http, "json")("CreateQueue", QueueName="orders")
        Sqs(http, "json")("CreateQueue", QueueName="other")
        answer = http("GET", f"{path}?Action=GetQueueAttributes&AttributeName.1=All")
        assert answer.status == 200
        assert b"<Attribute><Name>QueueArn</Name><Value>arn:aws:sqs:" in answer.body
        answer = http("POST", path, "Action=SendMessage&MessageBody=hello", Content_Type=FORM)
        assert answer.status == 200
        answer = http("POST", path, b"{}", X_Amz_Target="AmazonSQS.ReceiveMessage")
        assert answer.json["Messages"][0]["Body"] == "hello"
        beats = {"Action": "GetQueueAttributes", "QueueUrl": f"http://x/{ACCOUNT}/other", "AttributeName.1": "QueueArn"}
        assert b":other<" in http("GET", f"{path}?{urlencode(beats)}").body
        assert b"/orders</QueueUrl>" in http("GET", f"{path}?Action=GetQueueUrl&QueueName=orders").body
        assert b"/orders</QueueUrl>" in http("GET", "/?Action=ListQueues").body

    def test_a_queues_path_has_no_action_for_other_queues(self, http: Http) -> None:
        for action in ("CreateQueue", "ListQueues", "Fly"):
            answer = http("GET", f"/{ACCOUNT}/orders?Action={action}&QueueName=x")
            fault = Sqs(http, "query").fault(answer)
            assert (fault.code, fault.status) == ("InvalidAction", 400)
            assert fault.text == f"The action {action} is not valid for this endpoint."

    def test_a_path_without_an_action_is_an_unknown_operation(self, http: Http) -> None:
        for headers in ({}, {"Accept": "application/json"}):
            answer = http("GET", f"/{ACCOUNT}/orders", **headers)
            assert (answer.status, answer.body.strip()) == (404, b"<UnknownOperationException/>")
        assert http("POST", "/", b"", Content_Type=FORM).status == 404
        assert http("PUT", f"/{ACCOUNT}/orders").status == 405

    def test_a_client_of_the_query_protocol_may_ask_for_json(self, http: Http) -> None:
        Sqs(http, "json")("CreateQueue", QueueName="orders")
        path = f"/{ACCOUNT}/orders"
        answer = http("GET", f"{path}?Action=GetQueueAttributes&AttributeName.1=QueueArn", Accept="application/json")
        assert answer.headers["content-type"] == "application/json"
        result = answer.json["GetQueueAttributesResponse"]
        assert result["GetQueueAttributesResult"] == {"Attributes": [{"Name": "QueueArn", "Value": arn("orders")}]}
        assert result["ResponseMetadata"] == {"RequestId": answer.headers["x-amzn-requestid"]}
        answer = http("GET", f"{path}?Action=ListQueues", Accept="application/json")
        assert answer.status == 400
        assert answer.json["Error"]["Code"] == "InvalidAction"

    def test_the_other_dialects_keep_their_paths(self, http: Http) -> None:
        assert http("GET", "/").status == 200
        assert http("PUT", f"/{ACCOUNT}").status == 201
        assert http("POST", f"/{ACCOUNT}/messages", b"Action=x", Content_Type="text/plain").status == 201
        assert http("GET", f"/{ACCOUNT}/messages").body == b"Action=x"
        assert http("GET", "/orders").status == 404
        assert http("DELETE", f"/{ACCOUNT}").status == 204

    @pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}])
    def test_no_page_of_another_site_uses_a_form_or_an_image_to_get_in(self, http: Http, headers: dict[str, str]) -> None:
        Sqs(http, "json")("CreateQueue", QueueName="orders")
        for answer in (
            http("POST", "/", "Action=DeleteQueue&QueueUrl=orders", Content_Type=FORM, **headers),
            http("GET", f"/{ACCOUNT}/orders?Action=DeleteQueue", **headers),
            http("GET", "/?Action=DeleteQueue&QueueUrl=orders", **headers),
        ):
            assert answer.status == 403
        assert len(Sqs(http, "json")("ListQueues")["QueueUrls"]) == 1

    # answers

    def test_text_survives_xml(self, http: Http) -> None:
        text = "a\r\nb\rc\td <&>\"' é 😀 ]]> &amp; \x85\u2028"
        sqs = Sqs(http, "query")
        queue = sqs("CreateQueue", QueueName="orders", tags={"<&>": text})["QueueUrl"]
        assert sqs("ListQueueTags", QueueUrl=queue)["Tags"] == {"<&>": text}

    def test_what_xml_cannot_express_does_not_break_an_answer(self, http: Http) -> None:
        sqs = Sqs(http, "query")
        sqs("CreateQueue", QueueName="q")
        fault = refused(sqs, "GetQueueAttributes", QueueUrl="q", AttributeNames=["a\x00\x1f\ufffe<b>"])
        assert fault.text == "Unknown Attribute a\ufffd\ufffd\ufffd<b>."
        answer = http(
            "POST", "/", b'{"QueueUrl": "q", "AttributeNames": ["\\ud800"]}', X_Amz_Target="AmazonSQS.GetQueueAttributes"
        )
        assert answer.status == 400
        assert answer.json["message"] == "Unknown Attribute \ud800."

    def test_an_operation_without_output_has_an_empty_answer(self, http: Http) -> None:
        sqs = Sqs(http, "json")
        queue = sqs("CreateQueue", QueueName="orders")["QueueUrl"]
        assert sqs.send("PurgeQueue", QueueUrl=queue).body in (b"", b"{}")
        tree = ElementTree.fromstring(Sqs(http, "query").send("PurgeQueue", QueueUrl=queue).body)
        assert [child.tag for child in tree] == [f"{NAMESPACE}ResponseMetadata"]
        empty = Sqs(http, "query").send("ReceiveMessage", QueueUrl=queue).body
        assert b"<ReceiveMessageResult/>" in empty

    def test_each_answer_has_a_request_id_of_its_own(self, sqs: Sqs, queue: str) -> None:
        ids = {sqs.send("GetQueueUrl", QueueName=name).headers["x-amzn-requestid"] for name in ("orders", "none", "orders")}
        assert len(ids) == 3
        assert all(len(each) == 36 for each in ids)

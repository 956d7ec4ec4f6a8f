// @aws-sdk/client-sqs, sqs-consumer and sqs-producer under Node: the SDK checks the MD5 of every body and attribute itself.

import {
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  GetQueueAttributesCommand,
  GetQueueUrlCommand,
  QueueDoesNotExist,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SQSClient,
} from "@aws-sdk/client-sqs";
import { isDeepStrictEqual } from "node:util";
import { Consumer } from "sqs-consumer";
import { Producer } from "sqs-producer";

const url = process.env.SQS_URL;
const prefix = process.env.SQS_PREFIX;
const patience = 120_000;
const access = { region: "us-east-1", credentials: { accessKeyId: "test", secretAccessKey: "test" } };
const sqs = new SQSClient({ ...access, endpoint: url });

function expect(what, found, wanted = true) {
  if (!isDeepStrictEqual(found, wanted)) {
    console.error(`${what}: found ${JSON.stringify(found)} instead of ${JSON.stringify(wanted)}`);
    process.exit(1);
  }
}

async function until(what, happened) {
  const giveUpAt = Date.now() + patience;
  while (!(await happened())) {
    expect(`${what}: in time`, Date.now() < giveUpAt);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function create(name, attributes = {}) {
  const given = { QueueName: prefix + name, Attributes: { VisibilityTimeout: "3600", ...attributes } };
  return (await sqs.send(new CreateQueueCommand(given))).QueueUrl;
}

async function left(queue) {
  const names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
  const found = await sqs.send(new GetQueueAttributesCommand({ QueueUrl: queue, AttributeNames: names }));
  return names.map((name) => found.Attributes[name]);
}

async function client() {
  const queue = await create("js");
  const found = await sqs.send(new GetQueueUrlCommand({ QueueName: `${prefix}js` }));
  expect("the URL", [found.QueueUrl, queue], [`${url}/000000000000/${prefix}js`, `${url}/000000000000/${prefix}js`]);
  const attributes = {
    text: { DataType: "String", StringValue: "é\r\n<&>" },
    bytes: { DataType: "Binary.png", BinaryValue: new Uint8Array([0, 1, 255]) },
  };
  await sqs.send(new SendMessageCommand({ QueueUrl: queue, MessageBody: "é\r\n<&> 😀", MessageAttributes: attributes }));
  const asked = { QueueUrl: queue, MessageAttributeNames: ["All"], MessageSystemAttributeNames: ["All"], WaitTimeSeconds: 5 };
  const [message] = (await sqs.send(new ReceiveMessageCommand(asked))).Messages;
  expect("the body", message.Body, "é\r\n<&> 😀");
  expect("a text", message.MessageAttributes.text.StringValue, "é\r\n<&>");
  expect("bytes", [...message.MessageAttributes.bytes.BinaryValue], [0, 1, 255]);
  expect("their type", message.MessageAttributes.bytes.DataType, "Binary.png");
  expect("the count", message.Attributes.ApproximateReceiveCount, "1");
  const entries = [{ Id: "a", ReceiptHandle: message.ReceiptHandle }, { Id: "b", ReceiptHandle: "wrong" }];
  const deleted = await sqs.send(new DeleteMessageBatchCommand({ QueueUrl: queue, Entries: entries }));
  expect("the deleted", [deleted.Successful.map((one) => one.Id), deleted.Failed.map((one) => one.Id)], [["a"], ["b"]]);
  try {
    await sqs.send(new GetQueueUrlCommand({ QueueName: `${prefix}nothing` }));
    expect("a queue that is not there is refused", false);
  } catch (error) {
    expect("the class of the error", [error instanceof QueueDoesNotExist, error.name], [true, "QueueDoesNotExist"]);
  }
  // Without an endpoint the SDK sends to the host of the queue's URL.
  const elsewhere = new SQSClient({ ...access, useQueueUrlAsEndpoint: true });
  const batch = { QueueUrl: queue, Entries: [{ Id: "1", MessageBody: "one" }, { Id: "2", MessageBody: "two" }] };
  expect("a batch to the queue's URL", (await elsewhere.send(new SendMessageBatchCommand(batch))).Successful.length, 2);
}

async function consumers() {
  const queue = await create("js-consumers");
  const producer = Producer.create({ queueUrl: queue, sqs });
  const wanted = Array.from({ length: 40 }, (_, number) => `m${number}`);
  const seen = [];
  let stopped = false;
  const handleMessage = async (message) => {
    if (message.Body === "m7" && !seen.includes("m7 failed")) {
      seen.push("m7 failed");
      throw new Error("no such order");
    }
    seen.push(message.Body);
    return message;
  };
  const options = { queueUrl: queue, sqs, batchSize: 10, waitTimeSeconds: 5, terminateVisibilityTimeout: true, handleMessage };
  const started = [1, 2, 3].map(() => Consumer.create(options));
  for (const consumer of started) {
    consumer.on("error", (error) => expect("an error while consuming", stopped ? "" : String(error), ""));
    consumer.start();
  }
  await producer.send(wanted);
  await until("all messages", () => seen.length >= 41);
  expect("each message once, but the one that failed", [...seen].sort(), [...wanted, "m7 failed"].sort());
  await until("an empty queue", async () => isDeepStrictEqual(await left(queue), ["0", "0"]));
  stopped = true;
  for (const consumer of started) consumer.stop({ abort: true });
  await producer.send("afterwards");
  const got = await sqs.send(new ReceiveMessageCommand({ QueueUrl: queue, WaitTimeSeconds: 20 }));
  expect("an aborted poll took no message", got.Messages?.map((one) => one.Body), ["afterwards"]);
}

async function fifo() {
  const queue = await create("js.fifo", { FifoQueue: "true" });
  const producer = Producer.create({ queueUrl: queue, sqs });
  const wanted = ["0", "1", "2", "3", "4"];
  for (const body of wanted) await producer.send({ id: body, body, groupId: "g", deduplicationId: body });
  const seen = [];
  const handleMessageBatch = async (messages) => {
    seen.push(...messages.map((message) => message.Body));
    return messages;
  };
  const options = { queueUrl: queue, sqs, batchSize: 10, handleMessageBatch, suppressFifoWarning: true, waitTimeSeconds: 1 };
  const consumer = Consumer.create(options);
  let stopped = false;
  consumer.on("error", (error) => expect("an error while consuming in order", stopped ? "" : String(error), ""));
  consumer.start();
  await until("all messages of the group", () => seen.length >= wanted.length);
  stopped = true;
  consumer.stop({ abort: true });
  expect("the order of the group", seen, wanted);
}

for (const part of [client, consumers, fifo]) {
  console.log(part.name);
  await part();
}
process.exit(0);

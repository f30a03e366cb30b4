// RabbitMQ's seven tutorials with amqplib, one after the other.
const amqp = require("amqplib");

const url = process.argv[2];

async function received(channel, queue, count, options = { noAck: true }) {
  const got = [];
  let finished;
  const all = new Promise((resolve) => (finished = resolve));
  const { consumerTag } = await channel.consume(
    queue,
    (message) => {
      got.push(message);
      if (!options.noAck) channel.ack(message);
      if (got.length === count) finished();
    },
    options,
  );
  await all;
  await channel.cancel(consumerTag);
  return got;
}

const bodies = (messages) => messages.map((message) => message.content.toString());
const keys = (messages) => messages.map((message) => message.fields.routingKey);

async function main() {
  const connection = await amqp.connect(url);
  const channel = await connection.createChannel();
  const report = {};

  await channel.assertQueue("js-hello", { durable: false });
  channel.sendToQueue("js-hello", Buffer.from("Hello World!"));
  report.hello = bodies(await received(channel, "js-hello", 1));

  await channel.assertQueue("js-tasks", { durable: true });
  for (const task of ["one.", "two.."]) channel.sendToQueue("js-tasks", Buffer.from(task), { persistent: true });
  const worker = await connection.createChannel();
  await worker.prefetch(1);
  const held = await new Promise((resolve) => worker.consume("js-tasks", resolve, { noAck: false }));
  await worker.close(); // without an ack
  report.work = [held.content.toString(), ...bodies(await received(channel, "js-tasks", 2, { noAck: false }))];

  await channel.assertExchange("js-logs", "fanout", { durable: false });
  const queues = [];
  for (let number = 0; number < 2; number += 1) {
    const { queue } = await channel.assertQueue("", { exclusive: true });
    await channel.bindQueue(queue, "js-logs", "");
    queues.push(queue);
  }
  channel.publish("js-logs", "", Buffer.from("info: Hello"));
  report.logs = [];
  for (const queue of queues) report.logs.push(bodies(await received(channel, queue, 1)));

  await channel.assertExchange("js-direct", "direct", { durable: false });
  const direct = (await channel.assertQueue("", { exclusive: true })).queue;
  for (const severity of ["warning", "error"]) await channel.bindQueue(direct, "js-direct", severity);
  for (const severity of ["info", "warning", "error"]) channel.publish("js-direct", severity, Buffer.from("text"));
  report.direct = keys(await received(channel, direct, 2));

  await channel.assertExchange("js-topic", "topic", { durable: false });
  const topic = (await channel.assertQueue("", { exclusive: true })).queue;
  for (const pattern of ["*.orange.*", "lazy.#"]) await channel.bindQueue(topic, "js-topic", pattern);
  for (const key of ["quick.orange.rabbit", "quick.brown.fox", "lazy.brown.fox"]) {
    channel.publish("js-topic", key, Buffer.from("animal"));
  }
  report.topic = keys(await received(channel, topic, 2));

  await channel.assertQueue("js-rpc", { durable: false });
  await channel.consume("js-rpc", (message) => {
    let [low, high] = [0, 1];
    for (let number = parseInt(message.content.toString(), 10); number > 0; number -= 1) [low, high] = [high, low + high];
    const { replyTo, correlationId } = message.properties;
    channel.sendToQueue(replyTo, Buffer.from(String(low)), { correlationId });
    channel.ack(message);
  });
  const callback = (await channel.assertQueue("", { exclusive: true })).queue;
  channel.sendToQueue("js-rpc", Buffer.from("30"), { correlationId: "mine", replyTo: callback });
  const [answer] = await received(channel, callback, 1);
  report.rpc = answer.properties.correlationId === "mine" ? answer.content.toString() : "not mine";

  const confirming = await connection.createConfirmChannel();
  let returned = "";
  confirming.on("return", (message) => (returned = message.fields.routingKey));
  const { queue } = await confirming.assertQueue("", { exclusive: true });
  for (let number = 0; number < 50; number += 1) confirming.sendToQueue(queue, Buffer.from(String(number)));
  await confirming.waitForConfirms();
  const confirmed = (await confirming.checkQueue(queue)).messageCount;
  confirming.publish("", "no-such-queue", Buffer.from(""), { mandatory: true });
  await confirming.waitForConfirms();
  report.confirms = { confirmed, returned };

  await connection.close();
  console.log(JSON.stringify(report));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

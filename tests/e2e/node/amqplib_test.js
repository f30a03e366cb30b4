// What node's amqplib does against the broker: one scenario per argument, run by test_node_amqplib.py.
"use strict";
const amqp = require("amqplib");
const assert = require("node:assert");

const [, , scenario, url] = process.argv;

const soon = (emitter, event) =>
  new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`no ${event}`)), 8000);
    emitter.once(event, (...values) => (clearTimeout(late), resolve(values)));
  });

// Consume until so many messages have come.
const take = async (channel, queue, count, options = {}) => {
  const got = [];
  let full;
  const done = new Promise((resolve) => (full = resolve));
  await channel.consume(queue, (message) => got.push(message) === count && full(), options);
  await done;
  return got;
};

const scenarios = {
  async workQueue(connection) {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    await channel.prefetch(10);
    const headers = { n: 1, big: 2 ** 40, text: "ü", yes: true, nothing: null, deep: { list: [1, "a"] } };
    for (let n = 0; n < 50; n++) channel.sendToQueue(queue, Buffer.from(`${n}`), { headers, persistent: true });
    await channel.waitForConfirms();
    const bodies = [];
    await new Promise((resolve) =>
      channel.consume(queue, (message) => {
        assert.deepStrictEqual({ ...message.properties.headers }, headers);
        bodies.push(message.content.toString());
        channel.ack(message);
        if (bodies.length === 50) resolve();
      }),
    );
    assert.deepStrictEqual(bodies, Array.from({ length: 50 }, (_, n) => `${n}`));
    assert.strictEqual((await channel.checkQueue(queue)).messageCount, 0);
  },

  async routing(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    const exchange = `node-${queue}`;
    await channel.assertExchange(exchange, "topic", { autoDelete: true, durable: false });
    await channel.bindQueue(queue, exchange, "a.*");
    channel.publish(exchange, "a.b", Buffer.from("in"));
    channel.publish(exchange, "b.a", Buffer.from("out"));
    const [message] = await take(channel, queue, 1, { noAck: true });
    assert.strictEqual(message.content.toString(), "in");
    assert.strictEqual(message.fields.routingKey, "a.b");
    channel.publish(exchange, "no.route", Buffer.from("back"), { mandatory: true });
    const [returned] = await soon(channel, "return");
    assert.strictEqual(returned.fields.replyText, "NO_ROUTE");
    assert.strictEqual(returned.content.toString(), "back");
    assert.strictEqual(await channel.get(queue), false);
  },

  async rpc(connection) {
    const server = await connection.createChannel();
    const { queue } = await server.assertQueue("", { exclusive: true });
    await server.consume(queue, (message) => {
      const { replyTo, correlationId } = message.properties;
      server.sendToQueue(replyTo, Buffer.from(`re: ${message.content}`), { correlationId });
      server.ack(message);
    });
    const client = await connection.createChannel();
    const replies = take(client, "amq.rabbitmq.reply-to", 1, { noAck: true });
    await client.checkQueue(queue);
    client.sendToQueue(queue, Buffer.from("ping"), { replyTo: "amq.rabbitmq.reply-to", correlationId: "7" });
    const [reply] = await replies;
    assert.strictEqual(reply.content.toString(), "re: ping");
    assert.strictEqual(reply.properties.correlationId, "7");
  },

  async deadLetters(connection) {
    const channel = await connection.createChannel();
    const dead = (await channel.assertQueue("", { exclusive: true })).queue;
    const { queue } = await channel.assertQueue("", {
      exclusive: true, messageTtl: 60000, deadLetterExchange: "", deadLetterRoutingKey: dead, maxPriority: 5,
    });
    channel.sendToQueue(queue, Buffer.from("low"), { priority: 1 });
    channel.sendToQueue(queue, Buffer.from("high"), { priority: 5 });
    await channel.checkQueue(queue);
    const first = await channel.get(queue);
    assert.strictEqual(first.content.toString(), "high");
    channel.nack(first, false, false);
    const [letter] = await take(channel, dead, 1);
    assert.strictEqual(letter.properties.headers["x-death"][0].reason, "rejected");
    assert.strictEqual(letter.properties.headers["x-death"][0].queue, queue);
  },

  async errors(connection) {
    const channel = await connection.createChannel();
    const failed = soon(channel, "error");
    await assert.rejects(channel.checkQueue("does.not.exist"), /404 \(NOT-FOUND\).*no queue 'does.not.exist' in vhost '\/'/);
    assert.strictEqual((await failed)[0].code, 404);
    const other = await connection.createChannel(); // the connection lives
    const { queue } = await other.assertQueue("", { exclusive: true });
    const gone = take(other, queue, 1);
    await other.checkQueue(queue);
    await (await connection.createChannel()).deleteQueue(queue);
    assert.deepStrictEqual(await gone, [null]); // the consumer is told
    const third = await connection.createChannel();
    third.on("error", () => {});
    await third.assertQueue(`node-${queue}`, { exclusive: true });
    await assert.rejects(third.assertQueue(`node-${queue}`, { exclusive: true, messageTtl: 5 }), /406.*inequivalent arg 'x-message-ttl'/);
  },

  async largeBodies(connection) {
    const channel = await connection.createChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    const body = Buffer.alloc(700_000, "0123456789");
    channel.sendToQueue(queue, body);
    channel.sendToQueue(queue, Buffer.alloc(0));
    const [large, empty] = await take(channel, queue, 2, { noAck: true });
    assert.ok(large.content.equals(body));
    assert.strictEqual(empty.content.length, 0);
  },
};

(async () => {
  const connection = await amqp.connect(url, { clientProperties: { connection_name: "node test" } });
  await scenarios[scenario](connection);
  await connection.close();
})().catch((error) => {
  console.error(error);
  process.exit(1);
});

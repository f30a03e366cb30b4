// A publisher that knows two nodes, as docs/failover.md shows it. Prints the number of each confirmed message.
"use strict";
const amqp = require("amqplib");

const urls = process.argv.slice(2);
let number = 0;

const connect = async () => {
  for (;;) {
    for (const url of urls) {
      try {
        return await amqp.connect(url);
      } catch {
        // a standby, or a dead node: the next one
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
};

const publish = async () => {
  const connection = await connect();
  connection.on("error", () => {}); // followed by "close"
  const closed = new Promise((_, reject) => connection.once("close", () => reject(new Error("closed"))));
  closed.catch(() => {});
  const channel = await connection.createConfirmChannel();
  channel.on("error", () => {});
  await channel.assertQueue("amqplib", { durable: true });
  for (;;) {
    channel.sendToQueue("amqplib", Buffer.from(`${number}`), { persistent: true });
    await Promise.race([channel.waitForConfirms(), closed]);
    console.log(`confirmed amqplib ${number++}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
};

(async () => {
  for (;;) await publish().catch(() => {});
})();

// Publishes to, or consumes from, a queue with amqplib as fast as it goes: node amqplib_client.js
// <folder with node_modules> publish|consume <url> <queue> <messages>
"use strict";
const path = require("node:path");
const [, , folder, what, url, queue, count] = process.argv;
const amqp = require(path.join(folder, "node_modules", "amqplib"));
const messages = Number(count);

function body(number) {
  const head = `{"n":${String(number).padStart(9, "0")},"text":"`;
  return Buffer.from(head.padEnd(20 + ((number * 7919) % 580), "x"));
}

async function publish() {
  const connection = await amqp.connect(url);
  const channel = await connection.createChannel();
  for (let number = 0; number < messages; number += 1) {
    const messageId = `m-${String(number).padStart(12, "0")}`;
    if (!channel.sendToQueue(queue, body(number), { messageId })) {
      await new Promise((resolve) => channel.once("drain", resolve));
    }
  }
  await channel.close();
  await connection.close();
}

async function consume() {
  const connection = await amqp.connect(url);
  const channel = await connection.createChannel();
  await channel.prefetch(1000);
  let seen = 0;
  await new Promise((resolve) => {
    channel.consume(queue, (message) => {
      channel.ack(message);
      seen += 1;
      if (seen === messages) resolve();
    }).then(() => console.log("ready"));
  });
  await channel.close();
  await connection.close();
}

(what === "publish" ? publish() : consume()).catch((error) => {
  console.error(error);
  process.exit(1);
});

// amqp-connection-manager: confirms, a retry by nack, dead letters, over a connection that it keeps open.
const manager = require("amqp-connection-manager");

const url = process.argv[2];
const done = [];
const tries = {};

async function main() {
  const connection = manager.connect([url]);
  let buried;
  const dead = new Promise((resolve) => (buried = resolve));
  const channel = connection.createChannel({
    confirm: true,
    setup: async (raw) => {
      await raw.assertQueue("acm.dead", { durable: true });
      await raw.assertQueue("acm.jobs", {
        durable: true,
        arguments: {
          "x-queue-type": "quorum",
          "x-delivery-limit": 2,
          "x-dead-letter-exchange": "",
          "x-dead-letter-routing-key": "acm.dead",
        },
      });
      await raw.prefetch(1);
    },
  });
  await channel.consume("acm.jobs", (message) => {
    const name = message.content.toString();
    tries[name] = (tries[name] || 0) + 1;
    if (name === "poison" || (name === "shaky" && tries[name] === 1)) {
      channel.nack(message, false, true);
    } else {
      done.push(name);
      channel.ack(message);
    }
  });
  await channel.consume("acm.dead", (message) => {
    channel.ack(message);
    buried(message);
  });
  for (const name of ["plain", "shaky", "poison"]) await channel.sendToQueue("acm.jobs", Buffer.from(name));
  const letter = await dead;
  const reason = letter.properties.headers["x-death"][0].reason;
  await channel.close();
  await connection.close();
  console.log(JSON.stringify({ done: done.sort(), tries, dead: [letter.content.toString()], reason }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

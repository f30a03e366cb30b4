// rascal: topology from its configuration, redelivery by its own retry strategy, dead letters by its nack.
const { BrokerAsPromised } = require("rascal");

const url = process.argv[2];
const done = [];
const tries = {};

const config = {
  vhosts: {
    "/": {
      connection: { url },
      exchanges: ["rascal.jobs", "rascal.dead"],
      queues: {
        "rascal.jobs": {
          options: {
            arguments: { "x-dead-letter-exchange": "rascal.dead", "x-dead-letter-routing-key": "dead" },
          },
        },
        "rascal.dead": {},
      },
      bindings: {
        jobs: { source: "rascal.jobs", destination: "rascal.jobs", bindingKey: "job" },
        dead: { source: "rascal.dead", destination: "rascal.dead", bindingKey: "dead" },
      },
      publications: { job: { exchange: "rascal.jobs", routingKey: "job" } },
      subscriptions: {
        jobs: { queue: "rascal.jobs", prefetch: 1 },
        dead: { queue: "rascal.dead" },
      },
    },
  },
};

async function main() {
  const broker = await BrokerAsPromised.create(config);
  broker.on("error", console.error);
  let buried;
  const dead = new Promise((resolve) => (buried = resolve));
  const jobs = await broker.subscribe("jobs");
  jobs.on("message", (message, content, ackOrNack) => {
    tries[content] = (tries[content] || 0) + 1;
    if (content === "poison" || (content === "shaky" && tries[content] === 1)) {
      ackOrNack(new Error(`${content} fails`), [
        { strategy: "republish", attempts: 2, defer: 10 },
        { strategy: "nack" },
      ]);
    } else {
      done.push(content);
      ackOrNack();
    }
  });
  const letters = await broker.subscribe("dead");
  letters.on("message", (message, content, ackOrNack) => {
    ackOrNack();
    buried({ content, reason: message.properties.headers["x-death"][0].reason });
  });
  for (const name of ["plain", "shaky", "poison"]) {
    const publication = await broker.publish("job", name);
    await new Promise((resolve, reject) => publication.on("success", resolve).on("error", reject));
  }
  const letter = await dead;
  await broker.shutdown();
  console.log(JSON.stringify({ done: done.sort(), tries, dead: [letter.content], reason: letter.reason }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

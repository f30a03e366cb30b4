// NestJS: a microservice on RabbitMQ's transport: request and answer, events with manual acks, dead letters.
require("reflect-metadata");
const { Module, Controller, Inject } = require("@nestjs/common");
const { NestFactory } = require("@nestjs/core");
const {
  ClientProxyFactory,
  Ctx,
  EventPattern,
  MessagePattern,
  Payload,
  RmqContext,
  Transport,
} = require("@nestjs/microservices");
const { firstValueFrom } = require("rxjs");
const amqplib = require("amqplib");

const url = process.argv[2];
const done = [];
const tries = {};
const queueOptions = {
  durable: true,
  arguments: {
    "x-queue-type": "quorum",
    "x-delivery-limit": 2,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "nest.dead",
  },
};

class Jobs {
  shout(text, context) {
    context.getChannelRef().ack(context.getMessage());
    return text.toUpperCase();
  }

  work(name, context) {
    const channel = context.getChannelRef();
    tries[name] = (tries[name] || 0) + 1;
    if (name === "poison" || (name === "shaky" && tries[name] === 1)) {
      channel.nack(context.getMessage(), false, true);
    } else {
      done.push(name);
      channel.ack(context.getMessage());
    }
  }
}

// Decorators, applied by hand: plain JavaScript has no syntax for those of parameters.
function decorate(method, pattern) {
  const descriptor = Object.getOwnPropertyDescriptor(Jobs.prototype, method);
  Payload()(Jobs.prototype, method, 0);
  Ctx()(Jobs.prototype, method, 1);
  pattern(Jobs.prototype, method, descriptor);
  Reflect.defineMetadata("design:paramtypes", [Object, RmqContext], Jobs.prototype, method);
}
decorate("shout", MessagePattern("shout"));
decorate("work", EventPattern("work"));
Controller()(Jobs);
class App {}
Module({ controllers: [Jobs] })(App);

async function main() {
  const plain = await amqplib.connect(url);
  const channel = await plain.createChannel();
  await channel.assertQueue("nest.dead", { durable: true });
  let buried;
  const dead = new Promise((resolve) => (buried = resolve));
  await channel.consume("nest.dead", (message) => buried(message), { noAck: true });
  const options = { urls: [url], queue: "nest.jobs", queueOptions, prefetchCount: 1 };
  const app = await NestFactory.createMicroservice(App, {
    transport: Transport.RMQ,
    options: { ...options, noAck: false },
    logger: false,
  });
  await app.listen();
  const client = ClientProxyFactory.create({ transport: Transport.RMQ, options });
  const answer = await firstValueFrom(client.send("shout", "hello"));
  for (const name of ["plain", "shaky", "poison"]) await firstValueFrom(client.emit("work", name), { defaultValue: null });
  const letter = await dead;
  await client.close();
  await app.close();
  await plain.close();
  const body = JSON.parse(letter.content.toString());
  const reason = letter.properties.headers["x-death"][0].reason;
  console.log(JSON.stringify({ done: done.sort(), tries, dead: [body.data], reason, answer }));
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

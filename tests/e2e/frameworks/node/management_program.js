// The clients of the management API that npm carries: every call, and which of them fail.
const amqp = require("amqplib");
const manager = require("http-rabbitmq-manager");
const { RabbitAdmin } = require("rabbitmq-admin");
const stats = require("rabbitmq-stats");

const [amqpUrl, httpUrl] = process.argv.slice(2);
const everything = { configure: ".*", write: ".*", read: ".*" };
const pair = { vhost: "/", source: "npm.x", destination: "npm.r", type: "queue" };
const message = { properties: {}, routing_key: "k", payload: "hello", payload_encoding: "string" };
const get = { count: 1, ackmode: "ack_requeue_false", encoding: "auto" };
const plain = { durable: true, auto_delete: false, arguments: {} };

async function main() {
  const connection = await amqp.connect(amqpUrl);
  const channel = await connection.createChannel();
  await channel.assertQueue("npm.q");
  await channel.consume("npm.q", () => {});
  const s = stats(httpUrl, "guest", "guest");
  const a = RabbitAdmin({ rabbitHost: httpUrl });
  const { hostname: host, port } = new URL(httpUrl);
  const old = manager.client({ host, port: Number(port) });
  const m = new Proxy(old, {
    get: (_, name) => (...given) =>
      new Promise((resolve, reject) => old[name](...given, (error, found) => (error ? reject(error) : resolve(found)))),
  });
  const mine = (await s.getConnections())[0].name;
  const itsChannel = (await s.getChannels())[0].name;
  const node = (await s.getNodes())[0].name;
  const calls = [
    ...["getOverview", "getNodes", "getExtensions", "getConnections", "getChannels", "getConsumers"].map((name) => [s, name]),
    ...["getExchanges", "getQueues", "getBindings", "getVhosts", "getUsers", "getPolicies", "whoAmI"].map((name) => [s, name]),
    [s, "getNode", node], [s, "getConnection", mine], [s, "getConnectionChannels", mine], [s, "getChannel", itsChannel],
    [s, "getVhostConsumers", "/"], [s, "getVhostExchanges", "/"], [s, "getVhostBindings", "/"], [s, "getVhost", "/"],
    [s, "putVhostExchange", "/", "npm.x", { ...plain, type: "direct", internal: false }], [s, "getVhostExchange", "/", "npm.x"],
    [s, "putVhostQueue", "/", "npm.r", plain], [s, "getVhostQueue", "/", "npm.r"], [s, "deleteVhostQueueContents", "/", "npm.r"],
    [s, "getVhostQueues", "/", { page: 1, page_size: 10 }], [s, "putVhost", "npm"], [s, "putUser", "npm", { password: "x", tags: "" }],
    [s, "getUser", "npm"], [s, "setUserPermissions", "npm", "npm", everything], [s, "getUserPermissions", "npm"],
    [s, "deleteUser", "npm"], [s, "deleteVhost", "npm"],
    ...["getOverview", "getClusterName", "getNodes", "getExtensions", "getDefinitions", "listVhosts"].map((name) => [a, name]),
    [a, "setClusterName", "npm"], [a, "getNode", node], [a, "getDefinitions", "/"], [a, "getConnection", mine],
    [a, "getConnections", { page: 1, pageSize: 1, name: ".*", useRegex: true }], [a, "getVhostConnections", "/"],
    [a, "getChannels"], [a, "getConnectionChannels", mine], [a, "getVhostChannels", "/"], [a, "getConsumers", "/"],
    [a, "createExchange", "/", { ...plain, name: "npm.y", type: "topic" }], [a, "getExchanges", "/", { name: "npm" }],
    [a, "createQueue", "/", "npm.t", { durable: true, arguments: { "x-queue-type": "quorum" } }], [a, "getQueue", "/", "npm.t"],
    [a, "createBinding", { ...pair, routingKey: "k" }], [a, "getBindings", pair], [a, "getBinding", { ...pair, props: "k" }],
    [a, "createBinding", { ...pair, destination: "npm.y", type: "exchange", routingKey: "k" }], [a, "getBindings", { vhost: "/" }],
    [a, "getSourceExchangeBindings", "/", "npm.x"], [a, "getDestinationExchangeBindings", "/", "npm.y"],
    [a, "getQueueBindings", "/", "npm.r"], [a, "publishToExchange", "/", "npm.x", message], [a, "getMessages", "/", "npm.r", get],
    [a, "getQueues", "/", { page: 1, pageSize: 2 }], [a, "deleteBinding", { ...pair, props: "k" }], [a, "deleteQueue", "/", "npm.t", {}],
    [a, "createVhost", "npm2"], [a, "getVhost", "npm2"], [a, "setUserPermissions", "npm2", "guest", everything],
    [a, "getUserPermissions", "npm2", "guest"], [a, "deleteVhost", "npm2"], [a, "deleteExchange", "/", "npm.y"],
    ...["overview", "getClusterName", "listNodes", "listExtensions", "listDefinitions"].map((name) => [m, name]),
    [m, "getNode", { name: node, memory: true }], [m, "listChannels", { vhost: "/" }], [m, "listQueues", { vhost: "/" }],
    [m, "getQueueBindings", { vhost: "/", queue: "npm.r" }], [m, "setQueueActions", { vhost: "/", queue: "npm.r", action: "sync" }],
    [m, "createVhost", { vhost: "npm4" }], [m, "getVhostPermissions", { vhost: "npm4" }], [m, "deleteVhost", { vhost: "npm4" }],
    [s, "deleteVhostExchange", "/", "npm.x"], [s, "deleteVhostQueue", "/", "npm.r"],
    [a, "getQueue", "/", "npm.r"], [a, "deleteQueue", "/", "npm.q", { ifUnused: true }], // these two must fail
  ];
  const failed = [];
  for (const [client, name, ...given] of calls) {
    try {
      await client[name](...given);
    } catch (error) {
      const status = error.statusCode || (error.response && error.response.status) || error.status || error.message;
      failed.push(`${name} ${given.join(" ")}: ${status || error.constructor.name}`);
    }
  }
  connection.on("error", () => {}); // it is closed from outside
  const closed = new Promise((resolve) => connection.once("close", (error) => resolve(error && error.message)));
  await a.closeConnection(mine, "enough");
  console.log(JSON.stringify({ calls: calls.length, failed, closed: await closed }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

// A work queue: who consumes it and since when they hold what, its messages, bindings, and moving them.
import { html, useState } from "../parts/html.js";
import { get, part, post } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { Field, Form } from "../parts/form.js";
import { count, since, some, span } from "../parts/format.js";
import { Histogram } from "../parts/histogram.js";
import { JobState, runJob } from "../parts/jobs.js";
import { brokerNow } from "../parts/live.js";
import { useData } from "../parts/load.js";
import { Message, PublishFields, publish } from "../parts/message.js";
import { isAdministrator } from "../parts/session.js";
import { Problem, Table } from "../parts/table.js";

export function cancelConsumer(row) {
  const { connection_name: connection } = row.channel_details;
  return confirmDanger({ title: `Cancel the consumer ${row.consumer_tag}`, text: `${some(row.messages_unacknowledged, "unacknowledged message")} go back to the queue ${row.queue.name}. The connection stays open.`, action: "Cancel the consumer", run: () => post("/api/v1/operator/consumers/cancel", { vhost: row.queue.vhost, queue: row.queue.name, consumer_tag: row.consumer_tag, connection }) });
}

function Consumers({ data, reload }) {
  const now = brokerNow();
  const columns = [
    { title: "Consumer", show: (row) => html`<code>${row.consumer_tag}</code>${row.active ? null : html` <span class="tag">waits</span>`}` },
    { title: "Connection", show: (row) => { const name = row.channel_details.connection_name; return html`<a href=${`#/connections?text=${part(name)}`}>${row.client_name || name}</a><br /><span class="muted">${row.channel_details.peer_host}:${row.channel_details.peer_port}</span>`; } },
    { title: "User", show: (row) => row.channel_details.user },
    { title: "Prefetch", num: true, show: (row) => (row.prefetch_count ? count(row.prefetch_count) : "unlimited") },
    { title: "Unacked", num: true, show: (row) => (row.ack_required ? count(row.messages_unacknowledged) : "no acks") },
    { title: "Oldest held for", num: true, show: (row) => (row.held_since ? since(row.held_since, now) : "") },
  ];
  if (isAdministrator()) columns.push({ title: "", show: (row) => html`<button class="do small danger" onClick=${() => cancelConsumer(row).then(reload)}>Cancel…</button>` });
  return html`<section class="panel" aria-label="Consumers"><h2>Consumers</h2><${Table} label="Consumers" columns=${columns} rows=${data.consumers} empty="This queue has no consumer." /></section>`;
}

const HELD_BY = { get: "basic.get", cancelled: "a cancelled consumer", lease: "a lease over HTTP" };

function OtherHolders({ data }) {
  const now = brokerNow();
  if (!data.others.length) return null;
  const columns = [
    { title: "Held by", show: (row) => html`${HELD_BY[row.kind]}${row.consumer ? html` <code>${row.consumer}</code>` : null}` },
    { title: "Connection", show: (row) => html`${row.connection ? html`<a href=${`#/connections?text=${part(row.connection)}`}>${row.client || row.connection}</a>, channel ${row.channel}<br />` : null}<span class="muted">${row.host}</span>` },
    { title: "User", show: (row) => row.user },
    { title: "Unacked", num: true, show: (row) => count(row.unacked) },
    { title: "Oldest held for", num: true, show: (row) => since(row.since, now) },
    { title: "Lease ends in", num: true, show: (row) => (row.expires ? span(Math.max(0, (row.expires - now) / 1000)) : "never") },
  ];
  return html`<section class="panel" aria-label="Held without a consumer"><h2>Held without a consumer</h2><${Table} label="Held without a consumer" columns=${columns} rows=${data.others} /></section>`;
}

// The bounds of ages are whole seconds, minutes, hours or days.
const round = (seconds) => (seconds >= 86400 ? `${seconds / 86400} d` : seconds >= 3600 ? `${seconds / 3600} h` : seconds >= 60 ? `${seconds / 60} min` : `${seconds} s`);
const range = (name) => (row) => (row.below === null ? `${name(row.from)} and more` : row.from === 0 ? `under ${name(row.below)}` : `${name(row.from)} to ${name(row.below)}`);
const times = (row) => (row.below === null ? `${row.from} and more` : row.below - row.from === 1 ? `${row.from}` : `${row.from} to ${row.below - 1}`);

function Histograms({ base }) {
  const { data } = useData(`${base}/histograms`, 5);
  if (!data || !data.seen) return null;
  return html`<div class="grid"><${Histogram} title="Age of waiting messages" rows=${data.ages} name=${range(round)} /><${Histogram} title="Deliveries before now" rows=${data.deliveries} name=${times} /></div>
    ${data.seen < data.total ? html`<p class="muted">Of the first ${count(data.seen)} of ${count(data.total)} messages.</p>` : null}`;
}

function Peek({ base }) {
  const [found, setFound] = useState(null);
  const look = async (given) => {
    setFound(await get(`${base}/messages?limit=${given.limit}&offset=${given.offset}`));
    return "nothing was taken";
  };
  return html`<section class="panel" aria-label="Messages"><h2>Messages</h2><p class="muted">Peeking takes nothing and marks nothing redelivered.</p>
    <${Form} run=${look} action="Peek" label="Peek"><${Field} label="Show"><input name="limit" type="number" min="1" max="200" defaultValue="10" /><//><${Field} label="From place"><input name="offset" type="number" min="0" max="10000" defaultValue="0" /><//><//>
    ${found && html`<p>${found.messages.length} of ${count(found.total)} that wait${found.truncated ? ", cut off because they are large" : ""}</p>${found.messages.map((row, index) => html`<${Message} key=${index} row=${row} />`)}`}</section>`;
}

function Publish({ vhost, name, reload }) {
  const run = async (given) => {
    const routed = await publish(vhost, "", name, given);
    reload();
    return routed ? "published" : "not routed";
  };
  return html`<details class="panel"><summary>Publish a message</summary><${Form} run=${run} action="Publish" label="Publish a message"><${PublishFields} /><//></details>`;
}

function Move({ vhost, name, may, reload }) {
  const [verb, setVerb] = useState("move");
  const [job, setJob] = useState(null);
  const path = `/api/v1/operator/queues/${part(vhost)}/${part(name)}`;
  const body = (given, dry) => ({
    ...(verb === "purge" ? {} : { to: given.queue ? { queue: given.queue } : { exchange: given.exchange, ...(given.key ? { routing_key: given.key } : {}) } }),
    filter: (given.filter || "").split("\n").map((line) => line.trim()).filter(Boolean),
    ...(given.count ? { count: Number(given.count) } : {}), ...(given.rate ? { rate: Number(given.rate) } : {}), dry_run: dry,
  });
  const run = async (given) => {
    if (verb !== "purge" && !given.queue && !given.exchange) throw new Error("name the queue or the exchange to send them to");
    const counted = await runJob(() => post(`${path}/${verb}?wait=30`, body(given, true)));
    if (given.dry) return `${some(counted.matched, "message")} would be ${verb === "purge" ? "deleted" : verb === "move" ? "moved" : "copied"}`;
    const start = () => post(`${path}/${verb}?wait=1`, body(given, false));
    const asked = verb === "copy" ? await start() : await confirmDanger({ title: verb === "purge" ? `Purge from ${name}` : `Move out of ${name}`, text: `${some(counted.matched, "message")} will be ${verb === "purge" ? "deleted for good" : "moved"}.`, name, action: verb === "purge" ? "Purge" : "Move", run: start });
    if (!asked) return "nothing was changed";
    setJob(asked);
    const done = await runJob(async () => asked, setJob);
    reload();
    return `${some(done.done, "message")} ${verb === "purge" ? "deleted" : verb === "move" ? "moved" : "copied"}${done.unrouted ? `, ${count(done.unrouted)} could not be routed and stayed` : ""}`;
  };
  const verbs = [["move", "Move"], ["copy", "Copy"], ["purge", "Purge by filter"]];
  return html`<details class="panel"><summary>Move, copy or purge messages</summary>
    <div class="bar tight" role="group" aria-label="What to do">${verbs.map(([key, title]) => html`<button class="do small" aria-pressed=${verb === key} onClick=${() => { setVerb(key); setJob(null); }}>${title}</button>`)}</div>
    <${Form} run=${run} action=${verbs.find(([key]) => key === verb)[1]} label="Move, copy or purge">
      ${verb === "purge" ? null : html`<${Field} label="To queue"><input name="queue" /><//><${Field} label="or exchange"><input name="exchange" /><//><${Field} label="with routing key"><input name="key" placeholder="its own" /><//>`}
      <${Field} label="Filters, one in a line" wide><textarea name="filter" rows="2" placeholder=${"header.tenant=acme\nage>3600"}></textarea><//>
      <${Field} label="At most"><input name="count" type="number" min="1" placeholder="all" /><//><${Field} label="Each second"><input name="rate" type="number" min="1" placeholder="no limit" /><//>
      <label><input type="checkbox" name="dry" /> only count</label><//>
    <${JobState} job=${job} setJob=${setJob} /></details>`;
}

function Bindings({ vhost, name }) {
  const { data, error } = useData(`/api/queues/${part(vhost)}/${part(name)}/bindings`, 10);
  const columns = [
    { title: "From exchange", show: (row) => html`<a href=${`#/exchanges/${part(vhost)}/${part(row.source || "amq.default")}`}>${row.source || "(default)"}</a>` },
    { title: "Routing key", show: (row) => html`<code>${row.routing_key}</code>` },
    { title: "Arguments", show: (row) => (Object.keys(row.arguments).length ? html`<code>${JSON.stringify(row.arguments)}</code>` : "") },
  ];
  return html`<section class="panel" aria-label="Bindings"><h2>Bindings</h2><${Problem} error=${error} />${data && html`<${Table} label="Bindings" columns=${columns} rows=${data} empty="Nothing is bound to this queue." />`}</section>`;
}

export function WorkQueue({ vhost, name, base, may, data, reload }) {
  return html`<${Consumers} data=${data} reload=${reload} /><${OtherHolders} data=${data} /><${Histograms} base=${base} />
    ${may("read") ? html`<${Peek} base=${base} />` : null}
    ${may("write") ? html`<${Publish} vhost=${vhost} name=${name} reload=${reload} />` : null}
    ${may("read") ? html`<${Move} vhost=${vhost} name=${name} may=${may} reload=${reload} />` : null}
    <${Bindings} vhost=${vhost} name=${name} />`;
}

// Who is connected over AMQP, how long each holds its oldest message, and what it consumes.
import { html, useState } from "../parts/html.js";
import { part, query, remove } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { bytes, count, moment, rate, since, some } from "../parts/format.js";
import { brokerNow } from "../parts/live.js";
import { useData } from "../parts/load.js";
import { Opened } from "../parts/opened.js";
import { route } from "../parts/route.js";
import { isAdministrator } from "../parts/session.js";
import { Loading, Pager, Problem, Search, Table } from "../parts/table.js";
import { linkTo } from "./queues.js";
import { cancelConsumer } from "./work_queue.js";

const LIMIT = 50;
const traffic = (value) => (value === null ? "–" : `${bytes(Math.round(value))}/s`);
const peer = (name) => name.split(" -> ")[0]; // the client's side of "client -> broker"

function Consumers({ name, hide }) {
  const { data, error, reload } = useData(`/api/v1/dashboard/connections/${part(name)}/consumers`, 3);
  const now = brokerNow();
  const columns = [
    { title: "Consumer", show: (row) => html`<code>${row.consumer_tag}</code>` },
    { title: "Queue", show: (row) => html`<a href=${linkTo(row.queue.vhost, row.queue.name)}>${row.queue.name}</a>` },
    { title: "Channel", num: true, show: (row) => row.channel_details.number },
    { title: "Prefetch", num: true, show: (row) => (row.prefetch_count ? count(row.prefetch_count) : "unlimited") },
    { title: "Unacked", num: true, show: (row) => count(row.messages_unacknowledged) },
    { title: "Oldest held for", num: true, show: (row) => (row.held_since ? since(row.held_since, now) : "") },
  ];
  if (isAdministrator()) columns.push({ title: "", show: (row) => html`<button class="do small danger" onClick=${() => cancelConsumer(row).then(reload)}>Cancel…</button>` });
  return html`<${Opened} label="Consumers of the connection"><h2>Consumers of <code>${name}</code></h2><${Problem} error=${error} />
    ${data && html`<${Table} label="Consumers" columns=${columns} rows=${data.consumers} empty="This connection consumes nothing." />`}<button class="do small" onClick=${hide}>Hide</button><//>`;
}

export function Connections() {
  const { text = "", sort = "held_since", descending = "", offset = "0" } = route.value.query;
  const [shown, setShown] = useState(null);
  const skip = Number(offset) || 0;
  const { data, error, reload } = useData("/api/v1/dashboard/connections" + query({ text, sort, descending, offset: skip, limit: LIMIT }), 3);
  const close = (row) => confirmDanger({ title: "Close the connection", text: `${row.client || row.name} (${row.user}) will be disconnected; ${some(row.unacked, "unacknowledged message")} go back to their queues.`, field: "Reason, which the client gets", action: "Close", run: (reason) => {
    if (shown === row.name) setShown(null); // its consumers go with it
    return remove(`/api/connections/${part(row.name)}`, undefined, reason ? { "x-reason": reason } : {});
  } }).then(reload);
  const now = brokerNow();
  const columns = [
    { title: "Client", sort: "client", show: (row) => html`<b>${row.client || row.product || "unnamed"}</b>${row.state === "running" ? null : html` <span class=${`tag ${row.state === "blocked" ? "bad" : "warn"}`}>${row.state}</span>`}<br /><code class="nowrap" title=${row.name}>${peer(row.name)}</code>${row.client && row.product ? html`<br /><small class="muted">${row.product}</small>` : null}` },
    { title: "User", sort: "user", show: (row) => html`${row.user} <span class="tag">${row.vhost}</span>` },
    { title: "Channels", sort: "channels", num: true, show: (row) => count(row.channels) },
    { title: "Consumers", sort: "consumers", num: true, show: (row) => (row.consumers ? html`<button class="link" aria-label=${`${count(row.consumers)}: consumers of ${row.client || row.name}`} onClick=${() => setShown(row.name)}>${count(row.consumers)}</button>` : "0") },
    { title: "Unacked", sort: "unacked", num: true, show: (row) => count(row.unacked) },
    { title: "Held for", sort: "held_since", age: true, num: true, show: (row) => (row.held_since ? since(row.held_since, now) : "") },
    { title: "Published", sort: "publishing", num: true, show: (row) => html`${rate(row.publishing)}<br /><small class="muted">${count(row.published)}</small>` },
    { title: "Delivered", sort: "delivering", num: true, show: (row) => html`${rate(row.delivering)}<br /><small class="muted">${count(row.delivered)}</small>` },
    { title: "Settled", sort: "settling", num: true, show: (row) => html`${rate(row.settling)}<br /><small class="muted">${count(row.settled)}</small>` },
    { title: "Bytes in", sort: "receiving", num: true, show: (row) => html`${traffic(row.receiving)}<br /><small class="muted">${bytes(row.received)}</small>` },
    { title: "Bytes out", sort: "sending", num: true, show: (row) => html`${traffic(row.sending)}<br /><small class="muted">${bytes(row.sent)}</small>` },
    { title: "Connected", sort: "connected_at", age: true, num: true, show: (row) => html`<time title=${moment(row.connected_at)}>${since(row.connected_at, now)}</time>` },
  ];
  if (isAdministrator()) columns.push({ title: "", show: (row) => html`<button class="do small danger" onClick=${() => close(row)}>Close…</button>` });
  return html`<h1>Connections</h1><${Problem} error=${error} />
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}><${Search} label="Client, user or address contains" /></form>
    ${shown && html`<${Consumers} key=${shown} name=${shown} hide=${() => setShown(null)} />`}
    <section class="panel">${data ? html`<${Table} label="Connections" order="held_since" columns=${columns} rows=${data.rows} keyOf=${(row) => row.name} empty=${text ? "No connection matches." : "No client is connected over AMQP."} /><${Pager} total=${data.total} offset=${skip} limit=${LIMIT} />` : html`<${Loading} />`}</section>`;
}

// Who is connected over AMQP, and how long each holds its oldest message.
import { html } from "../parts/html.js";
import { part, query, remove } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { bytes, count, moment, since } from "../parts/format.js";
import { brokerNow } from "../parts/live.js";
import { useData } from "../parts/load.js";
import { refine, route } from "../parts/route.js";
import { Pager, Problem, Table } from "../parts/table.js";

const LIMIT = 50;

export function Connections() {
  const { text = "", sort = "held_since", descending = "", offset = "0" } = route.value.query;
  const skip = Number(offset) || 0;
  const { data, error, reload } = useData("/api/v1/dashboard/connections" + query({ text, sort, descending, offset: skip, limit: LIMIT }), 3);
  const close = (row) => confirmDanger({ title: "Close the connection", text: `${row.client || row.name} (${row.user}) will be disconnected; ${count(row.unacked)} unacknowledged messages go back to their queues.`, action: "Close", run: () => remove(`/api/connections/${part(row.name)}`) }).then(reload);
  const now = brokerNow();
  const columns = [
    { title: "Client", sort: "client", show: (row) => html`<b>${row.client || row.product || "unnamed"}</b><br /><code>${row.name}</code>` },
    { title: "User", sort: "user", show: (row) => html`${row.user} <span class="tag">${row.vhost}</span>` },
    { title: "Library", show: (row) => row.product },
    { title: "Channels", sort: "channels", num: true, show: (row) => count(row.channels) },
    { title: "Unacked", sort: "unacked", num: true, show: (row) => count(row.unacked) },
    { title: "Oldest held for", sort: "held_since", num: true, show: (row) => (row.held_since ? since(row.held_since, now) : "") },
    { title: "State", sort: "state", show: (row) => (row.state === "blocked" ? html`<span class="bad">blocked</span>` : row.state) },
    { title: "Traffic", num: true, show: (row) => `${bytes(row.received)} in, ${bytes(row.sent)} out` },
    { title: "Connected", sort: "connected_at", show: (row) => moment(row.connected_at) },
    { title: "", show: (row) => html`<button class="do danger" onClick=${() => close(row)}>Close…</button>` },
  ];
  return html`<h1>Connections</h1><${Problem} error=${error} />
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}><input type="search" aria-label="Client, user or address contains" placeholder="Client, user or address ( / )" value=${text} onInput=${(event) => refine({ text: event.target.value, offset: "" })} /></form>
    <section class="panel">${data ? html`<${Table} label="Connections" columns=${columns} rows=${data.rows} keyOf=${(row) => row.name} empty=${text ? "No connection matches." : "Nobody is connected over AMQP."} /><${Pager} total=${data.total} offset=${skip} limit=${LIMIT} />` : html`<p class="muted">Loading…</p>`}</section>`;
}

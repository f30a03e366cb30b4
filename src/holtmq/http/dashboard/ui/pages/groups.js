// Consumer groups: how far behind, in messages and in time.
import { html } from "../parts/html.js";
import { part, post, remove } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { count, span } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { refine, route } from "../parts/route.js";
import { Problem, Table } from "../parts/table.js";

export function Groups() {
  const { text = "" } = route.value.query;
  const { data, error, reload } = useData("/api/v1/consumer-groups", 5);
  const rows = (data || []).filter((row) => `${row.name} ${row.queueName}`.includes(text)).sort((a, b) => b.maxTimeLag - a.maxTimeLag);
  const path = (row) => `/api/v1/consumer-groups/${part(row.name)}/queues/${part(row.queueName)}`;
  const toEnd = (row) => confirmDanger({ title: `Move ${row.name} to the end of ${row.queueName}`, text: `The group will skip ${count(row.totalLag)} messages that it has not read.`, name: row.name, action: "Skip them", run: () => post(`${path(row)}/seek`, { toEnd: true }) }).then(reload);
  const drop = (row) => confirmDanger({ title: `Delete ${row.name} on ${row.queueName}`, text: "Its place in every partition is forgotten.", name: row.name, action: "Delete", run: () => remove(path(row)) }).then(reload);
  const columns = [
    { title: "Group", show: (row) => html`<b>${row.name}</b>` },
    { title: "Queue", show: (row) => html`<a href=${`#/queue/%2F/${part(row.queueName)}`}>${row.queueName}</a>` },
    { title: "Behind", num: true, show: (row) => count(row.totalLag) },
    { title: "Oldest unread", num: true, show: (row) => (row.totalLag ? span(row.maxTimeLag) : "") },
    { title: "Partitions behind", num: true, show: (row) => count(row.partitionsWithLag) },
    { title: "Started", show: (row) => row.subscriptionMode || "" },
    { title: "", show: (row) => html`<button class="do" onClick=${() => toEnd(row)}>To the end…</button> <button class="do danger" onClick=${() => drop(row)}>Delete…</button>` },
  ];
  return html`<h1>Consumer groups</h1><${Problem} error=${error} />
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}><input type="search" aria-label="Group or queue contains" placeholder="Group or queue contains ( / )" value=${text} onInput=${(event) => refine({ text: event.target.value })} /></form>
    <section class="panel">${data ? html`<${Table} label="Groups" columns=${columns} rows=${rows} empty="No group has read from a partitioned queue." />` : html`<p class="muted">Loading…</p>`}</section>`;
}

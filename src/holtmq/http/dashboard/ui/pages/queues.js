// Queues of both kinds in one list; filters and order live in the URL.
import { html, useState } from "../parts/html.js";
import { part, put, query } from "../parts/api.js";
import { count, rate, span } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { refine, route } from "../parts/route.js";
import { Pager, Problem, Table } from "../parts/table.js";

const LIMIT = 50;

const COLUMNS = [
  { title: "Queue", sort: "name", show: (row) => html`<a href=${`#/queue/${part(row.vhost)}/${part(row.name)}`}>${row.name}</a>${row.vhost === "/" ? null : html` <span class="tag">${row.vhost}</span>`}` },
  { title: "Kind", sort: "kind", show: (row) => html`<span class="tag">${row.kind}</span>` },
  { title: "Ready", sort: "ready", num: true, show: (row) => count(row.ready) },
  { title: "Unacked", sort: "unacked", num: true, show: (row) => count(row.unacked) },
  { title: "Oldest", sort: "oldest", num: true, show: (row) => (row.ready ? span(row.oldest) : "") },
  { title: "In", sort: "incoming", num: true, show: (row) => rate(row.incoming) },
  { title: "Out", sort: "outgoing", num: true, show: (row) => rate(row.outgoing) },
  { title: "Consumers", sort: "consumers", num: true, show: (row) => (row.groups === null ? count(row.consumers) : `${row.groups} groups`) },
  { title: "Dead", sort: "dead_letters", num: true, show: (row) => (row.dead_letters === null ? "" : count(row.dead_letters)) },
];

function Create({ reload }) {
  const [said, setSaid] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const name = form.get("name");
    try {
      const kind = form.get("kind");
      await put(`/api/queues/${part(form.get("vhost") || "/")}/${part(name)}`, { durable: true, arguments: kind === "classic" ? {} : { "x-queue-type": kind } });
      setSaid(`${name} is there`);
      reload();
    } catch (error) {
      setSaid(error.message);
    }
  };
  return html`<details><summary>Create a queue</summary><form class="bar" onSubmit=${submit}>
    <label>Name <input name="name" required maxlength="255" /></label><label>Vhost <input name="vhost" value="/" size="8" /></label>
    <label>Kind <select name="kind"><option>classic</option><option>quorum</option><option value="stream">stream (partitioned)</option></select></label>
    <button class="do">Create</button> <span role="status">${said}</span></form></details>`;
}

export function Queues() {
  const { text = "", kind = "", vhost = "", hideEmpty = "", sort = "name", descending = "", offset = "0" } = route.value.query;
  const skip = Number(offset) || 0;
  const { data, error, reload } = useData("/api/v1/dashboard/queues" + query({ text, kind, vhost, hideEmpty, sort, descending, offset: skip, limit: LIMIT }));
  return html`<h1>Queues</h1><${Problem} error=${error} />
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}>
      <input type="search" placeholder="Name contains ( / )" aria-label="Name contains" value=${text} onInput=${(event) => refine({ text: event.target.value, offset: "" })} />
      <label>Kind <select value=${kind} onChange=${(event) => refine({ kind: event.target.value, offset: "" })}><option value="">all</option><option value="work">work queues</option><option value="stream">partitioned</option></select></label>
      <label>Vhost <input value=${vhost} size="8" onInput=${(event) => refine({ vhost: event.target.value, offset: "" })} /></label>
      <label><input type="checkbox" checked=${hideEmpty === "true"} onChange=${(event) => refine({ hideEmpty: event.target.checked ? "true" : "", offset: "" })} /> hide empty</label>
    </form>
    <section class="panel">${data ? html`<${Table} label="Queues" columns=${COLUMNS} rows=${data.rows} keyOf=${(row) => `${row.vhost} ${row.name}`} empty=${text || kind || vhost || hideEmpty ? "No queue matches." : "There is no queue yet."} />
      <${Pager} total=${data.total} offset=${skip} limit=${LIMIT} />` : html`<p class="muted">Loading…</p>`}</section>
    <${Create} reload=${reload} />`;
}

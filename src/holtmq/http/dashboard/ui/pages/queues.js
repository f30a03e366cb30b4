// Queues of both kinds in one list; filters and order live in the URL.
import { html, useState } from "../parts/html.js";
import { part, post, put, query, remove } from "../parts/api.js";
import { Spark } from "../parts/chart.js";
import { confirmDanger } from "../parts/confirm.js";
import { Field, Form, readJson } from "../parts/form.js";
import { count, rate, some, span } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { refine, route } from "../parts/route.js";
import { couldDo } from "../parts/session.js";
import { Loading, Pager, Problem, Search, Table } from "../parts/table.js";

const LIMIT = 50;
export const linkTo = (vhost, name) => `#/queue/${part(vhost)}/${part(name)}`;

const Age = ({ row }) => (!row.ready || (row.kind === "stream" && row.oldest === null) ? "" : span(row.oldest));

// A stream keeps its dead letters itself: how many there are in all is known, too.
function Dead({ row }) {
  const shown = row.died_today || row.dead_letters ? html`<a href=${`#/dead-letters?queue=${part(row.name)}`}>${count(row.died_today)}</a>` : "0";
  return row.dead_letters > row.died_today ? html`${shown}<br /><small class="muted">${count(row.dead_letters)} in all</small>` : shown;
}

// What can be done to a queue, from the list and from its own page. Each resolves to true when it was done.
export const pausePath = (vhost, name) => `/api/v1/operator/queues/${part(vhost)}/${part(name)}/pause`;
export const pause = (row) => confirmDanger({ title: `Pause ${row.name}`, text: "The queue takes messages and hands out none until it is resumed.", field: "Reason", action: "Pause", run: (reason) => put(pausePath(row.vhost, row.name), reason ? { reason } : {}) });
export const resume = (row) => remove(pausePath(row.vhost, row.name));
export const purge = (row) => confirmDanger({ title: `Purge ${row.name}`, text: `${some(row.ready, "waiting message")} will be deleted for good.`, name: row.name, action: "Purge", run: () => remove(`/api/queues/${part(row.vhost)}/${part(row.name)}/contents`) });
export const drop = (row) => confirmDanger({ title: `Delete ${row.name}`, text: `The queue and ${some(row.ready + (row.unacked || 0), "message")} in it will be deleted for good.`, name: row.name, action: "Delete", run: () => remove(`/api/queues/${part(row.vhost)}/${part(row.name)}`) });

function Actions({ row, can, reload }) {
  const [error, setError] = useState(null);
  const may = (action) => can.includes(action);
  const act = (work) => async () => {
    try {
      setError(null);
      await work(row);
    } catch (problem) {
      setError(problem);
    }
    reload();
  };
  const offers = [
    may("configure") && (row.paused ? ["Resume", resume] : ["Pause…", pause]),
    may("read") && row.kind !== "stream" && ["Purge…", purge],
    may("configure") && ["Delete…", drop, true],
  ].filter(Boolean);
  return html`<span class="acts">${offers.map(([title, work, danger]) => html`<button class=${`do small ${danger ? "danger" : ""}`} aria-label=${`${title} ${row.name}`} onClick=${act(work)}>${title}</button>`)}${error && html`<span class="bad" role="alert">${error.message}</span>`}</span>`;
}

const columnsOf = (data, reload) => [
  { title: "Queue", sort: "name", show: (row) => html`<a href=${linkTo(row.vhost, row.name)}>${row.name}</a>${row.vhost === "/" ? null : html` <span class="tag">${row.vhost}</span>`}${row.paused ? html` <span class="tag warn">paused</span>` : null}` },
  { title: "Kind", sort: "kind", show: (row) => html`<span class="tag">${row.kind}</span>` },
  { title: "Ready", sort: "ready", num: true, show: (row) => count(row.ready) },
  { title: "Unacked", sort: "unacked", num: true, show: (row) => (row.kind === "stream" ? "" : count(row.unacked)) },
  { title: "Oldest", sort: "oldest", num: true, show: (row) => html`<${Age} row=${row} />` },
  { title: "In", sort: "incoming", num: true, show: (row) => rate(row.incoming) },
  { title: "Out", sort: "outgoing", num: true, show: (row) => rate(row.outgoing) },
  { title: "Last minute", show: (row, index) => html`<${Spark} lines=${data.lines[index]} label=${`in and out over the last minute, now ${rate(row.incoming)} in`} />` },
  { title: "Consumers", sort: "consumers", num: true, show: (row) => (row.groups === null ? count(row.consumers) : some(row.groups, "group")) },
  { title: "Dead today", sort: "died_today", num: true, show: (row) => html`<${Dead} row=${row} />` },
  { title: "", show: (row, index) => html`<${Actions} row=${row} can=${data.can[index]} reload=${reload} />` },
];

function Create({ reload }) {
  const create = async (given) => {
    const kind = given.kind;
    const extra = readJson(given.arguments, "Arguments");
    await put(`/api/queues/${part(given.vhost || "/")}/${part(given.name)}`, { durable: kind !== "classic" || Boolean(given.durable), auto_delete: Boolean(given.auto_delete), arguments: { ...extra, ...(kind === "classic" ? {} : { "x-queue-type": kind }) } });
    reload();
    return `${given.name} is there`;
  };
  return html`<details class="panel"><summary>Create a queue</summary><${Form} run=${create} action="Create" label="Create a queue">
    <${Field} label="Name"><input name="name" required maxlength="255" /><//><${Field} label="Vhost"><input name="vhost" defaultValue="/" /><//>
    <${Field} label="Kind"><select name="kind"><option>classic</option><option>quorum</option><option value="stream">stream (partitioned)</option></select><//>
    <label><input type="checkbox" name="durable" defaultChecked /> durable</label><label><input type="checkbox" name="auto_delete" /> delete when unused</label>
    <${Field} label="Arguments as JSON" wide><textarea name="arguments" rows="2" placeholder='{"x-max-length": 1000}'></textarea><//><//></details>`;
}

export function Queues() {
  const { text = "", kind = "", vhost = "", hideEmpty = "", sort = "name", descending = "", offset = "0" } = route.value.query;
  const skip = Number(offset) || 0;
  const { data, error, reload } = useData("/api/v1/dashboard/queues" + query({ text, kind, vhost, hideEmpty, sort, descending, offset: skip, limit: LIMIT }));
  return html`<h1>Queues</h1><${Problem} error=${error} />
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}>
      <${Search} label="Name contains" />
      <label>Kind <select value=${kind} onChange=${(event) => refine({ kind: event.target.value, offset: "" })}><option value="">all</option><option value="work">work queues</option><option value="stream">partitioned</option></select></label>
      <label>Vhost <input value=${vhost} size="8" onInput=${(event) => refine({ vhost: event.target.value, offset: "" })} /></label>
      <label><input type="checkbox" checked=${hideEmpty === "true"} onChange=${(event) => refine({ hideEmpty: event.target.checked ? "true" : "", offset: "" })} /> hide empty</label>
    </form>
    <section class="panel">${data ? html`<${Table} label="Queues" order="name" columns=${columnsOf(data, reload)} rows=${data.rows} keyOf=${(row) => `${row.vhost} ${row.name}`} empty=${text || kind || vhost || hideEmpty ? "No queue matches." : "There is no queue yet."} />
      <${Pager} total=${data.total} offset=${skip} limit=${LIMIT} />` : html`<${Loading} />`}</section>
    ${couldDo("configure") ? html`<${Create} reload=${reload} />` : null}`;
}

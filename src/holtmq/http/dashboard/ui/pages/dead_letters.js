// Dead letters of both kinds of queue, grouped by what went wrong; redrive, export, discard.
import { html, useState } from "../parts/html.js";
import { get, part, post, query } from "../parts/api.js";
import { Spark } from "../parts/chart.js";
import { Body } from "../parts/body.js";
import { confirmDanger } from "../parts/confirm.js";
import { Field, Form } from "../parts/form.js";
import { count, moment, some } from "../parts/format.js";
import { JobState, runJob } from "../parts/jobs.js";
import { OverTime } from "../parts/over_time.js";
import { useData } from "../parts/load.js";
import { Deaths, Properties } from "../parts/message.js";
import { Opened } from "../parts/opened.js";
import { refine, route } from "../parts/route.js";
import { Loading, Problem, Search, Table } from "../parts/table.js";
import { groupName } from "./groups.js";
import { linkTo } from "./queues.js";

const BASE = "/api/v1/operator/dead-letters";
const selectionOf = (row) => ({ kind: row.kind, vhost: row.vhost, queue: row.queue, signature: row.signature, ...(row.in ? { in: row.in } : {}), ...(row.group ? { group: row.group } : {}) });

// Of several signatures together; a letter whose time is unknown is in none of them.
function summed(rows) {
  const lists = rows.map((row) => row.over_time).filter(Boolean);
  return lists.length ? lists[0].map((_, index) => lists.reduce((sum, list) => sum + list[index], 0)) : [0];
}

// Redrive or discard a selection, after a dry run that counts.
function Act({ selection, title, reload }) {
  const [job, setJob] = useState(null);
  const run = async (given) => {
    const verb = given.verb;
    const wanted = { ...selection, ...(given.count ? { count: Number(given.count) } : {}), ...(given.rate ? { rate: Number(given.rate) } : {}), ...(verb === "redrive" && given.to ? { to: { queue: given.to } } : {}) };
    const filter = given.filter.split("\n").map((line) => line.trim()).filter(Boolean);
    if (filter.length) wanted.filter = filter;
    const counted = await runJob(() => post(`${BASE}/${verb}?wait=30`, { ...wanted, dry_run: true }));
    const will = verb === "redrive" ? `sent back${given.to ? ` to ${given.to}` : " to the queue in which they died"}` : "deleted for good";
    if (given.dry || !counted.matched) return `${some(counted.matched, "dead letter")} would be ${will}`;
    const start = () => post(`${BASE}/${verb}?wait=1`, wanted);
    const begun = await confirmDanger({ title: verb === "redrive" ? "Redrive dead letters" : "Discard dead letters", text: `${some(counted.matched, "dead letter")} will be ${will}.`, name: verb === "discard" ? selection.queue || "discard" : undefined, action: verb === "redrive" ? "Redrive" : "Discard", run: start });
    if (!begun) return "nothing was changed";
    const done = await runJob(async () => begun, setJob);
    reload();
    return `${some(done.done, "dead letter")} ${verb === "redrive" ? "sent back" : "deleted"}${done.unrouted ? `; ${count(done.unrouted)} have no queue to go back to and stayed` : ""}`;
  };
  const [verb, setVerb] = useState("redrive");
  return html`<${Form} run=${run} action=${verb === "redrive" ? "Redrive…" : "Discard…"} danger=${verb === "discard"} label=${title}><${Field} label="What"><select name="verb" onChange=${(event) => setVerb(event.target.value)}><option value="redrive">redrive: send back</option><option value="discard">discard: delete</option></select><//>
    <${Field} label="To another queue"><input name="to" placeholder="where they died" /><//><${Field} label="At most"><input name="count" type="number" min="1" placeholder="all" /><//><${Field} label="Each second"><input name="rate" type="number" min="1" placeholder="no limit" /><//>
    <${Field} label="Filters, one in a line" wide><textarea name="filter" rows="1" placeholder="json.customer=17"></textarea><//><label><input type="checkbox" name="dry" /> only count</label><//><${JobState} job=${job} setJob=${setJob} />`;
}

function Letter({ row, chosen, choose }) {
  const [open, setOpen] = useState(false);
  return html`<div class="letter"><input type="checkbox" aria-label=${`Select ${row.id}`} checked=${chosen} onChange=${(event) => choose(row.id, event.target.checked)} /><details class="panel message" onToggle=${(event) => setOpen(event.target.open)}><summary>${moment(row.failed)} · <code>${row.routing_key || row.id}</code>${row.error ? html` · ${row.error}` : null}</summary>
    ${open && html`<${Properties} values=${row.properties} /><${Deaths} headers=${row.properties?.headers} /><h3>Body</h3><${Body} payload=${row.payload} encoding=${row.payload_encoding === "json" ? "string" : row.payload_encoding} />`}</details></div>`;
}

function Family({ row, reload, close }) {
  const selection = selectionOf(row);
  const [ids, setIds] = useState([]);
  const { data, error, reload: again } = useData(`${BASE}/messages${query({ ...selection, limit: 20 })}`, 0);
  const both = () => { setIds([]); reload(); return again(); };
  const choose = (id, on) => setIds(on ? [...ids, id] : ids.filter((one) => one !== id));
  return html`<${Opened} label="Letters of one kind"><h2>${row.queue}: ${row.text || row.reason}</h2>
    <p class="muted">${some(row.count, "letter")}, first ${moment(row.first)}, last ${moment(row.last)}${row.in ? html`; they are in <a href=${linkTo(row.vhost, row.in)}>${row.in}</a>` : null}. <a href=${`${BASE}/export${query(selection)}`} download="dead-letters.jsonl">Export</a></p>
    <${Act} key=${ids.join()} selection=${ids.length ? { ...selection, ids } : selection} title=${ids.length ? `${ids.length} selected letters` : "All letters of this kind"} reload=${both} />
    <p class="muted">${ids.length ? `Only the ${ids.length} selected ones are meant.` : "All of them are meant, unless some are selected below."}</p><${Problem} error=${error} />
    ${data ? data.messages.map((one) => html`<${Letter} key=${one.id} row=${one} chosen=${ids.includes(one.id)} choose=${choose} />`) : html`<${Loading} />`}
    <button class="do small" onClick=${close}>Close</button><//>`;
}

export function DeadLetters() {
  const { queue = "", kind = "", shown: chosen = "" } = route.value.query;
  const setChosen = (shown) => refine({ shown });
  const { data, error, reload } = useData(BASE + query({ queue, kind }), 5);
  const rows = data?.signatures || [];
  const family = chosen && rows.find((row) => JSON.stringify(selectionOf(row)) === chosen);
  const columns = [
    { title: "Died in", show: (row) => html`<a href=${linkTo(row.vhost || "/", row.queue)}>${row.queue}</a>${row.group ? html` <span class="tag">${groupName(row.group)}</span>` : null}` },
    { title: "Kind", show: (row) => html`<span class="tag">${row.kind}</span>` },
    { title: "Reason", show: (row) => html`<span class="tag">${row.reason}</span>` },
    { title: "What went wrong", wide: true, show: (row) => html`<button class="link" onClick=${() => setChosen(JSON.stringify(selectionOf(row)))}>${row.text || row.reason}</button>` },
    { title: "Letters", num: true, show: (row) => count(row.count) },
    { title: "Over time", show: (row) => (row.over_time && row.over_time.length > 1 ? html`<${Spark} lines=${[row.over_time, row.over_time]} label=${`${count(row.count)} letters over time`} />` : "") },
    { title: "First", show: (row) => moment(row.first) },
    { title: "Last", show: (row) => moment(row.last) },
  ];
  return html`<h1>Dead letters</h1><${Problem} error=${error} />
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}><${Search} name="queue" label="Died in queue (exact name)" />
      <label>Kind <select value=${kind} onChange=${(event) => refine({ kind: event.target.value })}><option value="">all</option><option value="work">work queues</option><option value="partitioned">partitioned</option></select></label></form>
    ${rows.length ? html`<section class="panel" aria-label="Over time"><h2>${family ? `${family.queue}: ${family.text || family.reason}` : "When they failed"}</h2><${OverTime} counts=${summed(family ? [family] : rows)} from=${data.over_time.from} step=${data.over_time.step_ms} label="Dead letters over time" /></section>` : null}
    <section class="panel" aria-label="Kinds of dead letters">${data ? html`<${Table} label="Kinds of dead letters" columns=${columns} rows=${rows} keyOf=${(row) => JSON.stringify(selectionOf(row))} empty="No dead letters." />
      ${data.truncated ? html`<p class="muted">${count(data.scanned)} letters were looked at; there are more.</p>` : null}` : html`<${Loading} />`}</section>
    ${family && html`<${Family} key=${chosen} row=${family} reload=${reload} close=${() => setChosen("")} />`}
    ${rows.length && !family ? html`<details class="panel"><summary>All ${queue ? `dead letters of ${queue}` : "dead letters in the list"}</summary><p><a href=${`${BASE}/export${query({ queue, kind })}`} download="dead-letters.jsonl">Export</a></p><${Act} selection=${{ ...(queue ? { queue } : {}), ...(kind ? { kind } : {}) }} title="All dead letters" reload=${reload} /></details>` : null}`;
}

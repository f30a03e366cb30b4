// Consumer groups: how far behind, in messages and in time; one group with its place in each partition.
import { html, useState } from "../parts/html.js";
import { part, post, query, remove } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { Field, Form } from "../parts/form.js";
import { count, moment, some, span } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { go, route } from "../parts/route.js";
import { couldDo } from "../parts/session.js";
import { Loading, Pager, Problem, Search, Table } from "../parts/table.js";

const LIMIT = 50;
// Workers that name no group share one without a name.
export const QUEUE_MODE = "__QUEUE_MODE__";
export const groupName = (name) => (name === QUEUE_MODE ? "(no group)" : name);
const pathOf = (row) => `/api/v1/consumer-groups/${part(row.group)}/queues/${part(row.queue)}`;
const drop = (row) => confirmDanger({ title: `Delete ${groupName(row.group)} on ${row.queue}`, text: `The group's place in ${some(row.partitions, "partition")} is forgotten; it is ${some(row.messages || 0, "message")} behind.`, name: row.group, action: "Delete", run: () => remove(pathOf(row)) });

const WAYS = { end: "the end: skip everything", start: "the beginning", time: "a time", offset: "an offset of the queue" };

function Seek({ row, reload }) {
  const [way, setWay] = useState("end");
  const asked = (given) => {
    if (way === "end") return { toEnd: true };
    if (way === "start") return { toStart: true };
    if (way === "offset") return { offset: Number(given.offset) };
    return { timestamp: new Date(given.time).toISOString() };
  };
  const run = async (given) => {
    const where = asked(given);
    const path = `${pathOf(row)}${given.partition ? `/partitions/${part(given.partition)}` : ""}/seek`;
    const effect = await post(path, { ...where, dryRun: true });
    const text = `${some(effect.skipped, "unread message")} would be skipped and ${some(effect.repeated, "message")} delivered again, in ${some(effect.partitions, "partition")}; ${some(effect.leases, "lease")} would end.`;
    if (given.dry) return text;
    const done = await confirmDanger({ title: `Move ${groupName(row.group)} on ${row.queue}`, text: text.replaceAll("would", "will"), name: row.group, action: "Seek", run: () => post(path, where) });
    reload();
    return done ? "moved" : "nothing was changed";
  };
  return html`<details class="panel"><summary>Seek</summary><${Form} run=${run} action="Seek…" label="Seek">
    <${Field} label="To"><select value=${way} onChange=${(event) => setWay(event.target.value)}>${Object.entries(WAYS).map(([key, text]) => html`<option value=${key}>${text}</option>`)}</select><//>
    ${way === "time" ? html`<${Field} label="Time"><input name="time" type="datetime-local" step="1" required /><//>` : way === "offset" ? html`<${Field} label="Offset"><input name="offset" type="number" min="0" required /><//>` : null}
    <${Field} label="Only partition"><input name="partition" placeholder="all" /><//><label><input type="checkbox" name="dry" /> only count</label><//></details>`;
}

function One({ queue, group }) {
  const { text = "", sort = "", descending = "", offset = "0" } = route.value.query;
  const skip = Number(offset) || 0;
  const { data, error, reload } = useData(`/api/v1/dashboard/groups/${part(queue)}/${part(group)}${query({ text, sort, descending, offset: skip, limit: LIMIT })}`, 3);
  const heading = html`<h1><a href="#/groups">Groups</a> / ${groupName(group)} <span class="tag">on ${queue}</span></h1><${Problem} error=${error} />`;
  if (!data) return html`${heading}${error ? null : html`<${Loading} />`}`;
  const { row } = data;
  const may = (action) => data.can.includes(action);
  const release = (place) => confirmDanger({ title: `Release the lease on ${place.partition}`, text: `${some(place.lease_size, "message")} held by ${place.lease} will be delivered again; an ack of the present holder will be refused.`, action: "Release", run: () => remove(`${pathOf(row)}/partitions/${part(place.partition)}/lease`) }).then(reload);
  const columns = [
    { title: "Partition", sort: "partition", show: (place) => html`<code>${place.partition}</code>` },
    { title: "Behind", sort: "messages", num: true, show: (place) => count(place.messages) },
    { title: "Oldest unread", sort: "seconds", num: true, show: (place) => (place.messages ? span(place.seconds) : "") },
    { title: "Retries", sort: "retries", num: true, show: (place) => (place.retries ? html`<span class="warn">${count(place.retries)}</span>` : "0") },
    { title: "Consumed", sort: "consumed", num: true, show: (place) => count(place.consumed) },
    { title: "Last ack", sort: "last_consumed", show: (place) => (place.last_consumed ? moment(place.last_consumed) : "never") },
    { title: "Lease held by", sort: "lease", show: (place) => (place.lease ? html`<code>${place.lease}</code> <span class="muted">${some(place.lease_size, "message")}</span>` : "") },
    { title: "Time left", sort: "lease_left", num: true, show: (place) => (place.lease_left === null ? "" : span(place.lease_left)) },
  ];
  if (may("read")) columns.push({ title: "", show: (place) => (place.lease ? html`<button class="do small danger" onClick=${() => release(place)}>Release…</button>` : null) });
  return html`${heading}
    <section class="panel" aria-label="Figures"><dl class="figures"><div><dt>Behind</dt><dd>${count(row.messages)}</dd></div><div><dt>Oldest unread</dt><dd>${row.messages ? span(row.seconds) : "–"}</dd></div><div><dt>Partitions behind</dt><dd>${count(row.partitions_behind)} of ${count(row.partitions)}</dd></div><div><dt>Leases</dt><dd>${count(row.leased)}</dd></div><div><dt>Consumed</dt><dd>${count(row.consumed)}</dd></div></dl></section>
    ${may("read") ? html`<${Seek} row=${row} reload=${reload} />` : null}
    <section class="panel" aria-label="Partitions"><div class="bar"><${Search} label="Partition contains" /></div>
      <${Table} label="Partitions" order="messages" falling columns=${columns} rows=${data.partitions} keyOf=${(place) => place.partition} empty="No partition matches." /><${Pager} total=${data.total} offset=${skip} limit=${LIMIT} /></section>
    ${may("configure") ? html`<button class="do danger" onClick=${() => drop(row).then((done) => done && go("/groups"))}>Delete the group…</button>` : null}`;
}

export function Groups() {
  const [, queue, group] = route.value.segments;
  return queue ? html`<${One} queue=${queue} group=${group} />` : html`<${List} />`;
}

function List() {
  const { text = "", sort = "", descending = "", offset = "0" } = route.value.query;
  const skip = Number(offset) || 0;
  const { data, error } = useData(`/api/v1/dashboard/groups${query({ text, sort, descending, offset: skip, limit: LIMIT })}`, 3);
  const columns = [
    { title: "Group", sort: "group", show: (row) => html`<a href=${`#/groups/${part(row.queue)}/${part(row.group)}`}>${groupName(row.group)}</a>` },
    { title: "Queue", sort: "queue", show: (row) => html`<a href=${`#/queue/%2F/${part(row.queue)}`}>${row.queue}</a>` },
    { title: "Behind", sort: "messages", num: true, show: (row) => count(row.messages) },
    { title: "Oldest unread", sort: "seconds", num: true, show: (row) => (row.messages ? span(row.seconds) : "") },
    { title: "Partitions behind", num: true, show: (row) => `${count(row.partitions_behind)} of ${count(row.partitions)}` },
    { title: "Leases", num: true, show: (row) => count(row.leased) },
    { title: "Consumed", num: true, show: (row) => count(row.consumed) },
  ];
  return html`<h1>Consumer groups</h1><${Problem} error=${error} />
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}><${Search} label="Group or queue contains" /></form>
    <section class="panel">${data ? html`<${Table} label="Groups" order="seconds" falling columns=${columns} rows=${data.rows} keyOf=${(row) => `${row.queue} ${row.group}`} empty=${text ? "No group matches." : "No group has read from a partitioned queue."} /><${Pager} total=${data.total} offset=${skip} limit=${LIMIT} />` : html`<${Loading} />`}</section>`;
}

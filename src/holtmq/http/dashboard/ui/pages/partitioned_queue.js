// A partitioned queue: partitions by backlog as a heat map, what is retained, its groups, push and options.
import { html, useState } from "../parts/html.js";
import { part, post, query, request } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { Field, Form, readJson } from "../parts/form.js";
import { bytes, count, moment, some, span } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { refine, route } from "../parts/route.js";
import { Loading, Problem } from "../parts/table.js";
import { groupName, QUEUE_MODE } from "./groups.js";

const ACROSS = 25;
const CELL = 24;

// One square for each partition, darker with its backlog (logarithmic, so that one deep one hides no other).
function HeatMap({ rows }) {
  const top = Math.log1p(Math.max(1, ...rows.map((row) => row.backlog)));
  const height = Math.ceil(rows.length / ACROSS) * CELL;
  return html`<svg class="heat" viewBox=${`0 0 ${ACROSS * CELL} ${height}`} role="img" aria-label=${`${some(rows.length, "partition")}; the largest backlog is ${rows.length ? `${count(rows[0].backlog)} in ${rows[0].name}` : "0"}`}>
    ${rows.map((row, index) => html`<g key=${row.name}><rect x=${(index % ACROSS) * CELL + 1} y=${Math.floor(index / ACROSS) * CELL + 1} width=${CELL - 2} height=${CELL - 2} rx="3" fill-opacity=${row.backlog ? 0.2 + (0.8 * Math.log1p(row.backlog)) / top : 0.06}><title>${`${row.name}: ${count(row.backlog)} behind, ${count(row.stored)} stored${row.oldest === null ? "" : `, oldest ${span(row.oldest)}`}`}</title></rect></g>`)}</svg>`;
}

const Top = ({ rows }) => html`<table class="list" aria-label="Largest backlogs"><thead><tr><th scope="col">Partition</th><th scope="col" class="num">Backlog</th><th scope="col" class="num">Oldest</th><th scope="col" class="num">Stored</th></tr></thead>
  <tbody>${rows.slice(0, 10).map((row) => html`<tr key=${row.name}><td data-title="Partition"><code>${row.name}</code></td><td class="num" data-title="Backlog">${count(row.backlog)}</td><td class="num" data-title="Oldest">${row.oldest === null ? "" : span(row.oldest)}</td><td class="num" data-title="Stored">${count(row.stored)}</td></tr>`)}</tbody></table>`;

function Push({ name, reload }) {
  const push = async (given) => {
    const payload = given.plain ? given.payload : readJson(given.payload, "Message", null);
    const item = { queue: name, partition: given.partition || "Default", payload, ...(given.id ? { transactionId: given.id } : {}) };
    const [answer] = await post("/api/v1/push", { items: [item] });
    reload();
    return answer.status === "duplicate" ? "a message with this id is there already" : "pushed";
  };
  return html`<details class="panel"><summary>Push a message</summary><${Form} run=${push} action="Push" label="Push a message">
    <${Field} label="Partition"><input name="partition" placeholder="Default" /><//><${Field} label="Transaction id"><input name="id" placeholder="a new one" /><//>
    <${Field} label="Message as JSON" wide><textarea name="payload" rows="4" required></textarea><//><label><input type="checkbox" name="plain" /> send it as one text</label><//></details>`;
}

const OPTIONS = {
  leaseTime: "Lease (s)", retryLimit: "Retries", retryDelay: "Retry delay (ms)", ttl: "Time to live (s)", maxQueueSize: "Most messages (0: any)", delayedProcessing: "Delay (s)", windowBuffer: "Window (s)",
  retentionSeconds: "Retention (s)", completedRetentionSeconds: "Retention when read by all (s)", priority: "Priority", dedupWindowSeconds: "Deduplication window (s)",
};
const SWITCHES = { retentionEnabled: "retention", deadLetterQueue: "dead letters", dlqAfterMaxRetries: "dead-letter after all retries" };

function Options({ name, options, reload }) {
  const save = async (given) => {
    const wanted = {};
    for (const key of Object.keys(OPTIONS)) if (given[key] !== "" && Number(given[key]) !== options[key]) wanted[key] = Number(given[key]);
    for (const key of Object.keys(SWITCHES)) if (Boolean(given[key]) !== options[key]) wanted[key] = Boolean(given[key]);
    if (!Object.keys(wanted).length) return "nothing was changed";
    await post("/api/v1/configure", { queue: name, options: wanted });
    reload();
    return `changed: ${Object.keys(wanted).join(", ")}`;
  };
  return html`<details class="panel"><summary>Edit the options</summary><${Form} run=${save} action="Save" label="Options">
    ${Object.entries(OPTIONS).map(([key, label]) => html`<${Field} label=${label}><input name=${key} type="number" min="0" defaultValue=${options[key] ?? ""} /><//>`)}
    ${Object.entries(SWITCHES).map(([key, label]) => html`<label><input type="checkbox" name=${key} defaultChecked=${options[key]} /> ${label}</label>`)}<//></details>`;
}

function IdlePartitions({ name, base, reload }) {
  const run = async (given) => {
    const idle = (dryRun) => request("DELETE", `${base}/partitions/idle`, { idleSeconds: Number(given.hours) * 3600, dryRun });
    const found = await idle(true);
    if (!found.partitions) return "no partition has been empty and unused for so long";
    const done = await confirmDanger({ title: `Delete idle partitions of ${name}`, text: `${some(found.partitions, "empty partition")} will be deleted. No message is lost; a later push creates the partition again.`, name, action: "Delete", run: () => idle(false) });
    reload();
    return done ? `${some(done.partitions, "partition")} deleted` : "nothing was deleted";
  };
  return html`<details class="panel"><summary>Delete idle partitions</summary><${Form} run=${run} action="Delete…" danger label="Delete idle partitions"><${Field} label="Empty and unused for (h)"><input name="hours" type="number" min="0" step="any" defaultValue="24" /><//><//></details>`;
}

export function PartitionedQueue({ vhost, name, base, may, reload }) {
  const { group = "" } = route.value.query;
  const { data, error, reload: again } = useData(`${base}/partitions${query({ group })}`, 5);
  const both = () => Promise.all([reload(), again()]);
  const Retained = () => html`<dl class="figures"><div><dt>Partitions</dt><dd>${count(data.total)}</dd></div><div><dt>${group ? `Behind: ${groupName(group)}` : "With messages"}</dt><dd>${count(data.behind)}</dd></div><div><dt>Retained</dt><dd>${data.bytes === null ? "–" : `≈ ${bytes(data.bytes)}`}</dd><dd class="note">estimated from a sample</dd></div><div><dt>Oldest</dt><dd class="small">${moment(data.from)}</dd></div><div><dt>Newest</dt><dd class="small">${moment(data.to)}</dd></div></dl>`;
  return html`<section class="panel" aria-label="Partitions"><h2>Partitions by backlog</h2><${Problem} error=${error} />
      ${data ? html`<div class="bar"><label>Backlog of <select value=${group} onChange=${(event) => refine({ group: event.target.value })}><option value="">all stored messages</option>${data.groups.map((one) => html`<option value=${one}>${one === QUEUE_MODE ? groupName(one) : `group ${one}`}</option>`)}</select></label></div>
        <${Retained} />${data.rows.length ? html`<div class="grid"><${HeatMap} rows=${data.rows} /><${Top} rows=${data.rows} /></div>` : html`<p class="muted">There is no partition yet.</p>`}
        ${data.total > data.rows.length ? html`<p class="muted">The ${count(data.rows.length)} with the largest backlog are drawn.</p>` : null}` : html`<${Loading} />`}</section>
    <p><a href=${`#/groups?text=${part(name)}`}>Groups on this queue</a> · <a href=${`#/dead-letters?queue=${part(name)}`}>Dead letters</a> · <a href=${`#/messages?queue=${part(name)}`}>Search its messages</a></p>
    ${may("write") ? html`<${Push} name=${name} reload=${both} />` : null}
    ${data && may("configure") ? html`<${Options} name=${name} options=${data.options} reload=${both} /><${IdlePartitions} name=${name} base=${base} reload=${both} />` : null}`;
}

// One queue: over time, who consumes it and since when they hold what, its messages, its settings.
import { html, useState } from "../parts/html.js";
import { get, part, post, remove } from "../parts/api.js";
import { Rates } from "../parts/chart.js";
import { confirmDanger } from "../parts/confirm.js";
import { bytes, count, moment, rate, since, span } from "../parts/format.js";
import { brokerNow } from "../parts/live.js";
import { useData } from "../parts/load.js";
import { go, route } from "../parts/route.js";
import { Problem, Table } from "../parts/table.js";
import { Findings } from "./overview.js";

function Consumers({ data, now }) {
  const held = Object.fromEntries(data.holders.map((holder) => [holder.connection + holder.consumer, holder]));
  const columns = [
    { title: "Consumer", show: (row) => html`<code>${row.consumer_tag}</code>` },
    { title: "Connection", show: (row) => { const name = row.channel_details.connection_name; return html`<a href=${`#/connections?text=${part(name)}`}>${held[name + row.consumer_tag]?.client || name}</a>`; } },
    { title: "User", show: (row) => row.channel_details.user },
    { title: "Prefetch", num: true, show: (row) => (row.prefetch_count ? count(row.prefetch_count) : "unlimited") },
    { title: "Unacked", num: true, show: (row) => count(row.messages_unacknowledged) },
    { title: "Oldest held for", num: true, show: (row) => (row.held_since ? since(row.held_since, now) : "") },
  ];
  return html`<section class="panel" aria-label="Consumers"><h2>Consumers</h2><${Table} label="Consumers" columns=${columns} rows=${data.consumers} empty="Nobody consumes this queue." /></section>`;
}

function Message({ row }) {
  let body = row.payload;
  let kind = row.payload_encoding === "base64" ? "base64" : "text";
  if (kind === "text") {
    try {
      body = JSON.stringify(JSON.parse(row.payload), null, 2);
      kind = "JSON";
    } catch { /* it is not JSON: shown as it is */ }
  }
  return html`<details class="panel"><summary><code>${row.exchange || "(default)"}</code> / <code>${row.routing_key}</code> · ${bytes(row.payload_bytes)} · arrived ${moment(row.arrived_at)}${row.redelivered ? html` <span class="tag">redelivered</span>` : null}${row.properties.message_id ? html` · id <code>${row.properties.message_id}</code>` : null}</summary>
    <h2>Properties</h2><pre>${JSON.stringify(row.properties, null, 2)}</pre><h2>Body (${kind})</h2><pre>${body}</pre></details>`;
}

function Peek({ base, ready }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const look = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      setFound(await get(`${base}/messages?limit=${form.get("limit")}&offset=${form.get("offset")}`));
      setError(null);
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<section class="panel" aria-label="Messages"><h2>Messages</h2><p class="muted">Peeking takes nothing and marks nothing redelivered.</p>
    <form class="bar" onSubmit=${look}><label>Show <input name="limit" type="number" min="1" max="200" value="10" /></label><label>from place <input name="offset" type="number" min="0" max="10000" value="0" /></label>
    <button class="do">Peek</button></form><${Problem} error=${error} />
    ${found && html`<p>${found.messages.length} of ${count(found.total)} that wait${found.truncated ? ", cut off because they are large" : ""}</p>${found.messages.map((row) => html`<${Message} row=${row} />`)}`}</section>`;
}

function Publish({ vhost, name, reload }) {
  const [said, setSaid] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      const properties = form.get("properties").trim() ? JSON.parse(form.get("properties")) : {};
      if (form.get("persistent")) properties.delivery_mode = 2;
      const answer = await post(`/api/exchanges/${part(vhost)}/amq.default/publish`, { properties, routing_key: name, payload: form.get("payload"), payload_encoding: "string" });
      setSaid(answer.routed ? "published" : "not routed");
      reload();
    } catch (error) {
      setSaid(error.message);
    }
  };
  return html`<details class="panel"><summary>Publish a message</summary><form onSubmit=${submit}>
    <p><label>Body</label><textarea name="payload" rows="4" aria-label="Body"></textarea></p>
    <p><label>Properties as JSON (headers, priority, expiration, message_id, …)</label><textarea name="properties" rows="3" aria-label="Properties"></textarea></p>
    <div class="bar"><label><input type="checkbox" name="persistent" checked /> persistent</label><button class="do">Publish</button><span role="status">${said}</span></div></form></details>`;
}

export function Queue() {
  const [, vhost, name] = route.value.segments;
  const base = `/api/v1/dashboard/queues/${part(vhost)}/${part(name)}`;
  const { data, error, reload } = useData(base, 2);
  if (!data) return html`<h1>${name}</h1><${Problem} error=${error} />${error ? null : html`<p class="muted">Loading…</p>`}`;
  const { row, series, totals, settings } = data;
  const now = brokerNow();
  const management = `/api/queues/${part(vhost)}/${part(name)}`;
  const purge = () => confirmDanger({ title: `Purge ${name}`, text: `${count(row.ready)} waiting messages will be deleted for good.`, name, action: "Purge", run: () => remove(`${management}/contents`) }).then(reload);
  const drop = () => confirmDanger({ title: `Delete ${name}`, text: `The queue and ${count(row.ready + (row.unacked || 0))} messages in it will be deleted for good.`, name, action: "Delete", run: () => remove(management) }).then((done) => done && go("/queues"));
  const stream = row.kind === "stream";
  return html`<h1>${name} <span class="tag">${row.kind}</span> ${row.durable ? null : html`<span class="tag">transient</span>`} <span class="tag">${vhost}</span></h1>
    <${Problem} error=${error} />
    ${data.findings.length ? html`<section class="panel"><${Findings} findings=${data.findings} now=${now} linked=${false} /></section>` : null}
    <section class="panel" aria-label="Figures"><dl class="figures">
      <div><dt>${stream ? "Stored" : "Ready"}</dt><dd>${count(row.ready)}</dd></div>
      ${stream ? html`<div><dt>Groups</dt><dd>${count(row.groups)}</dd></div><div><dt>Dead letters</dt><dd>${count(row.dead_letters)}</dd></div>` : html`<div><dt>Unacked</dt><dd>${count(row.unacked)}</dd></div><div><dt>Oldest waits</dt><dd>${row.ready ? span(row.oldest) : "–"}</dd></div><div><dt>Bytes waiting</dt><dd>${bytes(row.bytes)}</dd></div>`}
      <div><dt>In</dt><dd>${rate(row.incoming)}</dd></div><div><dt>Out</dt><dd>${rate(row.outgoing)}</dd></div><div><dt>Acked</dt><dd>${rate(row.acked)}</dd></div>
      ${totals && html`<div><dt>Returned</dt><dd>${count(totals.returned)}</dd></div><div><dt>Dropped or dead</dt><dd>${count(totals.dropped)}</dd></div>`}
    </dl></section>
    ${series && html`<div class="grid"><section class="panel"><h2>Last minute</h2><${Rates} series=${series.bySecond} step=${1} label="Last minute" /></section>
      <section class="panel"><h2>Last three hours</h2><${Rates} series=${series.byMinute} step=${60} label="Last three hours" /></section></div>`}
    <${Consumers} data=${data} now=${now} />
    ${stream ? html`<p><a href=${`#/groups?text=${part(name)}`}>Groups on this queue</a> · <a href=${`#/dead-letters?queue=${part(name)}`}>Dead letters</a></p>` : html`<${Peek} base=${base} ready=${row.ready} /><${Publish} vhost=${vhost} name=${name} reload=${reload} />`}
    <section class="panel" aria-label="Settings"><h2>Settings</h2><${Table} label="Settings" columns=${[{ title: "Setting", show: (one) => html`<code>${one.name}</code>` }, { title: "Value", show: (one) => html`<code>${JSON.stringify(one.value)}</code>` }, { title: "Comes from", show: (one) => one.origin }]} rows=${settings} empty="Everything is as by default." /></section>
    <div class="bar">${stream ? null : html`<button class="do danger" onClick=${purge}>Purge…</button>`}<button class="do danger" onClick=${drop}>Delete…</button></div>`;
}

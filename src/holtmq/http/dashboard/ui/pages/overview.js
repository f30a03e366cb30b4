// Is anything stuck, since when, and who has it? Then the node at a glance.
import { html, useState } from "../parts/html.js";
import { get, part, put } from "../parts/api.js";
import { Rates } from "../parts/chart.js";
import { bytes, count, rate, since, span } from "../parts/format.js";
import { overview } from "../parts/live.js";
import { useData } from "../parts/load.js";

export function linkOf(finding) {
  if (finding.subject === "queue") return `#/queue/${part(finding.vhost)}/${part(finding.name)}`;
  if (finding.subject === "group") return "#/groups";
  return "#/journal";
}

export function Findings({ findings, now, linked = true }) {
  if (!findings.length) return html`<p class="ok">Nothing needs attention.</p>`;
  return html`<ul class="findings">${findings.map((finding) => html`<li class=${finding.severity} key=${finding.rule + finding.vhost + finding.name}>
    <span class="what">${linked ? html`<a href=${linkOf(finding)}><b>${finding.name}</b></a>` : html`<b>${finding.rule}</b>`}: ${finding.text}
      ${finding.who?.length ? html`<br /><span class="muted">${finding.who.slice(0, 3).map((who) => html`<a href=${`#/connections?text=${part(who.connection)}`}>${who.client || who.consumer}</a> (${who.user}, ${who.host}), `)} holding ${count(finding.who.reduce((sum, who) => sum + who.unacked, 0))}</span>` : null}</span>
    <span class="since">${finding.since ? html`for <time datetime=${new Date(finding.since).toISOString()} title=${new Date(finding.since).toLocaleString()}>${since(finding.since, now)}</time>` : "since: unknown"}</span>
  </li>`)}</ul>`;
}

const LABELS = {
  unread_seconds: "A queue without a reader, after (s)", oldest_seconds: "Oldest waiting message, over (s)", unacked_seconds: "Unacknowledged, over (s)",
  group_lag_seconds: "A group behind, over (s)", growing_messages: "Backlog grown in 5 minutes by", dead_letters: "Dead letters, from",
};

function Thresholds() {
  const [values, setValues] = useState(null);
  const [said, setSaid] = useState("");
  const open = async (event) => {
    if (event.target.open) setValues((await get("/api/v1/dashboard/attention")).thresholds);
  };
  const save = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const wanted = Object.fromEntries(Object.keys(LABELS).map((name) => [name, Number(form.get(name))]));
    try {
      setValues(await put("/api/v1/dashboard/thresholds", wanted));
      setSaid("saved");
    } catch (error) {
      setSaid(error.message);
    }
  };
  return html`<details onToggle=${open}><summary class="muted">Thresholds</summary>
    ${values && html`<form onSubmit=${save} class="bar">${Object.entries(LABELS).map(([name, label]) => html`<label>${label} <input name=${name} type="number" min="0" size="7" value=${values[name]} /></label>`)}
      <button class="do">Save</button> <span role="status">${said}</span></form>`}</details>`;
}

export function Overview() {
  const { data: series } = useData("/api/v1/dashboard/series", 2);
  const now = overview.value;
  if (!now) return html`<p class="muted">Waiting for the broker…</p>`;
  const { memory, disk, journal } = now;
  return html`
    <h1>Overview</h1>
    <section class="panel" aria-label="Needs attention"><h2>Needs attention</h2>
      <${Findings} findings=${now.findings} now=${now.now} /><${Thresholds} /></section>
    <div class="grid">
      <section class="panel" aria-label="Rates"><h2>Rates, last minute</h2>
        ${series && html`<${Rates} series=${series.bySecond} step=${1} label="Last minute" />`}</section>
      <section class="panel" aria-label="Rates over hours"><h2>Rates, last three hours</h2>
        ${series && html`<${Rates} series=${series.byMinute} step=${60} label="Last three hours" />`}</section>
    </div>
    <div class="grid">
      <section class="panel" aria-label="Messages"><h2>Messages</h2><dl class="figures">
        <div><dt>In</dt><dd>${rate(now.rates.published)}</dd></div><div><dt>Out</dt><dd>${rate(now.rates.delivered)}</dd></div><div><dt>Acked</dt><dd>${rate(now.rates.acked)}</dd></div>
        <div><dt>Ready</dt><dd>${count(now.ready)}</dd></div><div><dt>Unacked</dt><dd>${count(now.unacked)}</dd></div><div><dt>Stored in streams</dt><dd>${count(now.stored)}</dd></div>
        <div><dt>Queues</dt><dd>${count(now.queues)}</dd></div><div><dt>Connections</dt><dd>${count(now.connections)}</dd></div><div><dt>Consumers</dt><dd>${count(now.consumers)}</dd></div>
      </dl></section>
      <section class="panel" aria-label="Node"><h2>Node</h2><dl class="figures">
        <div><dt>Memory</dt><dd>${bytes(memory.used)}</dd><small class="muted">alarm at ${bytes(memory.limit)}</small></div>
        <div><dt>Disk free</dt><dd>${bytes(disk.free)}</dd><small class="muted">alarm at ${bytes(disk.limit)}</small></div>
        <div><dt>Journal</dt><dd>${bytes(disk.journal)}</dd><small class="muted">${count(journal.segments)} segments</small></div>
        <div><dt>Group commit</dt><dd>${journal.group === null ? "–" : journal.group}</dd><small class="muted">records each</small></div>
        <div><dt>Last sync</dt><dd>${journal.lastSyncMs === null ? "–" : `${journal.lastSyncMs} ms`}</dd></div>
        <div><dt>Up for</dt><dd>${span(now.uptime)}</dd></div>
      </dl></section>
    </div>`;
}

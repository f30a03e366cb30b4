// Is anything stuck, since when, and who has it? Then the node at a glance.
import { html, useState } from "../parts/html.js";
import { get, part, put } from "../parts/api.js";
import { Rates } from "../parts/chart.js";
import { Field, Form } from "../parts/form.js";
import { bytes, count, milliseconds, moment, rate, since, some, span } from "../parts/format.js";
import { overview } from "../parts/live.js";
import { useData } from "../parts/load.js";
import { isAdministrator } from "../parts/session.js";

export function linkOf(finding) {
  if (finding.rule === "dead-letters") return `#/dead-letters?queue=${part(finding.name)}`;
  if (finding.subject === "queue") return `#/queue/${part(finding.vhost)}/${part(finding.name)}`;
  if (finding.subject === "group") return `#/groups/${part(finding.queue)}/${part(finding.group)}`;
  if (finding.subject === "shovel") return "#/shovels";
  if (finding.subject === "query") return "#/pipeline";
  if (finding.subject === "listener") return null;
  return "#/journal";
}

const HOW = { get: ", basic.get", cancelled: ", cancelled consumer", lease: ", over HTTP" };
const Holders = ({ who }) => html`<br /><span class="muted">${who.slice(0, 3).map((one, index) => html`${index ? ", " : "held by "}${one.connection ? html`<a href=${`#/connections?text=${part(one.connection)}`}>${one.client || one.consumer || one.connection}</a>` : html`lease <code>${one.consumer}</code>`} (${one.user}, ${one.host}${HOW[one.kind] || ""}): ${count(one.unacked)}`)}${who.length > 3 ? `, and ${who.length - 3} more` : ""}</span>`;

export function Findings({ findings, now, linked = true }) {
  if (!findings.length) return html`<p class="ok">Nothing needs attention.</p>`;
  return html`<ul class="findings">${findings.map((finding) => html`<li class=${finding.severity} key=${finding.rule + finding.vhost + finding.name}>
    <span class="what">${linked && linkOf(finding) ? html`<a href=${linkOf(finding)}><b>${finding.name}</b></a>` : html`<b>${linked ? finding.name : finding.rule}</b>`}: ${finding.text}
      ${finding.who?.length ? html`<${Holders} who=${finding.who} />` : null}</span>
    <span class="since">${finding.since ? html`for <time datetime=${new Date(finding.since).toISOString()} title=${moment(finding.since)}>${since(finding.since, now)}</time>` : "since: unknown"}</span>
  </li>`)}</ul>`;
}

const LABELS = {
  unread_seconds: "A queue without a reader, after (s)", oldest_seconds: "Oldest waiting message, over (s)", unacked_seconds: "Unacknowledged, over (s)",
  group_lag_seconds: "A group behind, over (s)", growing_messages: "Backlog grown in 5 minutes by", dead_letters: "Dead letters within 24 hours, from", standby_seconds: "A standby behind or silent, over (s)",
  paused_seconds: "A queue paused, bad after (s)", silent_seconds: "A Spark query silent, over (s)",
  certificate_days: "A certificate ends within (days)", certificate_urgent_days: "A certificate ends, bad within (days)",
};

function Thresholds() {
  const [values, setValues] = useState(null);
  const open = async (event) => {
    if (event.target.open) setValues((await get("/api/v1/dashboard/attention")).thresholds);
  };
  const save = async (given) => {
    const wanted = Object.fromEntries(Object.keys(LABELS).map((name) => [name, Number(given[name])]));
    setValues(await put("/api/v1/dashboard/thresholds", wanted));
    return "saved";
  };
  return html`<details onToggle=${open}><summary class="muted">Thresholds</summary>
    ${values && html`<${Form} run=${save} action="Save" label="Thresholds">${Object.entries(LABELS).map(([name, label]) => html`<${Field} label=${label}><input name=${name} type="number" min="0" defaultValue=${values[name]} /><//>`)}<//>`}</details>`;
}

const Figure = ({ name, value, note, bad }) => html`<div><dt>${name}</dt><dd class=${bad ? "bad" : ""}>${value}</dd>${note && html`<dd class="note">${note}</dd>`}</div>`;

export function Overview() {
  const { data: series } = useData("/api/v1/dashboard/series", 2);
  const now = overview.value;
  if (!now) return html`<h1>Overview</h1><p class="muted">Waiting for the broker…</p>`;
  const { memory, disk, journal } = now;
  return html`
    <h1>Overview</h1>
    <section class="panel" aria-label="Needs attention"><h2>Needs attention</h2>
      <${Findings} findings=${now.findings} now=${now.now} />${now.findingsTotal > now.findings.length ? html`<p class="muted">The worst ${count(now.findings.length)} of ${count(now.findingsTotal)} are shown.</p>` : null}${isAdministrator() ? html`<${Thresholds} />` : null}</section>
    <div class="grid">
      <section class="panel" aria-label="Rates"><h2>Rates, last minute</h2>
        ${series && html`<${Rates} series=${series.bySecond} step=${1} label="Last minute" />`}</section>
      <section class="panel" aria-label="Rates over hours"><h2>Rates, last three hours</h2>
        ${series && html`<${Rates} series=${series.byMinute} step=${60} label="Last three hours" />`}</section>
    </div>
    <div class="grid">
      <section class="panel" aria-label="Messages"><h2>Messages</h2><dl class="figures">
        <${Figure} name="In" value=${rate(now.rates.published)} /><${Figure} name="Out" value=${rate(now.rates.delivered)} /><${Figure} name="Acked" value=${rate(now.rates.acked)} />
        <${Figure} name="Ready" value=${count(now.ready)} /><${Figure} name="Unacked" value=${count(now.unacked)} /><${Figure} name="Stored in streams" value=${count(now.stored)} />
        <${Figure} name="Queues" value=${html`<a href="#/queues">${count(now.queues)}</a>`} /><${Figure} name="Connections" value=${html`<a href="#/connections">${count(now.connections)}</a>`} /><${Figure} name="Consumers" value=${count(now.consumers)} />
      </dl></section>
      <section class="panel" aria-label="Node"><h2>Node</h2><dl class="figures">
        <${Figure} name="Memory" value=${bytes(memory.used)} note=${`alarm at ${bytes(memory.limit)}`} bad=${memory.used >= memory.limit} />
        <${Figure} name="Disk free" value=${bytes(disk.free)} note=${disk.limit ? `alarm at ${bytes(disk.limit)}` : "no alarm set"} bad=${disk.free !== null && disk.free <= disk.limit} />
        <${Figure} name="Journal" value=${html`<a href="#/journal">${bytes(disk.journal)}</a>`} note=${some(journal.segments, "segment")} />
        <${Figure} name="Sync p50" value=${milliseconds(journal.syncP50Ms)} note=${`p99 ${milliseconds(journal.syncP99Ms)}`} />
        <${Figure} name="Group commit" value=${count(journal.group)} note="records each" />
        <${Figure} name="Up for" value=${span(now.uptime)} />
      </dl></section>
    </div>`;
}

// One queue: the frame that both kinds share. The rest is in work_queue.js and partitioned_queue.js.
import { html, useState } from "../parts/html.js";
import { get, part, put } from "../parts/api.js";
import { Depth, Rates } from "../parts/chart.js";
import { Field, Form, readJson } from "../parts/form.js";
import { bytes, count, rate, span } from "../parts/format.js";
import { brokerNow } from "../parts/live.js";
import { useData } from "../parts/load.js";
import { go, route } from "../parts/route.js";
import { isPolicymaker } from "../parts/session.js";
import { Loading, Problem, Table } from "../parts/table.js";
import { Findings } from "./overview.js";
import { PartitionedQueue } from "./partitioned_queue.js";
import { drop, pause, purge, resume } from "./queues.js";
import { WorkQueue } from "./work_queue.js";

const IN_MS = ["x-message-ttl", "x-expires", "x-consumer-timeout"];
const IN_BYTES = ["x-max-length-bytes", "x-max-in-memory-bytes", "x-stream-max-segment-size-bytes"];

function unit({ name, value }) {
  if (typeof value !== "number") return null;
  const text = IN_MS.includes(name) ? span(value / 1000) : IN_BYTES.includes(name) ? bytes(value) : "";
  return text && html` <span class="muted">${text}</span>`;
}

const ORIGINS = [
  { title: "Setting", show: (one) => html`<code>${one.name}</code>` },
  { title: "Value", show: (one) => (one.value === null ? html`<span class="muted">not set</span>` : html`<code>${JSON.stringify(one.value)}</code>${unit(one)}`) },
  { title: "Comes from", show: (one) => (one.origin === "default" ? html`<span class="muted">default</span>` : one.origin) },
];

function Settings({ vhost, name, data, reload }) {
  const { settings } = data;
  const [all, setAll] = useState(false);
  const rows = all ? settings : settings.filter((one) => one.origin !== "default");
  return html`<section class="panel" aria-label="Settings"><h2>Settings</h2><${Table} label="Settings" columns=${ORIGINS} rows=${rows} empty="Everything is as by default." />
    <button class="do small" onClick=${() => setAll(!all)} aria-pressed=${all}>${all ? "Hide defaults" : "Show defaults"}</button>
    ${isPolicymaker() ? html`<${LiveSettings} vhost=${vhost} name=${name} policy=${data.policy} reload=${reload} />` : null}</section>`;
}

const exactly = (name) => `^${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`;

// A queue's arguments never change; a policy of its own does, and takes effect at once. It replaces the policy
// that applied before, so it begins with what that one says.
function LiveSettings({ vhost, name, policy, reload }) {
  const [now, setNow] = useState(null);
  const pattern = exactly(name);
  const open = async (event) => {
    if (event.target.open) setNow(policy ? await get(`/api/policies/${part(vhost)}/${part(policy)}`) : {});
  };
  const save = async (given) => {
    const own = now.pattern === pattern;
    const title = own ? now.name : `only-${name}`;
    const next = { pattern, definition: readJson(given.definition, "Settings"), "apply-to": "queues", priority: own ? now.priority : (now.priority ?? -1) + 1 };
    await put(`/api/policies/${part(vhost)}/${part(title)}`, next);
    setNow({ ...next, name: title });
    reload();
    return `saved as the policy ${title}`;
  };
  return html`<details onToggle=${open}><summary>Change settings</summary>${now && html`<${Form} run=${save} action="Save" label="Change settings">
    <p class="wide muted">They are kept as a policy of this queue alone and take effect at once.${policy && now.pattern !== pattern ? html` It is put above the policy <code>${policy}</code>.` : null}</p>
    <${Field} label="Settings as JSON" wide><textarea name="definition" rows="4" placeholder='{"max-length": 1000, "message-ttl": 60000}'>${now.definition ? JSON.stringify(now.definition, null, 1) : ""}</textarea><//><//>`}</details>`;
}

function Figures({ row, totals }) {
  const stream = row.kind === "stream";
  return html`<section class="panel" aria-label="Figures"><dl class="figures">
    <div><dt>${stream ? "Stored" : "Ready"}</dt><dd>${count(row.ready)}</dd></div>
    ${stream ? html`<div><dt>Oldest unread</dt><dd>${span(row.oldest)}</dd></div><div><dt>Groups</dt><dd>${count(row.groups)}</dd></div><div><dt>Dead letters</dt><dd>${count(row.dead_letters)}</dd></div>` : html`<div><dt>Unacked</dt><dd>${count(row.unacked)}</dd></div><div><dt>Oldest waits</dt><dd>${row.ready ? span(row.oldest) : "–"}</dd></div><div><dt>Bytes waiting</dt><dd>${bytes(row.bytes)}</dd></div>`}
    <div><dt>In</dt><dd>${rate(row.incoming)}</dd></div><div><dt>Out</dt><dd>${rate(row.outgoing)}</dd></div><div><dt>Acked</dt><dd>${rate(row.acked)}</dd></div>
    ${totals && html`<div><dt>Returned</dt><dd>${count(totals.returned)}</dd></div><div><dt>Dropped</dt><dd>${count(totals.dropped)}</dd></div><div><dt>Dead today</dt><dd>${row.died_today ? html`<a href=${`#/dead-letters?queue=${part(row.name)}`}>${count(row.died_today)}</a>` : "0"}</dd></div>`}
  </dl></section>`;
}

function Charts({ data }) {
  const [hours, setHours] = useState(false);
  const form = hours ? "byMinute" : "bySecond";
  const step = hours ? 60 : 1;
  if (!data.series) return html`<p class="muted">This queue has not been used since the broker started.</p>`;
  return html`<div class="bar tight" role="group" aria-label="Time span"><button class="do small" aria-pressed=${!hours} onClick=${() => setHours(false)}>last minute</button><button class="do small" aria-pressed=${hours} onClick=${() => setHours(true)}>last three hours</button></div>
    <div class="grid"><section class="panel" aria-label="Rates"><h2>Rates</h2><${Rates} series=${data.series[form]} step=${step} label="Rates" /></section>
    ${data.depth && html`<section class="panel" aria-label="Depth"><h2>Depth</h2><${Depth} values=${data.depth[form]} step=${step} label="Depth" /></section>`}</div>`;
}

function Actions({ row, may, reload }) {
  const [error, setError] = useState(null);
  const act = (work, after) => async () => {
    try {
      setError(null);
      if ((await work(row)) && after) {
        after(); // there is nothing to load again
        return;
      }
    } catch (problem) {
      setError(problem);
    }
    reload();
  };
  const offers = [
    may("configure") && (row.paused ? ["Resume", act(resume)] : ["Pause…", act(pause)]),
    may("read") && row.kind !== "stream" && ["Purge…", act(purge)],
    may("configure") && ["Delete…", act(drop, () => go("/queues")), true],
  ].filter(Boolean);
  if (!offers.length) return null;
  return html`<div class="bar">${offers.map(([title, work, danger]) => html`<button class=${`do ${danger ? "danger" : ""}`} onClick=${work}>${title}</button>`)}<${Problem} error=${error} /></div>`;
}

export function Queue() {
  const [, vhost, name] = route.value.segments;
  const base = `/api/v1/dashboard/queues/${part(vhost)}/${part(name)}`;
  const { data, error, reload } = useData(base, 2);
  if (!data) return html`<h1>${name}</h1><${Problem} error=${error} />${error ? null : html`<${Loading} />`}`;
  const { row, totals } = data;
  const may = (action) => data.can.includes(action);
  return html`<h1>${name} <span class="tag">${row.kind}</span> ${row.durable ? null : html`<span class="tag">transient</span>`} <span class="tag">vhost ${vhost}</span> ${row.paused ? html`<span class="tag warn">paused</span>` : null}</h1>
    <${Problem} error=${error} />
    <${Actions} row=${row} may=${may} reload=${reload} />
    ${data.findings.length ? html`<section class="panel" aria-label="Needs attention"><${Findings} findings=${data.findings} now=${brokerNow()} linked=${false} /></section>` : null}
    <${Figures} row=${row} totals=${totals} /><${Charts} data=${data} />
    ${row.kind === "stream" ? html`<${PartitionedQueue} vhost=${vhost} name=${name} base=${base} may=${may} data=${data} reload=${reload} />` : html`<${WorkQueue} vhost=${vhost} name=${name} base=${base} may=${may} data=${data} reload=${reload} />`}
    <${Settings} vhost=${vhost} name=${name} data=${data} reload=${reload} />`;
}

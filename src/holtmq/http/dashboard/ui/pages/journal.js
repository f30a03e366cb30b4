// The journal: how fast it becomes durable, its segments and why each is kept, checkpoints, backup.
import { html } from "../parts/html.js";
import { post } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { Form } from "../parts/form.js";
import { bytes, count, milliseconds, moment, some, span } from "../parts/format.js";
import { overview } from "../parts/live.js";
import { useData } from "../parts/load.js";
import { isAdministrator, isMonitoring } from "../parts/session.js";
import { Loading, Problem, Table } from "../parts/table.js";

const SHOWN = 100;

const SEGMENTS = [
  { title: "Segment from", show: (row) => html`<code>${count(row.base)}</code>` },
  { title: "Size", num: true, show: (row) => bytes(row.bytes) },
  { title: "Live records", num: true, show: (row) => count(row.live) },
  { title: "Kept because", wide: true, show: (row) => row.why },
  { title: "Oldest message of", wide: true, show: (row) => row.queues.map((name, index) => html`${index ? ", " : ""}<a href=${`#/queues?text=${encodeURIComponent(name)}`}>${name}</a>`) },
];

const SET_ASIDE = [
  { title: "Queue", wide: true, show: (row) => html`<a href=${`#/queues?text=${encodeURIComponent(row.queue)}`}>${row.queue}</a><br /><small class="muted">${row.where} in ${row.vhost}</small>` },
  { title: "Messages", num: true, show: (row) => count(row.messages) },
  { title: "Size", num: true, show: (row) => (row.size ? bytes(row.size) : count(null)) },
  { title: "Position", num: true, show: (row) => html`<code>${count(row.position)}</code>` },
  { title: "Found", show: (row) => moment(row.foundAt && Date.parse(row.foundAt)) },
  { title: "Reason", wide: true, show: (row) => row.reason },
];

// Messages that cannot be read; their queues go on without them.
function SetAside() {
  const { data } = useData("/api/v1/system/damaged", 10);
  if (!data?.count) return null;
  return html`<section class="panel" aria-label="Set aside"><h2>Set aside</h2><p>${some(data.count, "message")} cannot be read. If a backup has the segment, stop the broker and put its file back; else <code>holt journal repair</code> gives them up.</p>
    <${Table} label="Set aside" columns=${SET_ASIDE} rows=${data.messages.slice(0, SHOWN)} keyOf=${(row) => `${row.where} ${row.vhost} ${row.queue} ${row.position}`} empty="" />
    ${data.messages.length > SHOWN ? html`<p class="muted">${count(SHOWN)} of ${count(data.messages.length)} are shown.</p>` : null}</section>`;
}

function Checkpoint({ data, reload }) {
  const make = async () => {
    await post("/api/v1/dashboard/journal/checkpoint");
    reload();
    return "begun: it completes in the background";
  };
  return html`<section class="panel" aria-label="Checkpoint"><h2>Checkpoint</h2><p>${data.checkpointAgeSeconds === null ? "No checkpoint was made since the start." : `The newest checkpoint is ${span(data.checkpointAgeSeconds)} old.`} A restart reads the newest checkpoint, if there is one, and ${bytes(data.bytesSinceCheckpoint)} of log after it. The next checkpoint is made at ${bytes(data.checkpointAtBytes)}.${data.checkpointing ? html` <b>One is being made now.</b>` : null}</p>
    ${isAdministrator() ? html`<${Form} run=${make} action="Checkpoint now" label="Checkpoint" />` : null}</section>`;
}

function Nodes({ node, reload }) {
  if (node === null) return html`<section class="panel" aria-label="Nodes"><h2>Nodes</h2><p>This node alone has the journal. With <code>journal.replica</code> another one can take over.</p></section>`;
  const switchOver = (peer) => confirmDanger({ title: `Switch over to ${peer.name}`, text: `Consumers get a moment to finish, publishes are confirmed, then ${node.name} stops and ${peer.name} owns the log. ${peer.name} is ${bytes(peer.behind_bytes)} behind.`, name: peer.name, action: "Switch over", run: () => post("/api/v1/dashboard/journal/switchover", { node: peer.name }) }).then(reload);
  const columns = [
    { title: "Other node", show: (peer) => html`<b>${peer.name}</b><br /><small class="muted">${peer.address}</small>` },
    { title: "Role", show: (peer) => html`<span class=${peer.role === "standby" ? "" : "warn"}>${peer.role}</span>` },
    { title: "Behind", num: true, show: (peer) => html`${bytes(peer.behind_bytes)}<br /><small class="muted">${span(peer.behind_seconds + peer.seen_seconds_ago)}</small>` },
    { title: "Seen", num: true, show: (peer) => `${span(peer.seen_seconds_ago)} ago` },
  ];
  if (isAdministrator()) columns.push({ title: "", show: (peer) => (peer.role === "standby" ? html`<button class="do small" disabled=${Boolean(node.handing_over_to)} aria-label=${`Switch over to ${peer.name}`} onClick=${() => switchOver(peer)}>Switch over…</button>` : null) });
  return html`<section class="panel" aria-label="Nodes"><h2>Nodes</h2><dl class="figures"><div><dt>This node</dt><dd class="small">${node.name}</dd></div><div><dt>Owner</dt><dd class="small">${node.owner || node.name}</dd></div><div><dt>Epoch</dt><dd>${count(node.epoch)}</dd></div></dl>
    ${node.trouble && html`<p class="notice" role="alert">${node.trouble}</p>`}${node.handing_over_to && html`<p class="notice" role="status">The log is being handed over to ${node.handing_over_to}.</p>`}
    <${Table} label="Other nodes" columns=${columns} rows=${node.peers} keyOf=${(peer) => peer.name} empty="No other node has reported: if this one fails, none takes over." /></section>`;
}

// A journal in memory has no files to back up.
const Backup = ({ hasFiles }) => html`<section class="panel" aria-label="Backup"><h2>Backup</h2><p>A backup is taken while the broker runs.${isAdministrator() ? " The download is whole; the command copies only what is new, to a folder or a bucket." : ""}</p>
  ${isAdministrator() && hasFiles ? html`<div class="bar"><a class="do" href="/api/v1/operator/backups/archive" download>Download a backup</a></div>` : null}<pre>holt backup /backups/holt
holt restore /backups/holt NEW_FOLDER</pre></section>`;

export function Journal() {
  const { data, error, reload } = useData("/api/v1/dashboard/journal", 3);
  const alarm = overview.value?.alarm;
  if (!data) return html`<h1>Journal</h1><${Problem} error=${error} />${error ? null : html`<${Loading} />`}`;
  return html`<h1>Journal</h1><${Problem} error=${error} />
    ${alarm ? html`<p class="notice" role="alert">Publishers are blocked: the broker is ${alarm}.</p>` : null}
    ${data.failed ? html`<p class="notice" role="alert">The journal failed and accepts nothing more: ${data.failed}</p>` : null}
    ${data.stalled ? html`<p class="notice" role="alert">Nothing becomes durable now: ${data.stalled}</p>` : null}
    <section class="panel" aria-label="Figures"><dl class="figures">
      <div><dt>Commits</dt><dd>${count(data.commits)}</dd></div><div><dt>Records</dt><dd>${count(data.records)}</dd></div><div><dt>Group commit</dt><dd>${count(data.group)}</dd><dd class="note">records each</dd></div>
      <div><dt>Sync p50</dt><dd>${milliseconds(data.syncP50Ms)}</dd><dd class="note">of the last 512</dd></div><div><dt>Sync p99</dt><dd>${milliseconds(data.syncP99Ms)}</dd></div><div><dt>Not yet durable</dt><dd>${bytes(data.backlogBytes)}</dd></div>
      <div><dt>On disk</dt><dd>${bytes(data.bytesOnDisk)}</dd></div><div><dt>Freed so far</dt><dd>${bytes(data.reclaimedBytes)}</dd></div><div><dt>Checkpoints</dt><dd>${count(data.checkpoints)}</dd>${data.checkpointFailures ? html`<dd class="note bad">${count(data.checkpointFailures)} failed</dd>` : null}</div>
    </dl></section>
    ${isMonitoring() ? html`<${SetAside} />` : null}
    <div class="grid"><${Checkpoint} data=${data} reload=${reload} /><${Nodes} node=${data.node} reload=${reload} /><${Backup} hasFiles=${data.total > 0} /></div>
    <section class="panel" aria-label="Segments"><h2>Segments</h2><${Table} label="Segments" columns=${SEGMENTS} rows=${data.segments} keyOf=${(row) => row.base} empty="This journal has no files: it is in memory." />
      ${data.total > data.segments.length ? html`<p class="muted">The newest ${count(data.segments.length)} of ${count(data.total)} are shown.</p>` : null}</section>`;
}

// The journal: what was written, how fast it becomes durable, what it takes on disk.
import { html } from "../parts/html.js";
import { bytes, count } from "../parts/format.js";
import { overview } from "../parts/live.js";

export function Journal() {
  const now = overview.value;
  if (!now) return html`<p class="muted">Waiting for the broker…</p>`;
  const { journal, disk, alarm } = now;
  return html`<h1>Journal</h1>${alarm ? html`<p class="notice" role="alert">Publishers are blocked: the broker is ${alarm}.</p>` : null}
    <section class="panel"><dl class="figures">
      <div><dt>Commits</dt><dd>${count(journal.commits)}</dd></div><div><dt>Records</dt><dd>${count(journal.records)}</dd></div><div><dt>Records per commit</dt><dd>${journal.group ?? "–"}</dd></div>
      <div><dt>Last sync</dt><dd>${journal.lastSyncMs === null ? "–" : `${journal.lastSyncMs} ms`}</dd></div><div><dt>On disk</dt><dd>${bytes(disk.journal)}</dd></div><div><dt>Segments</dt><dd>${count(journal.segments)}</dd></div>
      <div><dt>Checkpoints</dt><dd>${count(journal.checkpoints)}</dd></div><div><dt>Disk free</dt><dd>${bytes(disk.free)}</dd></div>
    </dl></section>`;
}

// Spark queries that read or write here, as they report after each batch, and how far archives have come.
import { html } from "../parts/html.js";
import { part, post, remove } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { bytes, count, rate, span } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { couldDo, isAdministrator } from "../parts/session.js";
import { Loading, Problem, Table } from "../parts/table.js";

const SILENT = 300; // seconds without a report of a query that is said to run

const State = ({ row }) => (row.state === "failed" ? html`<span class="bad">failed</span>` : row.state === "running" && row.silentSeconds > SILENT ? html`<span class="warn">silent</span>` : row.state);

export function Pipeline() {
  const { data, error, reload } = useData("/api/v1/pipelines", 5);
  const archives = useData("/api/v1/dashboard/groups?text=archive&limit=100", 10);
  const forget = (row) => remove(`/api/v1/pipelines/${part(row.query)}`).then(reload);
  const columns = [
    { title: "Query", show: (row) => html`<b>${row.name || "unnamed"}</b><br /><code>${row.query}</code>` },
    { title: "State", show: (row) => html`<${State} row=${row} /><br /><small class="muted">${span(row.silentSeconds)} ago</small>` },
    { title: "Reads", show: (row) => row.sources.map((name) => html`<div><a href=${`#/queues?text=${part(name)}`}>${name}</a></div>`) },
    { title: "Writes", wide: true, show: (row) => (row.sink ? html`<code>${row.sink}</code>` : "") },
    { title: "Batch", num: true, show: (row) => (row.batch == null ? count(null) : html`${count(row.batch)}<br /><small class="muted">${row.durationMs} ms</small>`) },
    { title: "Rows", num: true, show: (row) => (row.batch == null ? count(null) : html`${rate(row.rowsPerSecond)}<br /><small class="muted">${count(row.rowsTotal)} in all</small>`) },
    { title: "Behind", num: true, show: (row) => count(row.lag) },
    { title: "State store", num: true, show: (row) => (row.stateRows ? html`${count(row.stateRows)} rows<br /><small class="muted">${bytes(row.stateBytes)}</small>` : "") },
    { title: "Last error", wide: true, show: (row) => (row.lastError ? html`<details><summary class="bad">${row.lastError.slice(0, 60)}</summary><pre>${row.lastError}</pre></details>` : "") },
  ];
  const stop = (row) => confirmDanger({ title: `Stop ${row.name || row.query}`, text: "The query stops when it next reports, after its batch or within seconds. Started again, it goes on where it stopped.", action: "Stop", run: () => post(`/api/v1/pipelines/${part(row.query)}/stop`) }).then(reload);
  if (isAdministrator()) columns.push({ title: "", show: (row) => (row.state !== "running" ? null : row.isAskedToStop ? html`<span class="warn">asked to stop</span>` : html`<button class="do small danger" aria-label=${`Stop ${row.name || row.query}`} onClick=${() => stop(row)}>Stop…</button>`) });
  if (couldDo("write")) columns.push({ title: "", show: (row) => html`<button class="do small" aria-label=${`Forget ${row.name || row.query}`} onClick=${() => forget(row)}>Forget</button>` });
  const positions = [
    { title: "Group", show: (row) => html`<a href=${`#/groups/${part(row.queue)}/${part(row.group)}`}>${row.group}</a>` },
    { title: "Queue", show: (row) => html`<a href=${`#/queue/%2F/${part(row.queue)}`}>${row.queue}</a>` },
    { title: "Archived", num: true, show: (row) => count(row.consumed) },
    { title: "Behind", num: true, show: (row) => count(row.messages) },
    { title: "Oldest not archived", num: true, show: (row) => (row.messages ? span(row.seconds) : "") },
  ];
  return html`<h1>Pipeline</h1><${Problem} error=${error} />
    <section class="panel" aria-label="Queries"><h2>Queries</h2>${data ? html`<${Table} label="Queries" columns=${columns} rows=${data.pipelines} keyOf=${(row) => row.query} empty="No query has reported. A session reports after holtmq.spark.report_to(spark, url); holt pipeline does it by itself." />` : html`<${Loading} />`}</section>
    <section class="panel" aria-label="Archives"><h2>Archive positions</h2><p class="muted">An archive mirrors its position as a consumer group; retention of read messages waits for it.</p>${archives.data && html`<${Table} label="Archives" columns=${positions} rows=${archives.data.rows.filter((row) => row.group.includes("archive"))} keyOf=${(row) => `${row.queue} ${row.group}`} empty="No archive has reported a position." />`}</section>
    <section class="panel" aria-label="Jobs"><h2>Jobs</h2><p>Jobs run where Spark is; the broker sees what they report.</p><pre># what they reported last
holt pipeline list
# read an archive back into a queue
holt pipeline replay --help
# send dead letters back
holt pipeline redrive --help</pre></section>`;
}

// Shovels: what each moves from where to where, how far it is, and what went wrong last.
import { html } from "../parts/html.js";
import { part, remove } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { count } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { isAdministrator } from "../parts/session.js";
import { Loading, Problem, Table } from "../parts/table.js";

const STATES = { running: "ok", terminated: "bad", blocked: "bad" };
const pathOf = (row) => `/api/shovels/vhost/${part(row.vhost)}/${part(row.name)}`;
const end = (uri, queue, exchange) => html`<b>${queue ?? exchange ?? "by its own address"}</b><br /><code>${uri}</code>`;

export function Shovels() {
  const { data, error, reload } = useData("/api/shovels", 3);
  const drop = (row) => confirmDanger({ title: "Delete the shovel", text: `${row.name} stops. What it has not moved stays at the source.`, action: "Delete", run: () => remove(pathOf(row)) }).then(reload);
  const restart = (row) => remove(`${pathOf(row)}/restart`).then(reload);
  const columns = [
    { title: "Name", show: (row) => html`<b>${row.name}</b> <span class="tag">${row.vhost}</span>` },
    { title: "From", show: (row) => end(row.src_uri, row.src_queue, row.src_exchange) },
    { title: "To", show: (row) => end(row.dest_uri, row.dest_queue, row.dest_exchange) },
    { title: "State", show: (row) => html`<span class=${STATES[row.state] || ""}>${row.state}</span>` },
    { title: "Moved", num: true, show: (row) => count(row.forwarded) },
    { title: "On the way", num: true, show: (row) => count(row.pending) },
    { title: "Perhaps twice", num: true, show: (row) => count(row.redelivered) },
    { title: "Refused", num: true, show: (row) => count(row.refused) },
    { title: "Last error", show: (row) => row.last_error || "" },
  ];
  if (isAdministrator()) columns.push({ title: "", show: (row) => html`<button class="do small" aria-label=${`Restart ${row.name}`} onClick=${() => restart(row)}>Restart</button> <button class="do small danger" onClick=${() => drop(row)}>Delete…</button>` });
  return html`<h1>Shovels</h1><${Problem} error=${error} />
    <section class="panel">${data ? html`<${Table} label="Shovels" columns=${columns} rows=${data} keyOf=${(row) => `${row.vhost} ${row.name}`} empty="No shovel moves messages between brokers." />` : html`<${Loading} />`}</section>`;
}

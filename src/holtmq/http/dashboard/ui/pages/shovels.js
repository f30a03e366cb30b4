// Shovels: what each moves from where to where, how far it is, and what went wrong last.
import { html } from "../parts/html.js";
import { part, put, remove } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { Field, Form } from "../parts/form.js";
import { count } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { isAdministrator, isPolicymaker } from "../parts/session.js";
import { Loading, Problem, Table } from "../parts/table.js";

const STATES = { running: "ok", terminated: "bad", blocked: "bad" };
const pathOf = (row) => `/api/shovels/vhost/${part(row.vhost)}/${part(row.name)}`;
const end = (uri, queue, exchange) => html`<b>${queue ?? exchange ?? "the messages' own address"}</b><br /><code class="nowrap">${uri}</code>`;

// The password in an address goes to the broker and is never shown again.
function Create({ reload }) {
  const create = async (given) => {
    if (!given.srcQueue && !given.srcExchange) throw new Error("name the queue or the exchange to read from");
    const value = {
      "src-uri": given.srcUri, ...(given.srcQueue ? { "src-queue": given.srcQueue } : { "src-exchange": given.srcExchange, ...(given.srcKey ? { "src-exchange-key": given.srcKey } : {}) }),
      "dest-uri": given.destUri, ...(given.destQueue ? { "dest-queue": given.destQueue } : given.destExchange ? { "dest-exchange": given.destExchange } : {}),
      "ack-mode": given.ackMode, ...(given.deleteAfter ? { "src-delete-after": given.deleteAfter } : {}), ...(given.prefetch ? { "src-prefetch-count": Number(given.prefetch) } : {}),
    };
    await put(`/api/parameters/shovel/${part(given.vhost || "/")}/${part(given.name)}`, { value });
    reload();
    return `${given.name} is there`;
  };
  return html`<details class="panel"><summary>Create a shovel</summary><${Form} run=${create} action="Create" label="Create a shovel">
    <${Field} label="Name"><input name="name" required maxlength="255" /><//><${Field} label="Vhost"><input name="vhost" defaultValue="/" /><//>
    <${Field} label="From (amqp:// is this broker)" wide><input name="srcUri" defaultValue="amqp://" required /><//>
    <${Field} label="Source queue"><input name="srcQueue" /><//><${Field} label="or source exchange"><input name="srcExchange" /><//><${Field} label="with binding key"><input name="srcKey" /><//>
    <${Field} label="To" wide><input name="destUri" placeholder="amqp://user:password@host:5672" required /><//>
    <${Field} label="Destination queue"><input name="destQueue" placeholder="the messages' own address" /><//><${Field} label="or destination exchange"><input name="destExchange" /><//>
    <${Field} label="Acknowledge"><select name="ackMode"><option value="on-confirm">when confirmed: loses nothing</option><option value="on-publish">when published</option><option value="no-ack">at once</option></select><//>
    <${Field} label="End"><select name="deleteAfter"><option value="never">never: move what comes, too</option><option value="queue-length">after what waits now</option></select><//>
    <${Field} label="Prefetch"><input name="prefetch" type="number" min="1" placeholder="1000" /><//><//></details>`;
}

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
    { title: "Last error", wide: true, show: (row) => row.last_error || "" },
  ];
  if (isAdministrator()) columns.push({ title: "", show: (row) => html`<span class="acts"><button class="do small" aria-label=${`Restart ${row.name}`} onClick=${() => restart(row)}>Restart</button><button class="do small danger" onClick=${() => drop(row)}>Delete…</button></span>` });
  return html`<h1>Shovels</h1><${Problem} error=${error} />
    <section class="panel">${data ? html`<${Table} label="Shovels" columns=${columns} rows=${data} keyOf=${(row) => `${row.vhost} ${row.name}`} empty="No shovel moves messages between brokers." />` : html`<${Loading} />`}</section>
    ${isPolicymaker() ? html`<${Create} reload=${reload} />` : null}`;
}

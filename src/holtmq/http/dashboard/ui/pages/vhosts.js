// Virtual hosts and their limits.
import { html, useState } from "../parts/html.js";
import { part, put, remove } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { Field, Form } from "../parts/form.js";
import { count, some } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { Opened } from "../parts/opened.js";
import { isAdministrator, isMonitoring } from "../parts/session.js";
import { Loading, Problem, Table } from "../parts/table.js";
import { LimitsForm } from "./users.js";

const LIMITS = ["max-connections", "max-queues"];

function Limits({ name, close }) {
  const { data, reload } = useData(`/api/vhost-limits/${part(name)}`, 10);
  if (!data) return null;
  const values = data[0]?.value || {};
  return html`<${Opened} label=${`Limits of ${name}`}><h2><code>${name}</code></h2><${LimitsForm} key=${JSON.stringify(values)} path=${`/api/vhost-limits/${part(name)}`} names=${LIMITS} values=${values} reload=${reload} label="Set limits" /><button class="do small" onClick=${close}>Close</button><//>`;
}

export function Vhosts() {
  const [chosen, setChosen] = useState(null);
  const { data, error, reload } = useData("/api/vhosts", 10);
  const drop = (row) => confirmDanger({ title: `Delete the virtual host ${row.name}`, text: `All its queues and exchanges and ${some(row.messages, "message")} will be deleted for good; its clients are disconnected.`, name: row.name, action: "Delete", run: () => remove(`/api/vhosts/${part(row.name)}`) }).then(reload);
  const create = async (given) => {
    await put(`/api/vhosts/${part(given.name)}`, { description: given.description });
    reload();
    return `${given.name} is there`;
  };
  const columns = [
    { title: "Vhost", show: (row) => html`<a href=${`#/queues?vhost=${part(row.name)}`}><code>${row.name}</code></a>` },
    { title: "Description", show: (row) => row.description },
    { title: "Ready", num: true, show: (row) => count(row.messages_ready) },
    { title: "Unacked", num: true, show: (row) => count(row.messages_unacknowledged) },
  ];
  if (isMonitoring()) columns.push({ title: "", show: (row) => html`<span class="acts">${isAdministrator() ? html`<button class="do small" onClick=${() => setChosen(row.name)}>Limits</button>` : null}${isAdministrator() && row.name !== "/" ? html`<button class="do small danger" onClick=${() => drop(row)}>Delete…</button>` : null}</span>` });
  return html`<${Problem} error=${error} /><section class="panel" aria-label="Virtual hosts">${data ? html`<${Table} label="Virtual hosts" columns=${columns} rows=${data} keyOf=${(row) => row.name} empty="No virtual host to show." />` : html`<${Loading} />`}</section>
    ${chosen && html`<${Limits} key=${chosen} name=${chosen} close=${() => setChosen(null)} />`}
    ${isAdministrator() ? html`<details class="panel"><summary>Create a virtual host</summary><${Form} run=${create} action="Create" label="Create a virtual host"><${Field} label="Name"><input name="name" required maxlength="255" /><//><${Field} label="Description"><input name="description" /><//><//></details>` : null}`;
}

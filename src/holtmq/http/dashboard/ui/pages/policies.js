// Policies, and which queues each would touch before it is saved.
import { html, useState } from "../parts/html.js";
import { part, post, put, remove } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { Field, Form, readJson } from "../parts/form.js";
import { count, some } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { Opened } from "../parts/opened.js";
import { isAdministrator, isPolicymaker } from "../parts/session.js";
import { Loading, Problem, Table } from "../parts/table.js";
import { linkTo } from "./queues.js";

const APPLY = ["all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams"];

function Effect({ effect, vhost }) {
  if (!effect) return null;
  const columns = [
    { title: "Queue", show: (row) => html`<a href=${linkTo(vhost, row.name)}>${row.name}</a>` },
    { title: "Messages", num: true, show: (row) => count(row.messages) },
    { title: "Policy now", show: (row) => row.before || "" },
    { title: "Then", show: (row) => (row.stays_with ? html`<span class="muted">stays with ${row.stays_with}</span>` : html`<span class="ok">this one</span>`) },
  ];
  return html`<section aria-label="Effect"><p role="status">It matches ${some(effect.total, "queue")} and takes effect on <b>${count(effect.takes_effect_on)}</b>${effect.exchanges.length ? `; exchanges: ${effect.exchanges.map((name) => name || "(default)").join(", ")}` : ""}.${effect.without_effect.length ? html` <span class="warn">Without effect here: ${effect.without_effect.join(", ")}.</span>` : null}</p>
    ${effect.queues.length ? html`<${Table} label="Queues it touches" columns=${columns} rows=${effect.queues} keyOf=${(row) => row.name} />` : null}${effect.total > effect.queues.length ? html`<p class="muted">The first ${count(effect.queues.length)} are shown.</p>` : null}</section>`;
}

function Edit({ policy, operator, reload }) {
  const [effect, setEffect] = useState(null);
  const read = (given) => ({ pattern: given.pattern, definition: readJson(given.definition, "Definition"), priority: Number(given.priority || 0), "apply-to": given.apply });
  const preview = async (form) => {
    const given = Object.fromEntries(new FormData(form));
    setEffect({ vhost: given.vhost, ...(await post("/api/v1/dashboard/policy-preview", { ...read(given), vhost: given.vhost, name: given.name, operator: Boolean(given.operator) })) });
  };
  const save = async (given, form) => {
    await preview(form);
    if (given.preview) return "nothing was saved";
    await put(`/api/${given.operator ? "operator-policies" : "policies"}/${part(given.vhost)}/${part(given.name)}`, read(given));
    reload();
    return `${given.name} is saved`;
  };
  return html`<${Form} run=${save} action="Save" first=${["preview", "Show the effect"]} label="Edit a policy">
    <${Field} label="Name"><input name="name" required defaultValue=${policy?.name ?? ""} /><//><${Field} label="Vhost"><input name="vhost" required defaultValue=${policy?.vhost ?? "/"} /><//><${Field} label="Pattern of names"><input name="pattern" required defaultValue=${policy?.pattern ?? ""} placeholder="^orders\\." /><//>
    <${Field} label="Applies to"><select name="apply">${APPLY.map((one) => html`<option selected=${one === (policy?.["apply-to"] ?? "all")}>${one}</option>`)}</select><//><${Field} label="Priority"><input name="priority" type="number" defaultValue=${policy?.priority ?? 0} /><//>
    <${Field} label="Definition as JSON" wide><textarea name="definition" rows="3" required placeholder='{"max-length": 10000, "overflow": "reject-publish"}'>${policy ? JSON.stringify(policy.definition, null, 1) : ""}</textarea><//>
    ${isAdministrator() ? html`<label><input type="checkbox" name="operator" defaultChecked=${operator} /> operator policy</label>` : null}<//>
    <${Effect} effect=${effect} vhost=${effect?.vhost} />`;
}

export function Policies() {
  const [chosen, setChosen] = useState(null);
  const own = useData("/api/policies", 10);
  const operators = useData("/api/operator-policies", 10);
  const reload = () => Promise.all([own.reload(), operators.reload()]);
  const rows = [...(own.data || []).map((row) => ({ ...row, operator: false })), ...(operators.data || []).map((row) => ({ ...row, operator: true }))];
  const may = (row) => (row.operator ? isAdministrator() : isPolicymaker());
  const drop = (row) => confirmDanger({ title: `Delete the policy ${row.name}`, text: "The queues it applies to go back to their own arguments, or to the next policy that matches.", name: row.name, action: "Delete", run: () => remove(`/api/${row.operator ? "operator-policies" : "policies"}/${part(row.vhost)}/${part(row.name)}`) }).then(reload);
  const columns = [
    { title: "Policy", show: (row) => html`<b>${row.name}</b>${row.operator ? html` <span class="tag">operator</span>` : null}` },
    { title: "Vhost", show: (row) => html`<code>${row.vhost}</code>` }, { title: "Pattern", wide: true, show: (row) => html`<code>${row.pattern}</code>` }, { title: "Applies to", show: (row) => row["apply-to"] },
    { title: "Priority", num: true, show: (row) => row.priority }, { title: "Definition", wide: true, show: (row) => html`<code>${JSON.stringify(row.definition)}</code>` },
  ];
  if (isPolicymaker()) columns.push({ title: "", show: (row) => (may(row) ? html`<span class="acts"><button class="do small" onClick=${() => setChosen(row)}>Edit</button><button class="do small danger" onClick=${() => drop(row)}>Delete…</button></span>` : null) });
  return html`<${Problem} error=${own.error} /><section class="panel" aria-label="Policies">${own.data ? html`<${Table} label="Policies" columns=${columns} rows=${rows} keyOf=${(row) => `${row.operator} ${row.vhost} ${row.name}`} empty="No policies." />` : html`<${Loading} />`}</section>
    ${chosen && html`<${Opened} key=${`${chosen.operator} ${chosen.vhost} ${chosen.name}`} label=${`Edit ${chosen.name}`}><h2>${chosen.name}</h2><${Edit} key=${`${chosen.vhost} ${chosen.name}`} policy=${chosen} operator=${chosen.operator} reload=${reload} /><button class="do small" onClick=${() => setChosen(null)}>Close</button><//>`}
    ${isPolicymaker() ? html`<details class="panel"><summary>Create a policy</summary><${Edit} reload=${reload} /></details>` : null}`;
}

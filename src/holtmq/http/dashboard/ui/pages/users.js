// Users with their tags, permissions, topic permissions and limits.
import { html, useState } from "../parts/html.js";
import { part, put, remove } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { Field, Form } from "../parts/form.js";
import { count } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { Opened } from "../parts/opened.js";
import { route } from "../parts/route.js";
import { session } from "../parts/session.js";
import { Loading, Problem, Search, Table } from "../parts/table.js";

const TAGS = ["administrator", "monitoring", "policymaker", "management"];
const SHOWN = 500;
const LIMITS = ["max-connections", "max-channels"];
export const tagsOf = (row) => (Array.isArray(row.tags) ? row.tags : String(row.tags || "").split(",")).filter(Boolean);

// Password left empty: an existing user keeps it.
function EditUser({ user, reload }) {
  const save = async (given, form) => {
    const tags = [...TAGS.filter((tag) => given[`tag-${tag}`]), ...given.others.split(",").map((tag) => tag.trim()).filter(Boolean)];
    const body = { tags };
    if (given.password) body.password = given.password;
    else if (user) Object.assign(body, { password_hash: user.password_hash, hashing_algorithm: user.hashing_algorithm });
    const name = user ? user.name : given.name;
    await put(`/api/users/${part(name)}`, body);
    form.elements.password.value = "";
    reload();
    return `${name} is saved${user ? "" : "; it has no permission in any virtual host yet"}`;
  };
  const has = user ? tagsOf(user) : [];
  return html`<${Form} run=${save} action=${user ? "Save" : "Create"} label=${user ? `Edit ${user.name}` : "Create a user"}>
    ${user ? null : html`<${Field} label="Name"><input name="name" required maxlength="255" autocomplete="off" /><//>`}
    <${Field} label=${user ? "New password (empty: as before)" : "Password"}><input name="password" type="password" autocomplete="new-password" required=${!user} /><//>
    <fieldset><legend>Tags</legend>${TAGS.map((tag) => html`<label><input type="checkbox" name=${`tag-${tag}`} defaultChecked=${has.includes(tag)} /> ${tag}</label>`)}</fieldset>
    <${Field} label="Other tags"><input name="others" defaultValue=${has.filter((tag) => !TAGS.includes(tag)).join(", ")} /><//><//>`;
}

function Permissions({ user, reload, rows }) {
  const save = async (given) => {
    await put(`/api/permissions/${part(given.vhost)}/${part(user.name)}`, { configure: given.configure, write: given.write, read: given.read });
    reload();
    return "set";
  };
  const clear = (row) => remove(`/api/permissions/${part(row.vhost)}/${part(user.name)}`).then(reload);
  const pattern = (value) => (value ? html`<code>${value}</code>` : html`<span class="muted">nothing</span>`);
  const columns = [
    { title: "Vhost", show: (row) => html`<code>${row.vhost}</code>` }, { title: "Configure", show: (row) => pattern(row.configure) }, { title: "Write", show: (row) => pattern(row.write) }, { title: "Read", show: (row) => pattern(row.read) },
    { title: "", show: (row) => html`<button class="do small danger" onClick=${() => clear(row)}>Clear</button>` },
  ];
  return html`<h2>Permissions</h2><${Table} label="Permissions" columns=${columns} rows=${rows} empty="It may do nothing in any virtual host." />
    <${Form} run=${save} action="Set" label="Set permissions"><${Field} label="Vhost"><input name="vhost" defaultValue="/" required /><//>${["configure", "write", "read"].map((name) => html`<${Field} label=${`${name} (pattern)`}><input name=${name} defaultValue=".*" /><//>`)}<//>`;
}

function TopicPermissions({ user, reload, rows }) {
  const save = async (given) => {
    await put(`/api/topic-permissions/${part(given.vhost)}/${part(user.name)}`, { exchange: given.exchange, write: given.write, read: given.read });
    reload();
    return "set";
  };
  const clear = (row) => remove(`/api/topic-permissions/${part(row.vhost)}/${part(user.name)}/${part(row.exchange)}`).then(reload);
  const columns = [
    { title: "Vhost", show: (row) => html`<code>${row.vhost}</code>` }, { title: "Exchange", show: (row) => html`<code>${row.exchange}</code>` }, { title: "Write keys", show: (row) => html`<code>${row.write}</code>` }, { title: "Read keys", show: (row) => html`<code>${row.read}</code>` },
    { title: "", show: (row) => html`<button class="do small danger" onClick=${() => clear(row)}>Clear</button>` },
  ];
  return html`<h2>Topic permissions</h2><${Table} label="Topic permissions" columns=${columns} rows=${rows} empty="Every routing key, on the exchanges it may use." />
    <${Form} run=${save} action="Set" label="Set topic permissions"><${Field} label="Vhost"><input name="vhost" defaultValue="/" required /><//><${Field} label="Topic exchange"><input name="exchange" defaultValue="amq.topic" required /><//><${Field} label="write (pattern of keys)"><input name="write" defaultValue=".*" /><//><${Field} label="read (pattern of keys)"><input name="read" defaultValue=".*" /><//><//>`;
}

// A limit that is empty is removed.
export function LimitsForm({ path, names, values, reload, label }) {
  const save = async (given) => {
    for (const name of names) {
      if (given[name] === "" && values[name] !== undefined) await remove(`${path}/${name}`);
      else if (given[name] !== "" && Number(given[name]) !== values[name]) await put(`${path}/${name}`, { value: Number(given[name]) });
    }
    reload();
    return "set";
  };
  return html`<h2>Limits</h2><${Form} run=${save} action="Set" label=${label}>${names.map((name) => html`<${Field} label=${`${name} (empty: no limit)`}><input name=${name} type="number" min="-1" defaultValue=${values[name] ?? ""} /><//>`)}<//>`;
}

function One({ user, permissions, topics, reload, close }) {
  const mine = (rows) => (rows || []).filter((row) => row.user === user.name);
  return html`<${Opened} label=${`User ${user.name}`}><h2>${user.name}</h2><${EditUser} key=${user.name} user=${user} reload=${reload} />
    <${Permissions} user=${user} rows=${mine(permissions)} reload=${reload} /><${TopicPermissions} user=${user} rows=${mine(topics)} reload=${reload} />
    <${LimitsForm} path=${`/api/user-limits/${part(user.name)}`} names=${LIMITS} values=${user.limits || {}} reload=${reload} label="Set limits" />
    <button class="do small" onClick=${close}>Close</button><//>`;
}

export function Users() {
  const { text = "" } = route.value.query;
  const [chosen, setChosen] = useState(null);
  const users = useData("/api/users", 10);
  const permissions = useData("/api/permissions", 10);
  const topics = useData("/api/topic-permissions", 10);
  const reload = () => Promise.all([users.reload(), permissions.reload(), topics.reload()]);
  const drop = (row) => confirmDanger({ title: `Delete ${row.name}`, text: "The user can no longer log in. Its queues and messages stay.", name: row.name, action: "Delete", run: () => remove(`/api/users/${part(row.name)}`) }).then((done) => { if (done) setChosen(null); return reload(); });
  const user = users.data?.find((row) => row.name === chosen);
  const may = (row) => (permissions.data || []).filter((one) => one.user === row.name);
  const columns = [
    { title: "User", show: (row) => html`<button class="link" onClick=${() => setChosen(row.name)}>${row.name}</button>` },
    { title: "Tags", show: (row) => tagsOf(row).map((tag) => html`<span class="tag">${tag}</span> `) },
    { title: "Vhosts", show: (row) => (may(row).length ? may(row).map((one) => html`<code>${one.vhost}</code> `) : html`<span class="warn">none</span>`) },
    { title: "Password", show: (row) => (row.password_hash ? "set" : html`<span class="muted">none</span>`) },
    { title: "", show: (row) => (row.name === session.value.user ? null : html`<button class="do small danger" aria-label=${`Delete… ${row.name}`} onClick=${() => drop(row)}>Delete…</button>`) },
  ];
  const found = (users.data || []).filter((row) => row.name.toLowerCase().includes(text.toLowerCase()));
  const rows = found.slice(0, SHOWN);
  return html`<${Problem} error=${users.error} />
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}><${Search} label="User contains" /></form>
    <section class="panel" aria-label="Users">${users.data ? html`<${Table} label="Users" columns=${columns} rows=${rows} keyOf=${(row) => row.name} empty="No user matches." />${found.length > SHOWN ? html`<p class="muted">The first ${count(SHOWN)} of ${count(found.length)} are shown.</p>` : null}` : html`<${Loading} />`}</section>
    ${user && html`<${One} key=${user.name} user=${user} permissions=${permissions.data} topics=${topics.data} reload=${reload} close=${() => setChosen(null)} />`}
    <details class="panel"><summary>Create a user</summary><${EditUser} reload=${reload} /></details>`;
}

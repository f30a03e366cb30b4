// Exchanges, what is bound to them, what leads nowhere, and where a message would go.
import { html, useState } from "../parts/html.js";
import { part, post, put, query, remove } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { Field, Form, readJson } from "../parts/form.js";
import { count, some } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { go, refine, route } from "../parts/route.js";
import { couldDo, isMonitoring } from "../parts/session.js";
import { cut, Loading, Pager, Problem, Search, Table } from "../parts/table.js";

const LIMIT = 50;
const GRAPH_MOST = 60;
const ROW = 40;
const TYPES = ["direct", "fanout", "topic", "headers", "x-delayed-message", "x-consistent-hash", "x-random", "x-modulus-hash"];

// Sources on the left, the exchange in the middle, destinations on the right, a line for each binding.
function Graph({ vhost, exchange, bindings, sources }) {
  const ends = new Map();
  for (const one of bindings) {
    const key = `${one.destination_type} ${one.destination}`;
    if (!ends.has(key)) ends.set(key, { ...one, keys: [] });
    ends.get(key).keys.push(one.routing_key || (Object.keys(one.arguments).length ? JSON.stringify(one.arguments) : "(empty)"));
  }
  const right = [...ends.values()].slice(0, GRAPH_MOST);
  const left = [...new Set(sources.map((one) => one.source))].slice(0, GRAPH_MOST);
  const height = Math.max(right.length, left.length, 1) * ROW + 12;
  const middle = height / 2;
  const box = (x, y, width, text, href, lost, note) => html`<a href=${href}><rect class=${lost ? "lost" : ""} x=${x} y=${y - 14} width=${width} height="28" rx="5" /><text x=${x + 9} y=${y + 4}>${cut(text, Math.floor(width / 7.6))}<title>${text}${note ? ` (${note})` : ""}</title></text></a>`;
  const at = (index, of) => middle + (index - (of - 1) / 2) * ROW;
  const here = left.length ? 230 : 8;
  return html`<div class="scroll"><svg class="graph" viewBox=${`0 0 ${here + 632} ${height}`} role="group" aria-label=${`${exchange} leads to ${some(ends.size, "destination")}: ${right.map((end) => end.destination).join(", ")}`}>
    ${left.map((source, index) => html`<path d=${`M178 ${at(index, left.length)} C 204 ${at(index, left.length)}, 204 ${middle}, ${here} ${middle}`} />${box(8, at(index, left.length), 170, source || "(default)", `#/exchanges/${part(vhost)}/${part(source || "amq.default")}`)}`)}
    ${right.map((end, index) => {
      const y = at(index, right.length);
      const href = end.destination_type === "queue" ? `#/queue/${part(vhost)}/${part(end.destination)}` : `#/exchanges/${part(vhost)}/${part(end.destination)}`;
      return html`<path class=${end.is_unread ? "lost" : ""} d=${`M${here + 180} ${middle} C ${here + 250} ${middle}, ${here + 200} ${y}, ${here + 270} ${y} L ${here + 400} ${y}`} /><text class="key" x=${here + 274} y=${y - 5}>${cut(end.keys.join(", "), 17)}<title>${end.keys.join(", ")}</title></text>${box(here + 400, y, 224, end.destination, href, end.is_unread, end.is_unread ? "no consumer" : "")}`;
    })}
    ${box(here, middle, 180, exchange, "#" + route.value.path, !bindings.length)}</svg></div>`;
}

function RouteTest({ vhost, exchange }) {
  const [found, setFound] = useState(null);
  const run = async (given) => {
    setFound(await post("/api/v1/dashboard/route-test", { vhost, exchange, routing_key: given.key, headers: readJson(given.headers, "Headers") }));
    return "nothing was sent";
  };
  return html`<section class="panel" aria-label="Route test"><h2>Route test</h2><${Form} run=${run} action="Where would it go?" label="Route test"><${Field} label="Routing key"><input name="key" /><//><${Field} label="Headers (JSON)"><input name="headers" /><//><//>
    ${found && html`<p role="status">${found.queues.length ? html`To ${found.queues.map((name) => html`<a class="tag" href=${`#/queue/${part(vhost)}/${part(name)}`}>${name}</a> `)}` : html`<span class="bad">To no queue: it would be dropped, or returned if mandatory.</span>`}${found.delayed_by.length ? html` It waits first in ${found.delayed_by.map((name) => html`<code>${name}</code> `)}if it has <code>x-delay</code>.` : null}</p>`}</section>`;
}

function Bind({ vhost, name, reload }) {
  const bind = async (given) => {
    await post(`/api/bindings/${part(vhost)}/e/${part(name)}/${given.kind}/${part(given.destination)}`, { routing_key: given.key, arguments: readJson(given.arguments, "Arguments") });
    reload();
    return `bound to ${given.destination}`;
  };
  return html`<details class="panel"><summary>Bind</summary><${Form} run=${bind} action="Bind" label="Bind">
    <${Field} label="To a"><select name="kind"><option value="q">queue</option><option value="e">exchange</option></select><//><${Field} label="Named"><input name="destination" required /><//><${Field} label="Routing key"><input name="key" /><//>
    <${Field} label="Arguments as JSON" wide><input name="arguments" placeholder='{"x-match": "any"}' /><//><//></details>`;
}

function One({ vhost, name }) {
  const { data, error, reload } = useData(`/api/v1/dashboard/exchanges/${part(vhost)}/${part(name)}`, 5);
  const shown = name === "amq.default" ? "(default)" : name;
  const heading = html`<h1><a href="#/exchanges">Exchanges</a> / ${shown} ${data && html`<span class="tag">${data.row.type}</span>`} <span class="tag">vhost ${vhost}</span></h1><${Problem} error=${error} />`;
  if (!data) return html`${heading}${error ? null : html`<${Loading} />`}`;
  const { row } = data;
  const own = row.name && !row.name.startsWith("amq.");
  const may = (action) => data.can.includes(action);
  const unbind = (one) => confirmDanger({ title: "Remove the binding", text: `Messages with ${one.routing_key || "an empty routing key"} no longer reach ${one.destination}.`, action: "Remove", run: () => remove(`/api/bindings/${part(vhost)}/e/${part(name)}/${one.destination_type[0]}/${part(one.destination)}/${part(one.properties_key)}`) }).then(reload);
  const drop = () => confirmDanger({ title: `Delete ${name}`, text: `The exchange and its ${some(data.total, "binding")} will be deleted; publishers to it get an error.`, name, action: "Delete", run: () => remove(`/api/exchanges/${part(vhost)}/${part(name)}`) }).then((done) => done && go("/exchanges"));
  const columns = [
    { title: "To", show: (one) => html`<a href=${one.destination_type === "queue" ? `#/queue/${part(vhost)}/${part(one.destination)}` : `#/exchanges/${part(vhost)}/${part(one.destination)}`}>${one.destination}</a> <span class="tag">${one.destination_type}</span>${one.is_unread ? html` <span class="tag warn">${one.destination_type === "queue" ? "no consumer" : "unbound"}</span>` : null}` },
    { title: "Routing key", show: (one) => html`<code>${one.routing_key}</code>` },
    { title: "Arguments", show: (one) => (Object.keys(one.arguments).length ? html`<code>${JSON.stringify(one.arguments)}</code>` : "") },
    { title: "Ready", num: true, show: (one) => (one.ready === null ? "" : count(one.ready)) },
  ];
  if (may("read") && couldDo("write")) columns.push({ title: "", show: (one) => html`<button class="do small danger" onClick=${() => unbind(one)}>Remove…</button>` });
  return html`${heading}
    ${isMonitoring() ? html`<${RouteTest} vhost=${vhost} exchange=${row.name} />` : null}
    <section class="panel" aria-label="Bindings"><h2>Bindings</h2>
      ${!row.name ? html`<p class="muted">The default exchange leads to every queue, by the queue's name.</p>` : data.bindings.length ? html`<${Graph} vhost=${vhost} exchange=${shown} bindings=${data.bindings} sources=${data.sources} /><${Table} label="Bindings" columns=${columns} rows=${data.bindings} />` : html`<p class="warn">Nothing is bound: what is published here goes ${row.alternate ? html`to the alternate exchange <code>${row.alternate}</code>` : "nowhere"}.</p>`}
      ${data.total > data.bindings.length ? html`<p class="muted">The first ${count(data.bindings.length)} of ${count(data.total)} bindings are shown.</p>` : null}</section>
    ${row.name && may("read") && couldDo("write") ? html`<${Bind} vhost=${vhost} name=${name} reload=${reload} />` : null}
    ${Object.keys(data.arguments).length ? html`<section class="panel"><h2>Arguments</h2><code>${JSON.stringify(data.arguments)}</code></section>` : null}
    ${own && may("configure") ? html`<button class="do danger" onClick=${drop}>Delete…</button>` : null}`;
}

function Create({ reload }) {
  const create = async (given) => {
    await put(`/api/exchanges/${part(given.vhost || "/")}/${part(given.name)}`, { type: given.type, durable: Boolean(given.durable), auto_delete: Boolean(given.auto_delete), internal: Boolean(given.internal), arguments: readJson(given.arguments, "Arguments") });
    reload();
    return `${given.name} is there`;
  };
  return html`<details class="panel"><summary>Create an exchange</summary><${Form} run=${create} action="Create" label="Create an exchange">
    <${Field} label="Name"><input name="name" required maxlength="255" /><//><${Field} label="Vhost"><input name="vhost" defaultValue="/" /><//><${Field} label="Type"><select name="type">${TYPES.map((type) => html`<option>${type}</option>`)}</select><//>
    <label><input type="checkbox" name="durable" defaultChecked /> durable</label><label><input type="checkbox" name="auto_delete" /> delete when unused</label><label><input type="checkbox" name="internal" /> internal</label>
    <${Field} label="Arguments as JSON" wide><input name="arguments" placeholder='{"alternate-exchange": "unrouted"}' /><//><//></details>`;
}

function List() {
  const { text = "", unbound = "", sort = "name", descending = "", offset = "0" } = route.value.query;
  const skip = Number(offset) || 0;
  const { data, error, reload } = useData(`/api/v1/dashboard/exchanges${query({ text, unbound, sort, descending, offset: skip, limit: LIMIT })}`, 5);
  const columns = [
    { title: "Exchange", sort: "name", show: (row) => html`<a href=${`#/exchanges/${part(row.vhost)}/${part(row.name || "amq.default")}`}>${row.name || "(default)"}</a> ${row.vhost === "/" ? null : html`<span class="tag">${row.vhost}</span>`}` },
    { title: "Type", sort: "type", show: (row) => html`<span class="tag">${row.type}</span>` },
    { title: "Bindings", sort: "bindings", num: true, show: (row) => (row.bindings === null ? "all queues" : count(row.bindings)) },
    { title: "Leads to", sort: "is_unbound", show: (row) => (row.is_unbound ? html`<span class=${row.name.startsWith("amq.") ? "muted" : "warn"}>unbound</span>` : row.is_unread ? html`<span class="warn">unread queues only</span>` : "") },
    { title: "Durable", show: (row) => (row.durable ? "yes" : "no") },
    { title: "Policy", sort: "policy", show: (row) => row.policy || "" },
  ];
  return html`<h1>Exchanges</h1><${Problem} error=${error} />
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}><${Search} label="Name contains" /><label><input type="checkbox" checked=${unbound === "true"} onChange=${(event) => refine({ unbound: event.target.checked ? "true" : "", offset: "" })} /> only unbound</label></form>
    <section class="panel">${data ? html`<${Table} label="Exchanges" order="name" columns=${columns} rows=${data.rows} keyOf=${(row) => `${row.vhost} ${row.name}`} empty="No exchange matches." /><${Pager} total=${data.total} offset=${skip} limit=${LIMIT} />` : html`<${Loading} />`}</section>
    ${couldDo("configure") ? html`<${Create} reload=${reload} />` : null}`;
}

export function Exchanges() {
  const [, vhost, name] = route.value.segments;
  return vhost ? html`<${One} vhost=${vhost} name=${name || "amq.default"} />` : html`<${List} />`;
}

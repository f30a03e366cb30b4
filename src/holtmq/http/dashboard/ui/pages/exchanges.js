// Exchanges, what is bound to them, and where a message would go.
import { html, useState } from "../parts/html.js";
import { part, post } from "../parts/api.js";
import { count } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { refine, route } from "../parts/route.js";
import { Problem, Table } from "../parts/table.js";

const GRAPH_MOST = 60;

// Exchange on the left, destinations on the right, a line for each binding.
function Graph({ exchange, bindings }) {
  const ends = [...new Set(bindings.map((one) => `${one.destination_type} ${one.destination}`))].slice(0, GRAPH_MOST);
  const height = Math.max(60, ends.length * 34 + 20);
  const middle = height / 2;
  return html`<svg class="graph" viewBox=${`0 0 720 ${height}`} role="img" aria-label=${`${exchange} leads to ${ends.length} destinations`}>
    <rect x="8" y=${middle - 15} width="200" height="30" rx="5" /><text x="18" y=${middle + 4}>${exchange.slice(0, 26)}</text>
    ${ends.map((end, index) => {
      const y = 10 + index * 34;
      const keys = bindings.filter((one) => `${one.destination_type} ${one.destination}` === end).map((one) => one.routing_key || "(empty)");
      return html`<path d=${`M208 ${middle} C 320 ${middle}, 380 ${y + 15}, 480 ${y + 15}`} /><rect x="480" y=${y} width="232" height="28" rx="5" /><text x="488" y=${y + 18}>${end.split(" ").slice(1).join(" ").slice(0, 28)}</text><text x="330" y=${y + 12}>${keys.join(", ").slice(0, 20)}</text>`;
    })}</svg>`;
}

function RouteTest({ vhost, exchange }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      const headers = form.get("headers").trim() ? JSON.parse(form.get("headers")) : {};
      setFound(await post("/api/v1/dashboard/route-test", { vhost, exchange, routing_key: form.get("key"), headers }));
      setError(null);
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<form class="bar" onSubmit=${submit}><label>Routing key <input name="key" /></label><label>Headers (JSON) <input name="headers" /></label><button class="do">Where would it go?</button></form>
    <${Problem} error=${error} />${found && html`<p role="status">${found.queues.length ? html`To ${found.queues.map((name) => html`<a class="tag" href=${`#/queue/${part(vhost)}/${part(name)}`}>${name}</a> `)}` : html`<span class="bad">To no queue: it would be dropped, or returned if mandatory.</span>`}</p>`}`;
}

function One({ vhost, name }) {
  const { data, error } = useData(`/api/exchanges/${part(vhost)}/${part(name || "amq.default")}/bindings/source`, 5);
  return html`<h1><a href="#/exchanges">Exchanges</a> / ${name || "(default)"}</h1><${Problem} error=${error} />
    <section class="panel"><h2>Route test</h2><${RouteTest} vhost=${vhost} exchange=${name} /></section>
    <section class="panel"><h2>Bindings</h2>${data && (data.length ? html`<${Graph} exchange=${name || "(default)"} bindings=${data} />${data.length > GRAPH_MOST ? html`<p class="muted">The first ${GRAPH_MOST} destinations of ${count(data.length)} bindings are drawn.</p>` : null}` : html`<p class="warn">Nothing is bound: what is published here goes nowhere.</p>`)}</section>`;
}

export function Exchanges() {
  const [, vhost, name] = route.value.segments;
  const { text = "" } = route.value.query;
  const { data, error } = useData("/api/exchanges", 10);
  if (vhost) return html`<${One} vhost=${vhost} name=${name || ""} />`;
  const rows = (data || []).filter((row) => row.name.includes(text));
  const columns = [
    { title: "Exchange", show: (row) => html`<a href=${`#/exchanges/${part(row.vhost)}/${part(row.name)}`}>${row.name || "(default)"}</a> ${row.vhost === "/" ? null : html`<span class="tag">${row.vhost}</span>`}` },
    { title: "Type", show: (row) => html`<span class="tag">${row.type}</span>` },
    { title: "Durable", show: (row) => (row.durable ? "yes" : "no") },
    { title: "Policy", show: (row) => row.policy || "" },
  ];
  return html`<h1>Exchanges</h1><${Problem} error=${error} />
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}><input type="search" aria-label="Name contains" placeholder="Name contains ( / )" value=${text} onInput=${(event) => refine({ text: event.target.value })} /></form>
    <section class="panel">${data ? html`<${Table} label="Exchanges" columns=${columns} rows=${rows.slice(0, 500)} keyOf=${(row) => row.vhost + row.name} empty="No exchange matches." />` : html`<p class="muted">Loading…</p>`}</section>`;
}

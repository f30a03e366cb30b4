// A message of a work queue: shown, published, and edited to be sent again.
import { html, useState } from "./html.js";
import { part, post } from "./api.js";
import { Body } from "./body.js";
import { Field, readJson } from "./form.js";
import { bytes, count, moment } from "./format.js";

const TEXTS = ["content_type", "content_encoding", "message_id", "correlation_id", "reply_to", "expiration", "type", "user_id", "app_id"];
const title = (name) => name.replace("_", " ");

// Every property as a field of its own; ``message`` fills them in.
export function PublishFields({ message }) {
  const has = message?.properties || {};
  return html`<${Field} label="Body" wide><textarea name="payload" rows="5" aria-label="Body">${message?.payload ?? ""}</textarea><//>
    <${Field} label="Body is"><select name="payload_encoding"><option value="string">text</option><option value="base64" selected=${message?.payload_encoding === "base64"}>base64</option></select><//>
    <label><input type="checkbox" name="persistent" defaultChecked=${message ? has.delivery_mode === 2 : true} /> persistent</label>
    <${Field} label="Headers as JSON" wide><textarea name="headers" rows="2" aria-label="Headers">${has.headers ? JSON.stringify(has.headers) : ""}</textarea><//>
    <details class="wide"><summary>Properties</summary><div class="fields">
      <${Field} label="priority"><input name="priority" type="number" min="0" max="255" defaultValue=${has.priority ?? ""} /><//>
      <${Field} label="timestamp (s)"><input name="timestamp" type="number" min="0" defaultValue=${has.timestamp ?? ""} /><//>
      ${TEXTS.map((name) => html`<${Field} label=${title(name)}><input name=${name} defaultValue=${has[name] ?? ""} /><//>`)}</div></details>`;
}

// A field for text has lines that end in \n: a body that was not edited is sent as it was.
const unedited = (given, message) => message && given.payload_encoding === message.payload_encoding && given.payload.replace(/\r\n?/g, "\n") === message.payload.replace(/\r\n?/g, "\n");

// ``message``: the one that is sent again.
export async function publish(vhost, exchange, routingKey, given, message) {
  const properties = { headers: readJson(given.headers, "Headers") };
  if (!Object.keys(properties.headers).length) delete properties.headers;
  for (const name of TEXTS) if (given[name]) properties[name] = given[name];
  for (const name of ["priority", "timestamp"]) if (given[name]) properties[name] = Number(given[name]);
  properties.delivery_mode = given.persistent ? 2 : 1;
  const answer = await post(`/api/exchanges/${part(vhost)}/${part(exchange || "amq.default")}/publish`, { properties, routing_key: routingKey, payload: unedited(given, message) ? message.payload : given.payload, payload_encoding: given.payload_encoding });
  return answer.routed;
}

// Where it has been: each death, the newest first, as x-death has them.
export function Deaths({ headers }) {
  const deaths = headers?.["x-death"];
  if (!Array.isArray(deaths) || !deaths.length) return null;
  return html`<h3>Where it has been</h3><ol class="deaths">${deaths.map((one) => html`<li><b>${one.reason}</b> in <code>${one.queue}</code> ${count(one.count)} ${one.count === 1 ? "time" : "times"}, first ${one.time ? moment(one.time * 1000) : "at an unknown time"}; published to <code>${one.exchange || "(default)"}</code> with <code>${(one["routing-keys"] || []).join(", ")}</code></li>`)}</ol>`;
}

export function Properties({ values }) {
  const rows = Object.entries(values || {}).filter(([name]) => name !== "headers");
  const headers = Object.entries(values?.headers || {}).filter(([name]) => name !== "x-death");
  if (!rows.length && !headers.length) return html`<p class="muted">No properties.</p>`;
  return html`<dl class="pairs">${[...rows, ...headers.map(([name, value]) => [`header ${name}`, value])].map(([name, value]) => html`<div><dt>${title(name)}</dt><dd><code>${typeof value === "string" ? value : JSON.stringify(value)}</code></dd></div>`)}</dl>`;
}

export function Message({ row, children }) {
  const [open, setOpen] = useState(false);
  return html`<details class="panel message" onToggle=${(event) => setOpen(event.target.open)}><summary><code>${row.exchange || "(default)"}</code> / <code>${row.routing_key}</code> · ${bytes(row.payload_bytes)} · arrived ${moment(row.arrived_at)}${row.redelivered ? html` <span class="tag">redelivered</span>` : null}${row.deliveries ? html` <span class="tag">${count(row.deliveries)} deliveries</span>` : null}${row.properties.message_id ? html` · id <code>${row.properties.message_id}</code>` : null}</summary>
    ${open && html`<h3>Properties</h3><${Properties} values=${row.properties} /><${Deaths} headers=${row.properties.headers} /><h3>Body</h3><${Body} payload=${row.payload} encoding=${row.payload_encoding} cut=${row.truncated} />${children}`}</details>`;
}

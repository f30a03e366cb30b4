// Searching messages of both kinds of queue, wherever they are; the broker searches in bounded steps.
import { html, useEffect, useRef, useState } from "../parts/html.js";
import { get, part, post, remove, request } from "../parts/api.js";
import { Body } from "../parts/body.js";
import { confirmDanger } from "../parts/confirm.js";
import { Field, Form, readJson } from "../parts/form.js";
import { bytes, count, moment, some } from "../parts/format.js";
import { Deaths, Properties, PublishFields, publish } from "../parts/message.js";
import { refine, route } from "../parts/route.js";
import { couldDo } from "../parts/session.js";
import { Problem } from "../parts/table.js";
import { linkTo } from "./queues.js";

const STATES = ["ready", "unacked", "delayed", "retained", "dead"];
const STEPS = 40; // requests that one search makes before it asks whether to go on

function Traces({ row }) {
  const [events, setEvents] = useState(null);
  useEffect(() => {
    get(`/api/v1/traces/${part(row.partition_id)}/${part(row.transaction_id)}`).then((answer) => setEvents(answer.traces || [])).catch(() => setEvents([]));
  }, [row.id]);
  if (!events?.length) return null;
  return html`<h3>Traces</h3><ol class="deaths">${events.map((one) => html`<li><b>${one.event_type || one.eventType || "event"}</b> ${one.consumer_group || one.consumerGroup || ""} ${moment(Date.parse(one.created_at || one.createdAt))} <code>${JSON.stringify(one.data)}</code></li>`)}</ol>`;
}

function Resend({ row, done }) {
  const work = !row.partition_id;
  const run = async (given) => {
    let text;
    if (work) text = (await publish(row.vhost || "/", given.exchange, given.key, given, row)) ? "sent" : "not routed: no queue is bound for this key";
    else {
      const [answer] = await post("/api/v1/push", { items: [{ queue: given.queue, partition: given.partition, payload: readJson(given.payload, "Body", null) }] });
      text = answer.status === "duplicate" ? "a message with this id is there already" : "sent";
    }
    return text;
  };
  const shown = work ? row : { ...row, payload: JSON.stringify(row.payload, null, 1) };
  return html`<details class="panel"><summary>Edit and send again</summary><p class="muted">A new message is sent; this one stays where it is.</p><${Form} run=${run} action="Send" label="Send again">
    ${work ? html`<${Field} label="Exchange"><input name="exchange" defaultValue=${row.exchange} placeholder="(default)" /><//><${Field} label="Routing key"><input name="key" defaultValue=${row.routing_key} /><//><${PublishFields} message=${shown} />`
      : html`<${Field} label="Queue"><input name="queue" defaultValue=${row.queue} required /><//><${Field} label="Partition"><input name="partition" defaultValue=${row.partition} required /><//><${Field} label="Body" wide><textarea name="payload" rows="6">${shown.payload}</textarea><//>`}<//></details>`;
}

function Delayed({ row, change }) {
  const [error, setError] = useState(null);
  const deliver = async () => {
    try {
      const answer = await post(`/api/v1/delayed/${part(row.id)}/deliver`);
      change(`delivered to ${answer.queues.length ? answer.queues.join(", ") : "no queue"}`);
    } catch (problem) {
      setError(problem);
    }
  };
  const cancel = () => confirmDanger({ title: "Cancel the delayed message", text: "1 message will be deleted for good; it is never delivered.", action: "Cancel it", run: () => remove(`/api/v1/delayed/${part(row.id)}`) }).then((done) => done && change("cancelled"));
  return html`<div class="bar">${couldDo("write") ? html`<button class="do" onClick=${deliver}>Deliver now</button>` : null}${couldDo("configure") ? html`<button class="do danger" onClick=${cancel}>Cancel it…</button>` : null}<${Problem} error=${error} /></div>`;
}

function Where({ row }) {
  const facts = [
    ["Queue", row.queue && html`<a href=${linkTo(row.vhost || "/", row.queue)}>${row.queue}</a>`], ["Waits in exchange", row.delayed_by], ["Due", row.due_at && moment(row.due_at)], ["Published to", row.routing_key === undefined ? null : html`<code>${row.exchange || "(default)"}</code> with <code>${row.routing_key}</code>`],
    ["Partition", row.partition], ["Offset", row.offset === undefined ? null : count(row.offset)], ["Transaction id", row.transaction_id], ["Trace id", row.trace_id], ["Producer", row.producer],
    ["Group that gave it up", row.group], ["Error", row.error], ["Failed", row.failed_at && moment(row.failed_at)], ["Retries", row.retries], ["Deliveries before", row.deliveries || null],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  return html`<dl class="pairs">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

const idOf = (row) => row.transaction_id || row.properties?.message_id || row.id;

function Result({ row }) {
  const [open, setOpen] = useState(false);
  const [gone, setGone] = useState("");
  return html`<details class="panel message" onToggle=${(event) => setOpen(event.target.open)}><summary><span class=${`tag ${row.state === "dead" ? "warn" : ""}`}>${row.state}</span> <b>${row.queue || row.delayed_by || ""}</b>${row.partition ? html` / <code>${row.partition}</code>` : null} · ${idOf(row) ? html`<code>${idOf(row)}</code>` : html`<span class="muted">no id</span>`} · ${bytes(row.payload_bytes)} · ${moment(row.arrived_at)}${row.error ? html` · <span class="warn">${row.error}</span>` : null}${gone && html` <span class="tag ok" role="status">${gone}</span>`}</summary>
    ${open && html`<${Where} row=${row} /><h3>Properties</h3><${Properties} values=${row.properties} /><${Deaths} headers=${row.properties?.headers} />${row.partition_id ? html`<${Traces} row=${row} />` : null}
      <h3>Body</h3><${Body} payload=${row.payload} encoding=${row.payload_encoding === "json" ? "string" : row.payload_encoding} cut=${row.truncated} />
      ${row.state === "delayed" && !gone ? html`<${Delayed} row=${row} change=${setGone} />` : null}
      ${couldDo("write") && !row.truncated ? html`<${Resend} row=${row} />` : null}`}</details>`;
}

const moments = (text) => (text ? new Date(text).getTime() : undefined);

export function Messages() {
  const asked = route.value.query;
  const [found, setFound] = useState(null);
  const running = useRef(0);
  // One search is many small requests: the page shows what was found so far, and can stop.
  const run = async (search, from) => {
    const mine = (running.current += 1);
    const rows = from ? from.rows : [];
    let state = { rows, seen: from?.seen || 0, unreadable: from?.unreadable || 0, cursor: from?.cursor || "", busy: true, error: null, search };
    setFound(state);
    try {
      for (let step = 0; step < STEPS; step += 1) {
        const answer = await request("POST", "/api/v1/dashboard/messages", { ...search, cursor: state.cursor }, {}, true);
        if (mine !== running.current) return;
        state = { ...state, rows: [...state.rows, ...answer.messages], seen: state.seen + answer.seen, unreadable: state.unreadable + answer.unreadable, cursor: answer.cursor };
        setFound(state);
        if (!answer.cursor || state.rows.length - rows.length >= 50) break;
      }
      setFound({ ...state, busy: false });
    } catch (error) {
      setFound({ ...state, busy: false, error });
    }
  };
  const stop = () => {
    running.current += 1;
    setFound({ ...found, busy: false });
  };
  const submit = async (given) => {
    const states = STATES.filter((state) => given[state]);
    refine({ queue: given.queue, id: given.id, body: given.text, filter: given.filter, since: given.since, until: given.until, states: states.length === STATES.length ? "" : states.join(",") });
    await run({ states, queue: given.queue, id: given.id, text: given.text, filter: given.filter.split("\n").map((line) => line.trim()).filter(Boolean), since: moments(given.since), until: moments(given.until) });
    return " ";
  };
  const chosen = asked.states ? asked.states.split(",") : STATES;
  return html`<h1>Messages</h1>
    <section class="panel" aria-label="Search"><${Form} run=${submit} action="Search" label="Search messages">
      <${Field} label="Queue (exact name)"><input type="search" name="queue" defaultValue=${asked.queue || ""} placeholder="all ( / )" /><//><${Field} label="Id"><input name="id" defaultValue=${asked.id || ""} /><//><${Field} label="Text in the body"><input name="text" defaultValue=${asked.body || ""} /><//>
      <${Field} label="Arrived after"><input type="datetime-local" step="1" name="since" defaultValue=${asked.since || ""} /><//><${Field} label="and before"><input type="datetime-local" step="1" name="until" defaultValue=${asked.until || ""} /><//>
      <${Field} label="Filters, one in a line: header.NAME, property.NAME, json.PATH, age, size, deliveries" wide><textarea name="filter" rows="2" placeholder=${"header.tenant=acme\njson.order.total>100"}>${asked.filter || ""}</textarea><//>
      <fieldset><legend>Where</legend>${STATES.map((state) => html`<label><input type="checkbox" name=${state} defaultChecked=${chosen.includes(state)} /> ${state}</label>`)}</fieldset><//></section>
    ${found && html`<h2 class="hidden">Found</h2><div class="bar" role="status">${found.busy ? html`<progress aria-label="searching"></progress>` : null}<span>${some(found.rows.length, "message")} found, ${count(found.seen)} looked at${found.unreadable ? html`, <span class="bad">${count(found.unreadable)} cannot be read</span>` : ""}${found.busy ? "" : found.cursor ? "; there are more to look at" : "; that is everything"}</span>
      ${found.busy ? html`<button class="do small" onClick=${stop}>Stop</button>` : found.cursor ? html`<button class="do small" onClick=${() => run(found.search, found)}>Go on</button>` : null}</div><${Problem} error=${found.error} />
      ${found.rows.map((row, index) => html`<${Result} key=${index} row=${row} />`)}`}`;
}

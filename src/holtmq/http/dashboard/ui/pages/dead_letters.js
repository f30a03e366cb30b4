// Dead letters of partitioned queues, grouped by what went wrong.
import { html, useState } from "../parts/html.js";
import { part, post, query, remove } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { count } from "../parts/format.js";
import { useData } from "../parts/load.js";
import { refine, route } from "../parts/route.js";
import { Problem, Table } from "../parts/table.js";

const LIMIT = 500;

// Numbers and ids differ from failure to failure; what is left is the kind of failure.
const signature = (text) => (text || "(no reason given)").replace(/[0-9a-f]{8}-[0-9a-f-]{27,}/gi, "<id>").replace(/\b\d+\b/g, "<n>").slice(0, 160);

export function DeadLetters() {
  const { queue = "" } = route.value.query;
  const [said, setSaid] = useState("");
  const { data, error, reload } = useData("/api/v1/dlq" + query({ queue, limit: LIMIT }), 5);
  const letters = data?.messages || [];
  const families = new Map();
  for (const letter of letters) {
    const key = JSON.stringify([letter.queue ?? letter.queueName, letter.consumerGroup, signature(letter.errorMessage)]);
    if (!families.has(key)) families.set(key, []);
    families.get(key).push(letter);
  }
  const replay = async (some) => {
    let done = 0;
    try {
      for (const letter of some) {
        await post(`/api/v1/dlq/${part(letter.id)}/replay`, {});
        done += 1;
      }
      setSaid(`${done} sent back`);
    } catch (problem) {
      setSaid(`${done} sent back, then: ${problem.message}`);
    }
    reload();
  };
  const discard = () => confirmDanger({ title: `Discard the dead letters of ${queue}`, text: `${count(data.total)} dead letters will be deleted for good.`, name: queue, action: "Discard", run: () => remove(`/api/v1/dlq${query({ queue })}`) }).then(reload);
  const columns = [
    { title: "Queue", show: ([key]) => html`<a href=${`#/dead-letters?queue=${part(JSON.parse(key)[0])}`}>${JSON.parse(key)[0]}</a>` },
    { title: "Group", show: ([key]) => JSON.parse(key)[1] },
    { title: "What went wrong", show: ([key]) => JSON.parse(key)[2] },
    { title: "Letters", num: true, show: ([, some]) => count(some.length) },
    { title: "Last", show: ([, some]) => some[0].failedAt || some[0].createdAt },
    { title: "", show: ([, some]) => html`<button class="do" onClick=${() => replay(some)}>Send back</button>` },
  ];
  return html`<h1>Dead letters</h1><${Problem} error=${error} />
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}><input type="search" aria-label="Queue" placeholder="Queue ( / )" value=${queue} onChange=${(event) => refine({ queue: event.target.value })} /><span role="status">${said}</span></form>
    <section class="panel">${data ? html`<${Table} label="Families of dead letters" columns=${columns} rows=${[...families]} keyOf=${([key]) => key} empty="No dead letters." />
      ${data.total > letters.length ? html`<p class="muted">The newest ${letters.length} of ${count(data.total)} are shown.</p>` : null}` : html`<p class="muted">Loading…</p>`}</section>
    ${queue && letters.length ? html`<button class="do danger" onClick=${discard}>Discard all of ${queue}…</button>` : null}
    <p class="muted">Work queues dead-letter into queues of their own: look for them under <a href="#/queues">Queues</a>.</p>`;
}

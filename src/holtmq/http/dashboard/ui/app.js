// The frame around every page: navigation, login, keyboard, live state.
import { html, render, useEffect, useState } from "./parts/html.js";
import { post, remove, signedOut } from "./parts/api.js";
import { ConfirmDialog } from "./parts/confirm.js";
import { KeyHelp, useKeyboard } from "./parts/keyboard.js";
import { connected, listen, overview, stopListening } from "./parts/live.js";
import { go, route } from "./parts/route.js";
import { couldDo, isManagement, isMonitoring, loadSession, session } from "./parts/session.js";
import { Overview } from "./pages/overview.js";
import { Queues } from "./pages/queues.js";
import { Queue } from "./pages/queue.js";
import { Groups } from "./pages/groups.js";
import { Messages } from "./pages/messages.js";
import { DeadLetters } from "./pages/dead_letters.js";
import { Exchanges } from "./pages/exchanges.js";
import { Connections } from "./pages/connections.js";
import { Shovels } from "./pages/shovels.js";
import { Pipeline } from "./pages/pipeline.js";
import { Access } from "./pages/access.js";
import { Journal } from "./pages/journal.js";

const reads = () => couldDo("read");
const monitors = isMonitoring;

// Path, title, page, key after "g", and who sees it.
const PAGES = [
  ["overview", "Overview", Overview, "o", monitors],
  ["queues", "Queues", Queues, "q", isManagement],
  ["groups", "Groups", Groups, "g", reads],
  ["messages", "Messages", Messages, "m", reads],
  ["dead-letters", "Dead letters", DeadLetters, "d", reads],
  ["exchanges", "Exchanges", Exchanges, "e", isManagement],
  ["connections", "Connections", Connections, "c", monitors],
  ["shovels", "Shovels", Shovels, "s", monitors],
  ["pipeline", "Pipeline", Pipeline, "p", monitors],
  ["access", "Users and policies", Access, "u", isManagement],
  ["journal", "Journal", Journal, "j", monitors],
];

async function begin() {
  try {
    await loadSession();
  } catch {
    if (!signedOut.value) setTimeout(begin, 2000); // the broker is away
    return;
  }
  if (isMonitoring()) listen();
}

function Login() {
  const [error, setError] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      await post("/api/v1/session", { user: form.get("user"), password: form.get("password") });
      signedOut.value = false;
      await begin();
    } catch (problem) {
      setError(problem.message === "log in first" ? "The name or the password is wrong." : problem.message);
    }
  };
  return html`<main class="panel login" id="main"><h1>HoltMQ</h1>
    ${session.value && html`<p role="status">The session of <b>${session.value.user}</b> has ended. Log in to go on where you were.</p>`}
    <form onSubmit=${submit}>
      <label>User <input name="user" autocomplete="username" required autofocus /></label>
      <label>Password <input name="password" type="password" autocomplete="current-password" required /></label>
      ${error && html`<p class="bad" role="alert">${error}</p>`}
      <button class="do">Log in</button>
    </form></main>`;
}

async function logOut() {
  await remove("/api/v1/session");
  stopListening();
  session.value = null;
  signedOut.value = true;
  go("/");
}

// The address after # is a page's: a plain link to #main would open a page of that name.
function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function State() {
  const urgent = overview.value?.findingsTotal || 0;
  if (!connected.value) return html`<span class="bad">broker does not answer</span>`;
  if (!isMonitoring()) return null;
  return html`<a href="#/overview">${urgent ? html`<span class="bad">${urgent} ${urgent === 1 ? "needs" : "need"} attention</span>` : html`<span class="ok">all well</span>`}</a>`;
}

const Nothing = () => html`<h1>Nothing to see</h1><p>The user <b>${session.value.user}</b> has no permission on any queue and no tag. An administrator can give the tag <code>monitoring</code>, <code>policymaker</code> or <code>management</code>, or permissions in a virtual host.</p>`;

function App() {
  const pages = session.value ? PAGES.filter(([, , , , may]) => may()) : [];
  useKeyboard(pages);
  useEffect(() => { begin(); }, []);
  if (signedOut.value) return html`<${Login} />`;
  if (!session.value) return html`<main id="main"><p class="muted">Waiting for the broker…</p></main>`;
  const name = route.value.segments[0] || pages[0]?.[0];
  const page = pages.find(([path]) => path === (name === "queue" ? "queues" : name));
  const refused = !page && PAGES.some(([path]) => path === name);
  document.title = [...route.value.segments.slice(1).reverse(), page?.[1], "HoltMQ"].filter(Boolean).join(" · ");
  const Page = page && (name === "queue" ? Queue : page[2]);
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <header class="top">
      <a class="brand" href="#/">HoltMQ</a>
      <nav aria-label="Pages">${pages.map(([path, title]) => html`<a href=${`#/${path}`} aria-current=${page && path === page[0] ? "page" : undefined}>${title}</a>`)}</nav>
      <span class="state"><span role="status"><${State} /></span>
        <span class="muted">${session.value.user}</span>${session.value.anonymous ? null : html`<button class="link" onClick=${logOut}>Log out</button>`}
        <a href="/docs">API</a></span>
    </header>
    <main id="main" tabindex="-1">${Page ? html`<${Page} key=${route.value.path} />`
      : refused ? html`<h1>No access</h1><p>The user <b>${session.value.user}</b> may not see this page. ${pages.length ? html`<a href=${`#/${pages[0][0]}`}>${pages[0][1]}</a>` : null}</p>`
      : pages.length ? html`<p>There is no page <code>${name}</code>. <a href=${`#/${pages[0][0]}`}>${pages[0][1]}</a></p>` : html`<${Nothing} />`}</main>
    <${ConfirmDialog} /><${KeyHelp} pages=${pages} />`;
}

render(html`<${App} />`, document.getElementById("app"));

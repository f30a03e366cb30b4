// The frame around every page: navigation, login, keyboard, live state.
import { html, render, useEffect, useState } from "./parts/html.js";
import { get, post, remove, signedOut } from "./parts/api.js";
import { ConfirmDialog } from "./parts/confirm.js";
import { connected, listen, overview } from "./parts/live.js";
import { go, route } from "./parts/route.js";
import { Overview } from "./pages/overview.js";
import { Queues } from "./pages/queues.js";
import { Queue } from "./pages/queue.js";
import { Groups } from "./pages/groups.js";
import { DeadLetters } from "./pages/dead_letters.js";
import { Exchanges } from "./pages/exchanges.js";
import { Connections } from "./pages/connections.js";
import { Access } from "./pages/access.js";
import { Journal } from "./pages/journal.js";

const PAGES = [
  ["overview", "Overview", Overview, "o"],
  ["queues", "Queues", Queues, "q"],
  ["groups", "Groups", Groups, "g"],
  ["dead-letters", "Dead letters", DeadLetters, "d"],
  ["exchanges", "Exchanges", Exchanges, "e"],
  ["connections", "Connections", Connections, "c"],
  ["access", "Users", Access, "u"],
  ["journal", "Journal", Journal, "j"],
];

function Login() {
  const [error, setError] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      await post("/api/v1/session", { user: form.get("user"), password: form.get("password") });
      signedOut.value = false;
      listen();
    } catch (problem) {
      setError(problem.message === "log in first" ? "the name or the password is wrong" : problem.message);
    }
  };
  return html`<main class="panel login" id="main"><h1>HoltMQ</h1>
    <form onSubmit=${submit}>
      <label>User <input name="user" autocomplete="username" required autofocus /></label>
      <label>Password <input name="password" type="password" autocomplete="current-password" required /></label>
      ${error && html`<p class="bad" role="alert">${error}</p>`}
      <button class="do">Log in</button>
    </form></main>`;
}

// "/" goes to the search field, "g q" to the queues and so on.
function useKeyboard() {
  useEffect(() => {
    let pending = false;
    const press = (event) => {
      if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (pending) {
        pending = false;
        const page = PAGES.find(([, , , key]) => key === event.key);
        if (page) go(`/${page[0]}`);
      } else if (event.key === "g") pending = true;
      else if (event.key === "/") {
        const field = document.querySelector("input[type=search]");
        if (field) {
          event.preventDefault();
          field.focus();
        } else go("/queues");
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

function App() {
  useKeyboard();
  useEffect(listen, []);
  if (signedOut.value) return html`<${Login} />`;
  const name = route.value.segments[0] || "overview";
  const page = PAGES.find(([path]) => path === name);
  const Page = name === "queue" ? Queue : page ? page[2] : null;
  const urgent = overview.value?.findings.length || 0;
  return html`
    <a class="skip" href="#main">Skip to content</a>
    <header class="top">
      <a class="brand" href="#/">HoltMQ</a>
      <nav aria-label="Pages">${PAGES.map(([path, title]) => html`<a href=${`#/${path}`} aria-current=${path === name || (name === "queue" && path === "queues") ? "page" : undefined}>${title}</a>`)}</nav>
      <span class="state" role="status">
        ${connected.value ? html`<a href="#/overview">${urgent ? html`<span class="bad">${urgent} need attention</span>` : html`<span class="ok">all well</span>`}</a>` : html`<span class="bad">broker does not answer</span>`}
        <a href="/docs">API</a>
      </span>
    </header>
    <main id="main" tabindex="-1">${Page ? html`<${Page} key=${route.value.path} />` : html`<p>There is no page <code>${name}</code>. <a href="#/">Overview</a></p>`}</main>
    <${ConfirmDialog} />`;
}

render(html`<${App} />`, document.getElementById("app"));

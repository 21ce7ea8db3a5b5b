// What a page does in the browser besides fetching its parts: times in the reader's own zone, commands to
// copy, whether the page is live, the reader's name, and that nobody loses their place when a part is fetched
// again.
"use strict";

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (!Number.isNaN(moment.valueOf())) {
      time.textContent = moment.toLocaleString();
      time.title = moment.toISOString();
    }
  }
}

// On a phone a table is a list, in which each cell has to say which column it is of.
function nameCells(root) {
  for (const table of root.querySelectorAll("table:not(.beside, .diff)")) {
    if (table.closest(".grid")) continue;
    const columns = [...table.querySelectorAll("thead th")].map((column) => column.textContent.trim());
    for (const row of table.tBodies[0]?.rows ?? []) {
      if (row.cells.length !== columns.length) continue;
      [...row.cells].forEach((cell, n) => { cell.dataset.column = columns[n]; });
    }
  }
}

function dress(root) {
  localTimes(root);
  nameCells(root);
}

document.addEventListener("DOMContentLoaded", () => dress(document));
for (const after of ["htmx:afterSwap", "htmx:oobAfterSwap"]) {
  document.addEventListener(after, (event) => dress(event.target));
}

// Whether the page is live. What it shows is as old as the last word of the agent, who says something
// more often than this, even if nothing happens.
const SILENCE = 25000;
let heard = Date.now();
// Whether the page is told what happens; nobody knows yet.
let follows = null;
// The parts that could not be had when they were last asked for.
const stale = new Set();

function trouble() {
  if (!follows) return "the agent does not answer";
  if (stale.size > 0) return "not all can be fetched";
  return Date.now() - heard > SILENCE ? "no word from the agent" : null;
}

function tell() {
  if (follows === null) return;
  const [why, mark] = [trouble(), document.getElementById("live")];
  const text = why ? `not live: ${why}` : "live";
  if (mark.textContent !== text) {
    mark.textContent = text;
    mark.className = why ? "bad" : "good";
  }
  // Beside it, since it may change all the time, and need not be read out each time.
  document.getElementById("as-of").textContent = why ? `· shown as of ${new Date(heard).toLocaleTimeString()}` : "";
}

function hear() {
  if (stale.size === 0) heard = Date.now();
  tell();
}

document.addEventListener("htmx:sseOpen", (event) => {
  event.detail.source.addEventListener("quiet", hear);
  follows = true;
  hear();
});
document.addEventListener("htmx:sseError", () => {
  follows = false;
  tell();
});
document.addEventListener("htmx:afterRequest", ({ detail }) => {
  const { status } = detail.xhr;
  if (status === 0) return;
  const part = detail.requestConfig.path.split("?")[0];
  if (status >= 400 && isAgain(detail)) stale.add(part);
  if (status < 400 && detail.requestConfig.verb === "get") {
    stale.delete(part);
    if (stale.size === 0) document.getElementById("refused")?.replaceChildren();
  }
  hear();
});
setInterval(tell, 1000);

// Whether it is a part of the page that is fetched again by itself, and nobody has asked for it.
function isAgain({ requestConfig: { verb, elt } }) {
  return verb === "get" && /\bsse:|\bevery\b/.test(elt.getAttribute("hx-trigger") ?? "");
}

// An action that was refused says so where it was made. A part that can't be had stays as it was, and the
// agent's reason stands at the top until one can.
document.addEventListener("htmx:beforeSwap", (event) => {
  const { xhr, target, serverResponse } = event.detail;
  if (xhr.status < 400 || !xhr.getResponseHeader("content-type")?.startsWith("text/html")) return;
  if (isAgain(event.detail) && !xhr.getResponseHeader("hx-retarget")) return;
  // The same reason again is not read out again.
  event.detail.shouldSwap = target.id !== "refused" || target.innerHTML !== serverResponse;
  event.detail.isError = false;
});

// And so does an action that nobody has answered.
document.addEventListener("htmx:sendError", (event) => {
  if (isAgain(event.detail)) return;
  const said = document.createElement("p");
  said.className = "problem";
  said.setAttribute("role", "alert");
  said.textContent = "There is no answer: the agent can't be reached, or a file can't be read any more. "
    + "See if it was accepted before you send it again.";
  event.detail.target.replaceChildren(said);
});

// Who reads or has selected something in a part is not disturbed by one that is the same.
const had = new WeakMap();
document.addEventListener("htmx:beforeSwap", ({ detail }) => {
  const { requestConfig: { elt }, serverResponse, xhr } = detail;
  if (!isAgain(detail) || xhr.status >= 400) return;
  if (had.get(elt) === serverResponse) detail.shouldSwap = false;
  had.set(elt, serverResponse);
});

// What a link leads to is open.
function openTarget() {
  const place = document.getElementById(location.hash.slice(1));
  if (!(place instanceof HTMLDetailsElement)) return;
  place.open = true;
  place.querySelector("textarea")?.focus();
}
document.addEventListener("DOMContentLoaded", openTarget);
window.addEventListener("hashchange", openTarget);

// Who writes down their name need not do it again.
document.addEventListener("DOMContentLoaded", () => {
  const author = document.getElementById("author");
  if (author) author.value = localStorage.getItem("author") ?? "";
});
document.addEventListener("change", (event) => {
  if (event.target.id === "author") localStorage.setItem("author", event.target.value);
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    // Without a safe origin there is no clipboard: the text is selected instead.
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Press Ctrl+C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

// A list that is fetched again stays where it was scrolled to.
const scrolled = new Map();
document.addEventListener("htmx:beforeSwap", () => {
  for (const list of document.querySelectorAll(".scroll[id]")) scrolled.set(list.id, [list.scrollLeft, list.scrollTop]);
});
document.addEventListener("htmx:afterSwap", () => {
  for (const [id, [left, top]] of scrolled) document.getElementById(id)?.scrollTo(left, top);
});

// Whoever goes by keyboard stays where they are: what had the focus gets it again after its part was
// fetched again, or what now stands in its place; and so does a button that was closed while it worked.
const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex='0']";
const NAMES = ["href", "hx-post", "name", "aria-label"];
let focused = null;

function nameOf(element) {
  const names = NAMES.filter((name) => element.hasAttribute(name));
  return element.tagName + names.map((name) => `[${name}="${CSS.escape(element.getAttribute(name))}"]`).join("");
}

function placeOf(element) {
  const around = [];
  for (let at = element.parentElement?.closest("[id]"); at; at = at.parentElement?.closest("[id]")) {
    around.push([at.id, [...at.querySelectorAll(FOCUSABLE)].indexOf(element)]);
  }
  const name = nameOf(element);
  return { element, around, name, nth: [...document.querySelectorAll(name)].indexOf(element) };
}

function hold() {
  const element = document.activeElement;
  if (element?.matches(FOCUSABLE)) focused = placeOf(element);
}

function giveBack() {
  if (!focused || (document.activeElement && document.activeElement !== document.body)) return;
  const { element, around, name, nth } = focused;
  let to = element.isConnected ? element : document.querySelectorAll(name)[nth];
  for (const [id, place] of around) {
    const all = to ? [] : [...(document.getElementById(id)?.querySelectorAll(FOCUSABLE) ?? [])];
    to ??= all[Math.min(place, all.length - 1)];
  }
  to?.focus({ preventScroll: true });
}

// Who leaves it for nothing has left it.
let swaps = false;
document.addEventListener("pointerdown", () => { focused = null; });
document.addEventListener("focusout", (event) => {
  if (!swaps && !event.relatedTarget && !event.target.disabled) focused = null;
});
document.addEventListener("htmx:beforeRequest", hold);
document.addEventListener("htmx:beforeSwap", () => {
  hold();
  swaps = true;
});
for (const after of ["htmx:afterSwap", "htmx:afterRequest"]) {
  document.addEventListener(after, () => {
    swaps = false;
    giveBack();
  });
}

// What parts of the page say that is worth a word is read out when it is new, and not each time that the
// part is fetched. That a time has changed is not.
let said = "";

function notices(timed) {
  const all = [...document.querySelectorAll("[data-say]")].map((notice) => notice.cloneNode(true));
  if (!timed) all.forEach((notice) => notice.querySelectorAll("time").forEach((time) => time.remove()));
  return all.map((notice) => notice.textContent.trim().replace(/\s+/g, " ")).join(" ");
}

document.addEventListener("DOMContentLoaded", () => { said = notices(false); });
document.addEventListener("htmx:afterSwap", () => {
  const now = notices(false);
  if (now === said) return;
  said = now;
  document.getElementById("said").textContent = notices(true);
});

// What happens, as long as somebody looks: a browser has few connections for all pages of an agent, and one
// that nobody sees would keep those from others that are seen. What was missed is fetched when somebody looks
// again, since the agent then says that the page is connected.
class Feed extends EventTarget {
  constructor(url) {
    super();
    this.url = url;
    this.names = new Set();
    this.open();
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && this.rests) this.open();
      else if (document.hidden && this.readyState !== EventSource.CLOSED) this.rest();
    });
  }

  get readyState() { return this.source.readyState; }

  open() {
    this.rests = false;
    this.source = new EventSource(this.url);
    this.source.onopen = (event) => this.onopen?.(event);
    this.source.onerror = (event) => this.onerror?.(event);
    for (const name of this.names) this.pass(name);
  }

  rest() {
    this.source.close();
    this.rests = true;
  }

  pass(name) {
    this.source.addEventListener(name, ({ data }) => this.dispatchEvent(new MessageEvent(name, { data })));
  }

  addEventListener(name, listener) {
    super.addEventListener(name, listener);
    if (!this.names.has(name)) this.pass(name);
    this.names.add(name);
  }

  close() { this.source.close(); }
}

// Rows are fetched again if something has happened to what they show: all of them with one question, and
// what happens while that is under way with the next. A list that was asked for before something happened,
// and comes after it, does not know of it: its rows are fetched once more. Events are heard here, and not by
// an element: one that is just being replaced would miss them.
const changed = new Set();
const told = new Map();
htmx.createEventSource = (url) => {
  const source = new Feed(url);
  source.addEventListener("resources", (event) => {
    if (!document.querySelector("#list[hx-get^='/part/grid']")) return;
    for (const id of event.data.split(" ")) {
      changed.add(id);
      told.set(id, performance.now());
    }
    fetchRows();
  });
  return source;
};
function fetchRows() {
  const rows = document.getElementById("rows");
  if (rows && changed.size > 0) htmx.trigger(rows, "changed");
}
document.addEventListener("htmx:configRequest", (event) => {
  const request = event.detail;
  if (request.target?.id === "list") request.askedAt = performance.now();
  if (request.elt.id !== "rows") return;
  const shown = [...changed].filter((id) => document.getElementById("line-" + id));
  changed.clear();
  request.parameters.ids = shown.join(",");
  if (shown.length === 0) event.preventDefault();
});
document.addEventListener("htmx:afterSettle", (event) => {
  const askedAt = event.detail.requestConfig?.askedAt;
  if (askedAt === undefined) return;
  for (const [id, at] of told) {
    if (at < askedAt) told.delete(id);
    else changed.add(id);
  }
  fetchRows();
});

// What a page does in the browser besides fetching its parts: times in the reader's own zone, commands to
// copy, and whether the page is live.
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

function live(text, colour) {
  const mark = document.getElementById("live");
  if (mark && mark.textContent !== text) {
    mark.textContent = text;
    mark.className = colour;
  }
}

document.addEventListener("DOMContentLoaded", () => localTimes(document));
document.addEventListener("htmx:afterSwap", (event) => localTimes(event.target));
document.addEventListener("htmx:oobAfterSwap", (event) => localTimes(event.target));
document.addEventListener("htmx:sseOpen", () => live("live", "good"));
document.addEventListener("htmx:sseError", () => live("not live: the agent does not answer", "bad"));

// An action that was refused says so where it was made.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.status >= 400 && event.detail.xhr.getResponseHeader("content-type")?.startsWith("text/html")) {
    event.detail.shouldSwap = true;
    event.detail.isError = false;
  }
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

// Rows are fetched again if something has happened to what they show: all of them with one question, and
// what happens while that is under way with the next. A list that was asked for before something happened,
// and comes after it, does not know of it: its rows are fetched once more. Events are heard here, and not by
// an element: one that is just being replaced would miss them.
const changed = new Set();
const told = new Map();
htmx.createEventSource = (url) => {
  const source = new EventSource(url);
  source.addEventListener("resources", (event) => {
    if (!document.getElementById("list")) return;
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

// What a page does in the browser besides fetching its parts: times in the reader's own zone, commands to
// copy, whether the page is live, and the reader's name and place on it.
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
    // The same reason again is not read out again.
    const known = event.detail.target.id === "refused" && event.detail.target.innerHTML === event.detail.serverResponse;
    event.detail.shouldSwap = !known;
    event.detail.isError = false;
  }
});

// And so does one that nobody has answered.
document.addEventListener("htmx:sendError", (event) => {
  if (event.detail.requestConfig.verb === "get") return;
  const said = document.createElement("p");
  said.className = "problem";
  said.setAttribute("role", "alert");
  said.textContent = "There is no answer: the agent can't be reached, or a file can't be read any more. "
    + "See if it was accepted before you send it again.";
  event.detail.target.replaceChildren(said);
});

// A part that could not be fetched again says so at the top, until one can.
document.addEventListener("htmx:afterRequest", (event) => {
  const { requestConfig, xhr } = event.detail;
  const answered = xhr.status >= 200 && xhr.status < 400;
  if (answered && requestConfig.verb === "get") document.getElementById("refused")?.replaceChildren();
});

// Whoever had the focus gets it back: from a button that was switched off meanwhile, or on the one that has
// taken its place.
const focused = () => (document.activeElement === document.body ? null : document.activeElement);
const pressed = new WeakMap();
let replaced = null;
function refocus(element) {
  if (!element || focused()) return;
  const there = element.isConnected ? element : element.id && document.getElementById(element.id);
  if (there) there.focus({ preventScroll: true });
}
document.addEventListener("htmx:beforeRequest", (event) => {
  if (event.detail.elt.contains(focused())) pressed.set(event.detail.xhr, focused());
});
document.addEventListener("htmx:afterRequest", (event) => refocus(pressed.get(event.detail.xhr)));
document.addEventListener("htmx:beforeSwap", () => { replaced = focused(); });
document.addEventListener("htmx:afterSettle", () => { refocus(replaced); replaced = null; });

// What a link leads to is open.
function openTarget() {
  const place = document.getElementById(location.hash.slice(1));
  if (!(place instanceof HTMLDetailsElement)) return;
  place.open = true;
  place.querySelector("textarea")?.focus();
}
document.addEventListener("DOMContentLoaded", openTarget);

// Who writes down their name need not do it again.
document.addEventListener("DOMContentLoaded", () => {
  const author = document.getElementById("author");
  if (author) author.value = localStorage.getItem("author") ?? "";
});
document.addEventListener("change", (event) => {
  if (event.target.id === "author") localStorage.setItem("author", event.target.value);
});
window.addEventListener("hashchange", openTarget);

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

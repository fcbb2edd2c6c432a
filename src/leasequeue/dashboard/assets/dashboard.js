"use strict";
// A page asks for itself again every few seconds, and takes over what has changed. No stream is held open: browsers
// open six connections to an origin, so that the seventh tab and the application itself would wait, and a stream
// would hold up the end of the server. An unchanged page is an answer of status 304 without a body, and a tab that
// is hidden asks for nothing.
(() => {
  const EVERY = 3000, LONGEST = 15000;
  const live = document.getElementById("live"), hold = document.getElementById("hold");
  let tag = null, timer = 0, wait = EVERY, asking = null;

  const main = () => document.getElementById("main");
  const held = () => hold.getAttribute("aria-pressed") === "true";
  const busy = () => {
    const at = document.activeElement;
    return main().querySelector("details[open] > .sheet") !== null || !document.getSelection().isCollapsed ||
      (at && main().contains(at) && at.matches("input:not([type=checkbox]), select, textarea"));
  };

  function say(text, kind) {
    if (live.textContent !== text) live.textContent = text;
    live.className = kind;
  }

  function plan(after) {
    clearTimeout(timer);
    if (!held() && !document.hidden && "live" in main().dataset) timer = setTimeout(ask, after);
  }

  async function ask() {
    if (asking) return;
    if (busy()) return plan(EVERY);
    asking = new AbortController();
    const limit = setTimeout(() => asking.abort(), LONGEST);
    try {
      const url = new URL(location.href);
      for (const name of ["did", "count"]) url.searchParams.delete(name);
      const headers = tag ? { "If-None-Match": tag } : {};
      const answer = await fetch(url, { headers, cache: "no-store", signal: asking.signal });
      const kind = answer.headers.get("Content-Type") || "";
      if (answer.status !== 304) {
        if (answer.redirected || !kind.startsWith("text/html")) throw new Error("no page");
        const text = await answer.text();
        if (!document.hidden && !held() && !busy()) {
          morph(text);
          tag = answer.ok ? answer.headers.get("ETag") : null;
        }
      }
      wait = answer.status < 500 ? EVERY : 5000;
      answer.status < 500 ? say("Live", "on") : say("The server is away", "off");
    } catch {
      wait = Math.min(wait * 2, LONGEST);
      if (!document.hidden) say("No answer; trying again", "off");
    } finally {
      clearTimeout(limit);
      asking = null;
      plan(wait);
    }
  }

  function morph(text) {
    const found = new DOMParser().parseFromString(text, "text/html");
    const next = found.getElementById("main");
    if (!next) throw new Error("no page");
    document.title = found.title;
    // What the viewer has opened, typed, chosen and scrolled stays.
    const chosen = {
      open: "details", checked: "input", value: "input:not([type=hidden])", selected: "option", hidden: "[data-all]",
    };
    Idiomorph.morph(main(), next, {
      ignoreActiveValue: true,
      callbacks: { beforeAttributeUpdated: (name, node) => !(name in chosen && node.matches(chosen[name])) },
    });
  }

  function show() {
    hold.textContent = held() ? "Resume" : "Hold";
    if (held()) say("Held", "off");
  }

  hold.hidden = !("live" in main().dataset);
  hold.addEventListener("click", () => {
    hold.setAttribute("aria-pressed", String(!held()));
    show();
    plan(0);
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      clearTimeout(timer);
      if (asking) asking.abort();
    } else plan(0);
  });
  // The next step of an action on many: without this, the viewer presses the button.
  const step = document.querySelector("form[data-continue]");
  if (step) setTimeout(() => step.submit(), 200);
  for (const one of document.querySelectorAll("[data-all]")) one.hidden = false;
  document.addEventListener("change", ({ target }) => {
    if (!target.matches("[data-all]")) return;
    for (const one of target.form.querySelectorAll("[name=letter]")) one.checked = target.checked;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") for (const one of document.querySelectorAll("details[open]")) one.open = false;
    if (event.key === "/" && !event.target.matches("input, select, textarea")) {
      const search = main().querySelector("input[type=search]") || document.querySelector("input[type=search]");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
    }
  });
  show();
  if (!held() && "live" in main().dataset) say("Live", "on");
  plan(EVERY);
})();

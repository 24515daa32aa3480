// Ties the page together: what is chosen, the keyboard, search, the inspector, light and dark, the token.

import { age, h, show } from "./dom.js";
import { inspect, inspectDead, inspectRows } from "./inspector.js";
import { follow, keepToken, now, state } from "./model.js";
import { listed, render } from "./views.js";

const byId = (id) => document.getElementById(id);
const query = byId("query");
let chosen = "";
let said = "";

/** problem: what the stream says is wrong; as before, if it is not given. */
function draw(problem = said) {
  said = problem;
  const notice = byId("notice");
  const serving = state.server && state.status === "serving";
  const unhealthy = serving ? state.server.unhealthy.join("\n") : "";
  const alarm = problem || unhealthy;
  notice.hidden = !alarm;
  if (notice.textContent !== alarm) notice.textContent = alarm;
  const words = serving ? `serving${unhealthy && ", not healthy"} · ${state.server.host} · ${state.server.version} · up ${age(now() - state.server.started)}` : state.status;
  if (byId("status").textContent !== words) byId("status").textContent = words;
  byId("status").className = unhealthy ? "unhealthy" : state.status;
  document.body.classList.toggle("late", state.status === "offline" || state.status === "refused");
  render(chosen, query.value.trim());
}

function choose(name, focus = false) {
  chosen = name;
  draw();
  const button = document.querySelector(`[data-partition="${CSS.escape(name)}"]`);
  if (focus) button?.focus({ preventScroll: true });
  button?.closest("tr").scrollIntoView({ block: "nearest" });
}

function move(by) {
  const names = listed(query.value.trim().toLowerCase()).map((one) => one.name);
  if (!names.length) return;
  const place = names.indexOf(chosen);
  choose(names[place < 0 ? (by > 0 ? 0 : names.length - 1) : Math.min(Math.max(place + by, 0), names.length - 1)], true);
}

// -- light and dark ---------------------------------------------------------------------------------------------------

const THEME = "dataplane-theme";
const setTheme = (theme) => theme && (document.documentElement.dataset.theme = theme);
setTheme(localStorage.getItem(THEME));

function switchTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(dark ? "light" : "dark");
  localStorage.setItem(THEME, document.documentElement.dataset.theme);
}

// -- keys and clicks --------------------------------------------------------------------------------------------------

const KEYS = {
  "/": () => query.select(),
  j: () => move(1),
  k: () => move(-1),
  r: () => chosen && inspectRows(chosen),
  t: switchTheme,
  "?": () => byId("keys").showModal(),
  Escape: () => choose(""),
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input") || document.querySelector("dialog[open]");
  if (event.key === "Escape" && event.target === query) {
    query.value = "";
    query.blur();
    draw();
  } else if (!typing && KEYS[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

document.addEventListener("click", (event) => {
  const { partition, dead, rows, sample, close } = event.target.closest("button")?.dataset ?? {};
  if (partition != null) choose(partition === chosen ? "" : partition);
  else if (dead) inspectDead(...JSON.parse(dead));
  else if (rows) inspectRows(...JSON.parse(rows));
  else if (sample) inspect(...JSON.parse(sample));
  else if (close != null) event.target.closest("dialog").close();
  else if (event.target.matches("dialog")) event.target.close();
});

byId("theme").addEventListener("click", switchTheme);
byId("help").addEventListener("click", () => byId("keys").showModal());
query.addEventListener("input", () => draw());
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = query.value.trim();
  if (wanted && state.partitions.has(wanted)) choose(wanted, true);
  else if (wanted) {
    query.value = "";
    inspect("", wanted, chosen);
  }
});

// -- the token --------------------------------------------------------------------------------------------------------

/** Ask for a token; resolves when one was given. */
function askForToken(why) {
  const dialog = byId("token");
  show(byId("why"), h("span", {}, why));
  state.status = "locked";
  draw();
  if (!dialog.open) dialog.showModal();
  return new Promise((given) => {
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => {
      const input = dialog.querySelector("input");
      keepToken(input.value.trim());
      input.value = "";
      given();
    };
  });
}

follow(draw, askForToken);

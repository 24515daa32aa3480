// The sections of the page, from the state as it is now.

import { age, bar, bytes, count, h, rate, show, spark, time } from "./dom.js";
import { history, latencies, now, recent, state } from "./model.js";

const STATES = [["claimed", "claimed"], ["untaken", "untaken"], ["delayed", "delayed"], ["dead", "dead letters"], ["consumed", "consumed"]];
const REMOVED = { consumed: "consumed by all", cleared: "cleared", stale: "too stale", filtered: "filtered out", evicted: "evicted for new rows", retired: "retired with their version", rolled_back: "rolled back", lost: "lost with a node", failed: "failed, or late for their group" };
const TRANSPORT = { shm: "shared memory", grpc: "gRPC", direct: "the direct port" };
const NOW = { serving: ["serving", "ok"], waiting: ["waits", "warn"], waiting_for_consumers: ["waits for consumers", "warn"], idle: ["idle", ""] };
const MOST_WAITS = 8; // that are open at first
const USUAL_WAIT_S = 2; // consumers of a healthy flow wait for moments
const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
const ago = (at) => (at == null ? "–" : age(Math.max(now() - at, 0)));
const byId = (id) => document.getElementById(id);
const badge = (words, kind = "") => h("span", { class: `badge ${kind}` }, words);
const head = (title, more) => h("div", { class: "head" }, h("h2", {}, title), more && h("span", { class: "quiet" }, more));
const empty = (...words) => h("p", { class: "empty" }, ...words);

/** notes: a text under each row, if there is one. */
export function table(label, columns, rows, none, notes = []) {
  if (!rows.length) return empty(none);
  const cells = (row) => row.map((cell, place) => h("td", { class: columns[place][1] }, cell));
  const note = (text) => text && h("tr", { class: "note" }, h("td", { colspan: columns.length }, h("p", { title: text }, text)));
  return h("table", { "aria-label": label },
    h("thead", {}, h("tr", {}, columns.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))),
    h("tbody", {}, rows.map((row, place) => [h("tr", {}, cells(row)), note(notes[place])])));
}

export function render(chosen, filter) {
  if (!state.server) return;
  figures();
  waits(chosen, filter.toLowerCase());
  flow(chosen, filter.toLowerCase());
  details(chosen);
  more();
}

// -- figures ----------------------------------------------------------------------------------------------------------

function figure(name, value, unit, chart, note) {
  return h("div", { class: "figure" }, h("h3", {}, name), h("p", {}, h("b", {}, value), unit && h("span", {}, ` ${unit}`)), chart, h("p", { class: "quiet" }, note));
}

function figures() {
  const { memory: [budget, used, held], waiting, rows, max_rows, claims, sessions } = state.server;
  const [byClaims, byPuts, byRoom] = waiting;
  const calls = latencies();
  const slowest = calls.reduce((most, row) => (row[4] > (most?.[4] ?? -1) && !/^(Claim|Session)/.test(row[0]) ? row : most), null);
  show(byId("figures"),
    figure("Rows put", rate(recent("in")), "/s", spark(history("in"), "Rows put a second, last ten minutes"), `${count(rows)} here, at most ${count(max_rows)}`),
    figure("Rows consumed", rate(recent("out")), "/s", spark(history("out"), "Rows consumed a second, last ten minutes"), `${count(claims)} open claims, ${count(sessions)} sessions`),
    figure("Values", bytes(recent("written") + recent("read")), "/s", spark(history("written").map((value, place) => value + (history("read")[place] ?? 0)), "Bytes of values a second, last ten minutes"), `${bytes(recent("written"))} put, ${bytes(recent("read"))} read`),
    figure("Waiting calls", count(sum(waiting)), "", spark(history("waiting"), "Waiting calls, last ten minutes"), `claims ${byClaims} · memory ${byPuts} · room ${byRoom}`),
    figure("Slowest calls", slowest ? time(slowest[4]) : "–", "p99", null, slowest ? `${slowest[0]} over ${TRANSPORT[slowest[1]]}` : "none has ended in the last minute"),
    figure("Memory", `${Math.round((100 * used) / budget)} %`, `of ${bytes(budget)}`,
      bar([["claimed", used - held, "bytes of rows"], ["delayed", held, "bytes held by clients"]], budget, "Memory"), `${bytes(used)} used, ${bytes(held)} held by clients`));
}

// -- what waits -------------------------------------------------------------------------------------------------------

function waits(chosen, filter) {
  const fits = (one) => (!chosen || !one.partition || one.partition === chosen) && (!filter || [one.partition, one.task, one.client].some((name) => name.toLowerCase().includes(filter)));
  const root = (one) => state.waits[one.behind] ?? one;
  const lasting = state.waits.filter((wait) => (wait.since == null || now() - wait.since >= USUAL_WAIT_S) && state.waits.some((one) => root(one) === root(wait) && fits(one)));
  const victims = (one) => lasting.filter((other) => other !== one && root(other) === one);
  const folded = lasting.filter((one) => root(one) === one || !lasting.includes(root(one)));
  const resting = state.resting.filter((rest) => fits(rest) && !state.waits.some((wait) => wait.partition === rest.partition && (wait.task === rest.task || wait.causes[0].cause === rest.causes[0].cause)));
  const told = [...folded, ...resting].map((one) => wait(one, victims(one)));
  show(byId("waits"),
    head("What waits, and why", [[lasting.length, "waiting"], [state.waits.filter((one) => one.since != null && now() - one.since < USUAL_WAIT_S).length, "since a moment ago"], [resting.length, "at rest"], [state.unexamined, "more not examined"]].filter(([calls]) => calls).map(([calls, words]) => `${calls} ${words}`).join(", ")),
    told.length ? h("ul", { class: "waits" }, told.slice(0, MOST_WAITS)) : empty(`Nothing${chosen || filter ? " here" : ""} has waited for ${USUAL_WAIT_S} s or longer.`),
    told.length > MOST_WAITS && h("details", {}, h("summary", {}, `${told.length - MOST_WAITS} more`), h("ul", { class: "waits" }, told.slice(MOST_WAITS))));
}

const where = (one) => [one.partition, one.task].filter(Boolean).join(" › ") || "server";

/** A root, and in a line each the waits that end with it. */
function wait(one, victims) {
  const [main, ...others] = one.causes;
  const kind = one.waiting ? (one.since != null && now() - one.since > 30 ? "bad" : "warn") : "calm";
  return h("li", { "data-key": `${one.partition} ${one.task} ${one.waiting} ${main.cause}`, class: kind },
    h("div", { class: "what" },
      h("strong", {}, where(one)), badge(main.cause.replaceAll("_", " "), kind),
      h("span", { class: "quiet" }, one.waiting ? `${one.calls > 1 ? `${one.calls} × ` : ""}${one.waiting}, ${ago(one.since)}` : "at rest")),
    h("p", {}, one.summary),
    h("p", { class: "next" }, h("b", {}, "Next: "), main.next),
    victims.map((other) => h("p", { class: "quiet" }, `Behind it: ${where(other)}: ${other.summary.split(": ")[0]}`)),
    others.length > 0 && h("details", {}, h("summary", {}, `${others.length} more ${others.length > 1 ? "causes" : "cause"}`), others.map((other) => h("p", {}, badge(other.cause.replaceAll("_", " ")), " ", other.text))));
}

// -- the flow ---------------------------------------------------------------------------------------------------------

const COLUMNS = [["Partition, task", "name"], ["Now", "now"], ["Rows", "rows"], ["Ready", "num wide"], ["Waits", "num"], ["Rows a second", "rate"], ["Behind", "num wide"], ["Oldest", "num wide"]];

/** The partitions that the filter leaves, in the order in which they are shown. */
export function listed(filter) {
  const fits = (partition) => !filter || [partition.name, ...partition.tasks.map((task) => task.name), ...clientsOf(partition.name).map((row) => row[3])].some((name) => name.toLowerCase().includes(filter));
  return [...state.partitions.values()].filter(fits).sort((a, b) => (a.name < b.name ? -1 : 1));
}

const clientsOf = (name) => state.clients.filter((row) => row[0] === name);

function flow(chosen, filter) {
  const partitions = listed(filter);
  const all = state.server.partitions;
  const note = all && `${filter ? `${partitions.length} of ` : ""}${count(all)} ${all > 1 ? "partitions" : "partition"}${state.leftOut || all > state.partitions.size ? `, ${count(state.partitions.size)} shown` : ""}`;
  const none = all
    ? empty("No partition, task or client has this in its name. Enter looks for a sample of this id.")
    : empty("No partition yet. A program registers one: ", h("code", {}, 'client.register_partition("train", ["input_ids", "reward"], 0, ["policy"])'), ". Producers then put rows into it, and the task ", h("code", {}, "policy"), " claims them.");
  show(byId("flow"), head("Flow", note), partitions.length > 0 && h("p", { class: "legend" }, STATES.map(([name, told]) => h("span", {}, h("i", { class: name }), told))),
    partitions.length ? h("table", { "aria-label": "Partitions and their tasks" },
      h("thead", {}, h("tr", {}, COLUMNS.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))),
      partitions.map((partition) => h("tbody", { "data-key": partition.name, class: partition.name === chosen ? "chosen" : null }, partitionRow(partition, chosen), partition.tasks.map((task) => taskRow(partition, task)),
        partition.more_tasks > 0 && h("tr", { class: "task" }, h("td", { class: "quiet", colspan: COLUMNS.length }, `and ${partition.more_tasks} more tasks`))))) : none);
}

const row = (kind, cells) => h("tr", { class: kind }, cells.map((cell, place) => h(place ? "td" : "th", { class: COLUMNS[place][1], scope: place ? null : "row" }, cell)));

function partitionRow(one, chosen) {
  const producers = clientsOf(one.name).filter((client) => client[1] === "put").length;
  const version = one.weight_version ?? one.newest_weight_version;
  return row("partition", [
    h("button", { type: "button", class: "choose", "data-partition": one.name, "aria-pressed": String(one.name === chosen) }, one.name),
    one.closed ? badge("closed") : h("span", { class: "quiet" }, producers ? `${producers} ${producers > 1 ? "producers" : "producer"}` : one.rows_put ? "no put for a minute" : "nothing put yet"),
    h("span", { class: "amount" }, h("b", {}, count(one.rows)), h("span", { class: "quiet" }, bytes(one.size_bytes))),
    "", one.waiting_calls ? badge(count(one.waiting_calls), "warn") : "",
    h("span", { class: "rating" }, spark(history(`in ${one.name}`), "Rows put a second"), h("span", {}, `${rate(recent(`in ${one.name}`))} in`)),
    version == null ? "" : h("span", { class: "quiet", title: "Weight version" }, `v${version}`), h("span", { class: "quiet" }, ago(one.oldest_row_since)),
  ]);
}

function taskRow(partition, one) {
  const key = `out ${partition.name} ${one.name}`;
  const [now_, kind] = NOW[one.state];
  const cause = one.state === "waiting" && state.waits.find((other) => other.partition === partition.name && other.task === one.name)?.causes[0].cause;
  const words = cause ? `${now_}: ${cause.replaceAll("_", " ")}` : now_;
  const bound = one.max_staleness;
  return row("task", [
    one.name,
    badge(words, kind),
    h("span", { class: "amount" }, bar(STATES.map(([name, told]) => [name, one[name], told]), Math.max(partition.rows ?? 0, 1), `Rows for ${one.name}`), one.dead > 0 && h("button", { type: "button", class: "link bad", "data-dead": JSON.stringify([partition.name, one.name]) }, `${count(one.dead)} dead`)),
    one.ready == null && !one.claims && !one.waiting_claims ? h("span", { class: "quiet" }, "–") : count(one.ready),
    one.waiting_claims ? badge(`${one.waiting_claims} · ${ago(one.longest_since)}`, "warn") : "",
    h("span", { class: "rating" }, spark(history(key), "Rows consumed a second"), h("span", {}, `${rate(recent(key))} out`)),
    one.weight_version_lag == null && bound == null ? "" : h("span", { class: bound != null && one.weight_version_lag >= bound ? "warn" : "", title: "Weight versions behind, and how many max_staleness allows" }, `${one.weight_version_lag ?? 0}${bound == null ? "" : ` (≤ ${bound})`}`),
    one.oldest_untaken_since == null ? "" : ago(one.oldest_untaken_since),
  ]);
}

// -- details ----------------------------------------------------------------------------------------------------------

function meter(name, part, whole, text, kind = "claimed") {
  return h("div", { class: "meter" }, h("span", { title: name }, name), bar([[kind, part, ""]], whole, name), h("span", { class: "num" }, text));
}

function details(chosen) {
  const one = state.partitions.get(chosen);
  const partitions = one ? [one] : [...state.partitions.values()];
  const removed = Object.entries(REMOVED).map(([how, words]) => [words, sum(partitions.map((partition) => partition[`removed_${how}`]))]).filter(([, rows]) => rows);
  const gone = sum(removed.map(([, rows]) => rows));
  show(byId("details"),
    one ? h("div", { class: "head" }, h("h2", {}, one.name), h("button", { type: "button", class: "link", "data-rows": JSON.stringify([one.name]) }, "Rows")) : head("All partitions", "j and k choose one"),
    one && budgets(one),
    one && h("h3", {}, "Fields, by how many rows have them"),
    one && (one.fields.length ? one.fields.map(([name, shape, rows, size]) => meter(name, rows, one.rows ?? 0, h("span", { title: `${shape || "no shape yet"}, ${bytes(size)}` }, `${count(rows)}${rows < (one.rows ?? 0) ? ` of ${count(one.rows)}` : ""}`), rows < (one.rows ?? 0) ? "delayed" : "consumed")) : empty("No field is declared.")),
    one && one.tasks.length > 0 && h("h3", {}, "How tasks spent their time"),
    one && one.tasks.map(spent),
    h("h3", {}, "Rows that went, by reason"),
    removed.length ? removed.map(([words, rows]) => meter(words, rows, gone, count(rows), words === REMOVED.consumed ? "consumed" : "delayed")) : empty("None yet."),
    h("h3", {}, "Who put and took rows in the last minute"),
    people(one ? clientsOf(one.name) : state.clients, !one));
}

function budgets(one) {
  const { max_rows, max_bytes, max_versions, when_full } = one.budgets;
  return h("div", {},
    one.announced > 0 && meter("rows announced", one.rows_put ?? 0, one.announced, `${count(one.rows_put)} of ${count(one.announced)}`),
    max_rows && meter("max_rows", one.rows ?? 0, max_rows, `${count(one.rows)} of ${count(max_rows)}`),
    max_bytes && meter("max_bytes", one.size_bytes ?? 0, max_bytes, `${bytes(one.size_bytes)} of ${bytes(max_bytes)}`),
    (max_rows || max_bytes || max_versions) && h("p", { class: "quiet" }, `${max_versions ? `at most ${max_versions} weight versions; ` : ""}when full: ${when_full}`));
}

function spent(task) {
  const parts = [["claimed", "serving_s", "serving"], ["delayed", "waiting_s", "waiting"], ["other", "waiting_for_consumers_s", "waiting for consumers"], ["untaken", "idle_s", "idle"]];
  const all = sum(parts.map(([, key]) => task[key]));
  const words = ([kind, key, told]) => [kind, task[key] ?? 0, `s ${told}`];
  return h("div", { class: "meter" }, h("span", {}, task.name), bar(parts.map(words), all, `Time of ${task.name}`), h("span", { class: "num", title: "Serving" }, all ? `${Math.round((100 * (task.serving_s ?? 0)) / all)} %` : "–"));
}

function people(rows, everywhere) {
  const commits = new Set(rows.filter((row) => row[1] === "committed").map((row) => `${row[0]} ${row[2]} ${row[3]}`));
  const told = rows.filter((row) => row[1] !== "claimed" || !commits.has(`${row[0]} ${row[2]} ${row[3]}`)).sort((a, b) => a[1].localeCompare(b[1]) * -1 || a[3].localeCompare(b[3])).slice(0, 16);
  const did = (role, task, fields) => (role !== "put" ? `${role} for ${task}` : fields.length === 1 ? `put ${fields[0]}` : `put ${fields.length || ""} fields`);
  return h("div", { class: "people" }, told.length ? told.map(([partition, role, task, who, at, , fields]) => h("div", { class: "meter" },
    h("span", { title: who || "unnamed" }, who || "unnamed"),
    h("span", { class: "quiet", title: fields.join(", ") }, `${did(role, task, fields)}${everywhere ? ` in ${partition}` : ""}`),
    h("span", { class: "num" }, `${rate(recent(`client ${partition} ${role} ${task} ${who}`))}/s`), h("span", { class: "num quiet" }, ago(at)))) : empty("No client."));
}

// -- more -------------------------------------------------------------------------------------------------------------

function more() {
  const { claims, sessions, memory } = state.holders ?? { claims: [], sessions: [], memory: [] };
  const panel = (title, note, content, kind = "") => h("section", { class: `panel ${kind}`, "data-key": title, "aria-label": title }, head(title, note), h("div", { class: "scroll" }, content));
  const { closed = 0, expired = 0 } = state.server.sessions_ended;
  show(byId("more"),
    panel("Latencies", "last minute", table("Calls", [["Call", ""], ["Over", "quiet wide"], ["/s", "num"], ["p50", "num"], ["p99", "num"]],
      latencies().map(([verb, way, calls, half, most]) => [verb, TRANSPORT[way], calls == null ? "–" : rate(calls), time(half), time(most)]), "No call has ended yet.")),
    panel("Open claims", "oldest first", table("Open claims", [["Client", ""], ["Partition, task", ""], ["Rows", "num"], ["Age", "num"]],
      claims.map((one) => [one.clients.join(", ") || "no session", `${one.partition} › ${one.task}${one.shard ? ` (step ${one.shard[0]}, rank ${one.shard[1]})` : ""}`, count(one.rows), ago(one.since)]), "No claim is open.")),
    panel("Sessions", `${count(closed)} closed, ${count(expired)} expired`, table("Sessions", [["Client", ""], ["Claims", "num"], ["Heard", "num"], ["Grace", "num"]],
      sessions.map((one) => [one.client || "unnamed", count(one.claims), h("span", { class: now() - one.heard > one.grace_s / 2 ? "warn" : "" }, ago(one.heard)), time(one.grace_s)]), "No session is open: clients have one from their first claim or group on.")),
    panel("Memory that clients hold", "no clear frees it", table("Memory holders", [["Client", ""], ["Puts", "num"], ["Reads", "num"], ["Cleared", "num"]],
      memory.map(([name, lent, leased, owed]) => [name, bytes(lent), bytes(leased), bytes(owed)]), "Clients hold none.")),
    panel("What went otherwise", "dead letters, ended sessions, drops", table("Events", [["What", ""], ["Rows", "num"], ["Partition, task", ""], ["Ago", "num"]],
      state.events.map(([what, partition, task, who, reason, at, rows]) => [h("span", {}, badge(what.replaceAll("_", " "), what === "dead_letter" || what === "expired" ? "bad" : ""), " ", h("span", { class: "quiet" }, [who, reason].filter(Boolean).join(": "))), rows ? count(rows) : "all", [partition, task].filter(Boolean).join(" › "), ago(at)]), "Nothing: no dead letter, no expired session, no row dropped."), "double"),
    state.server.nodes.length > 0 && panel("Nodes", null, table("Nodes", [["Node", ""], ["Host", ""], ["Clients", "num"], ["Memory", "num"]],
      state.server.nodes.map((one) => [h("span", {}, `${one.number} `, badge(...(one.ended ? ["gone, in its mirrors", "warn"] : one.up ? ["up", "ok"] : ["away", "bad"]))), one.host, count(one.clients), bytes(one.used)]), "")));
}

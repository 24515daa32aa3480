// What the server has told: its parts as they come, rates of the last ten minutes, and the stream that brings them.

const POINTS = 60;
const SLOTS = 600; // ten minutes of a page that is seen
const TOLD_SLOTS = 5;
const SILENT_MS = 15_000; // streams of a server that serves last for 8 s
const TOKEN = "dataplane-token";

export const state = { server: null, waits: [], unexamined: 0, resting: [], holders: null, clients: [], events: [], latencies: [], partitions: new Map(), leftOut: 0, status: "connecting", offset: 0 };
const series = new Map(); // key -> rates, one a snapshot
const before = new Map(); // key -> counter at the snapshot before
let sampledAt = null;

/** The server's clock now. */
export const now = () => performance.now() / 1000 + state.offset;

/** At most POINTS means of neighbouring snapshots: of the last ten minutes, or of as long as the page has been open. */
export function history(key) {
  const values = series.get(key) ?? [];
  const points = Math.min(values.length, POINTS);
  const begin = (point) => Math.floor((point * values.length) / points);
  return Array.from({ length: points }, (_, point) => mean(values.slice(begin(point), begin(point + 1))));
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / (values.length || 1);

/** A rate as the mean of the last few snapshots. */
export const recent = (key) => mean((series.get(key) ?? []).slice(-TOLD_SLOTS));

function receive({ part, says: told }) {
  const [kind, ...name] = part.split(" ");
  if (kind === "server" && Math.abs(told.started - state.server?.started) > 1) [state.latencies, sampledAt] = [[], null]; // another life: it counts anew
  if (kind === "partition") state.partitions.set(name.join(" "), told);
  else if (kind === "shown") {
    const kept = new Set(told.parts);
    for (const one of state.partitions.keys()) if (!kept.has(`partition ${one}`)) state.partitions.delete(one);
    state.leftOut = told.left_out;
  } else if (kind === "waits") [state.waits, state.unexamined] = [told.waits, told.unexamined];
  else if (kind === "resting") state.resting = told.waits;
  else if (kind === "clients") [state.clients, state.events] = [told.clients, told.events];
  else if (kind === "latencies") {
    if (told.at !== state.latencies.at(-1)?.at) state.latencies = [...state.latencies, told].slice(-13);
  } else state[kind] = told;
  if (kind === "server") state.offset = told.now - performance.now() / 1000;
}

/** Add a point to each series, from counters. */
function sample() {
  const at = state.server?.now;
  if (at == null || at === sampledAt) return;
  const passed = sampledAt == null ? null : at - sampledAt;
  sampledAt = at;
  const alive = new Set();
  const sums = { in: 0, out: 0, written: 0, read: 0 };
  const add = (key, value) => {
    alive.add(key);
    series.set(key, [...(series.get(key) ?? []), value].slice(-SLOTS));
    return value;
  };
  const count = (key, counter = 0) => {
    const grown = before.has(key) ? Math.max(counter - before.get(key), 0) : 0;
    before.set(key, counter);
    return passed == null ? 0 : add(key, passed ? grown / passed : 0);
  };
  for (const [name, partition] of state.partitions) {
    sums.in += count(`in ${name}`, partition.rows_put);
    sums.written += count(`written ${name}`, partition.put_bytes);
    sums.read += count(`read ${name}`, partition.read_bytes);
    for (const task of partition.tasks) sums.out += count(`out ${name} ${task.name}`, task.rows_consumed);
  }
  for (const [partition, role, task, who, , rows] of state.clients) count(`client ${partition} ${role} ${task} ${who}`, rows);
  if (passed != null) for (const [name, value] of Object.entries(sums)) add(name, value);
  add("waiting", state.server.waiting.reduce((sum, value) => sum + value, 0));
  add("memory", state.server.memory[1]);
  for (const key of series.keys()) if (!alive.has(key)) series.delete(key);
  for (const key of before.keys()) if (passed != null && !alive.has(key)) before.delete(key);
}

/** Calls of the last minute by verb: [verb, transport, calls a second, p50, p99]. */
export function latencies() {
  const [first, last] = [state.latencies[0], state.latencies.at(-1)];
  if (!last) return [];
  const alone = first === last;
  return Object.entries(last.counts)
    .map(([key, counts]) => {
      const grown = counts.map((value, place) => value - (alone ? 0 : first.counts[key]?.[place] ?? 0));
      const calls = grown.at(-1);
      const within = (part) => Math.min(quantile(grown, last.bounds, part), now() - state.server.started); // the last buckets are wide
      return [...key.split(" "), alone ? null : calls / (last.at - first.at), within(0.5), within(0.99), calls];
    })
    .filter((row) => row[5] > 0)
    .sort((a, b) => b[5] - a[5]);
}

function quantile(counts, bounds, part) {
  const wanted = part * counts.at(-1);
  const place = counts.findIndex((value) => value >= wanted);
  if (place < 0 || !counts.at(-1) || place >= bounds.length) return bounds.at(-1);
  const [low, below] = place ? [bounds[place - 1], counts[place - 1]] : [0, 0];
  return low + ((bounds[place] - low) * (wanted - below)) / (counts[place] - below || 1);
}

// -- the server -------------------------------------------------------------------------------------------------------

export async function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const answer = await fetch(path, { ...options, cache: "no-store", headers: token ? { Authorization: `Bearer ${token}` } : {} });
  if (answer.ok) return answer;
  const text = await answer.text();
  let message = text.trim();
  try {
    message = JSON.parse(text).error.message;
  } catch {} // plain text
  throw Object.assign(new Error(message || `the server answered ${answer.status}`), { status: answer.status });
}

export const keepToken = (token) => sessionStorage.setItem(TOKEN, token);

/** Follow the stream for ever, while the page is seen. changed: called after each snapshot. unknown: asks for a token. */
export async function follow(changed, unknown) {
  for (let failures = 0; ; ) {
    if (document.hidden) await new Promise((seen) => document.addEventListener("visibilitychange", seen, { once: true }));
    const stop = new AbortController();
    const hide = () => document.hidden && stop.abort();
    document.addEventListener("visibilitychange", hide);
    const silence = setTimeout(() => stop.abort(new Error("silent")), SILENT_MS);
    try {
      await read(await ask("page/events", { signal: stop.signal }), changed);
      failures = 0;
    } catch (error) {
      if (error.status === 401) await unknown(error.message);
      else if (error.name !== "AbortError") {
        failures++;
        state.status = error.status ? "refused" : "offline";
        changed(error.status ? error.message : "The server cannot be reached. The page tries again.");
        await new Promise((passed) => setTimeout(passed, Math.min(500 * 2 ** failures, 5000)));
      }
    } finally {
      clearTimeout(silence);
      document.removeEventListener("visibilitychange", hide);
    }
  }
}

async function read(answer, changed) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", timer = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) receive(JSON.parse(event.slice(5)));
    clearTimeout(timer);
    timer = setTimeout(() => {
      state.status = state.server?.serving ? "serving" : "draining";
      sample();
      changed("");
    }, 30);
  }
}

// The sample inspector: rows of a partition or group, one row's story and values, dead letters.

import { age, bars, count, h, show, spark } from "./dom.js";
import { ask } from "./model.js";
import { table } from "./views.js";

const dialog = () => document.getElementById("inspector");
const path = (name, query) => `page/${name}?${new URLSearchParams(query)}`;
const sampleButton = (partition, id) => h("button", { type: "button", class: "link mono", "data-sample": JSON.stringify([partition, id]) }, id);
const tagText = (tags) => Object.entries(tags).map(([name, value]) => h("span", { class: "tag" }, h("i", {}, name), ` ${value}`));

let opened = 0;

/** Show what is loaded, unless something else was opened meanwhile. */
async function open(title, load) {
  const turn = ++opened;
  const top = (more) => h("div", { class: "head" }, h("h2", {}, title, more && h("span", { class: "quiet" }, ` ${more}`)), h("button", { type: "button", "data-close": "", "aria-label": "Close" }, "×"));
  show(dialog(), top(), h("p", { class: "empty" }, "…"));
  if (!dialog().open) dialog().showModal();
  try {
    const [more, ...content] = await load();
    if (turn === opened) show(dialog(), top(more), ...content);
  } catch (error) {
    if (turn === opened) show(dialog(), top(), h("p", { class: "empty", role: "alert" }, error.message));
  }
}

const STATE = { dead: "bad", claimed: "ok", delayed: "warn" };
const rowsButton = (partition, query, words) => h("button", { type: "button", class: "link", "data-rows": JSON.stringify([partition, query]) }, words);

/** query: group, of a group's rows; page, where a later page begins. */
export function inspectRows(partition, query = {}) {
  return open(query.group ? `Group ${query.group}` : `Rows of ${partition}`, async () => {
    const told = await (await ask(path("samples", { partition, ...query }))).json();
    if (query.group && !told.group) return [`in ${partition}`, h("p", { class: "empty" }, "The group is not there any more: its rows were consumed or removed.")];
    const numbers = (told.numbers ?? []).filter((name) => told.rows.some((row) => name in row.values));
    const states = (row) => [row.states.map(([task, state]) => h("span", { class: `badge ${STATE[state] ?? ""}` }, `${task}: ${state}`)), row.hidden && h("span", { class: "badge warn" }, "hidden")];
    const inGroups = !told.group && told.rows.some((row) => row.group);
    const columns = [["Sample", ""], ["State", ""], ...(inGroups ? [["Group", ""]] : []), ["Tokens", "num"], ...numbers.map((name) => [name, "num"]), ["Tags", "wide"]];
    const rows = told.rows.map((row) => [sampleButton(partition, row.id), h("span", { class: "chips" }, states(row)), ...(inGroups ? [row.group && rowsButton(partition, { group: row.group }, row.group)] : []), row.tokens < 0 ? "–" : count(row.tokens), ...numbers.map((name) => row.values[name] ?? "–"), h("span", {}, tagText(row.tags))]);
    const text = (row) => Object.entries(row.values).find(([name]) => !numbers.includes(name))?.[1];
    return [
      told.group ? `in ${partition}` : told.next || query.page ? "50 a page" : `${told.rows.length}`,
      told.group && groupOf(told, numbers),
      table("Rows", columns, rows, "The partition has no rows now.", told.rows.map(text)),
      told.next ? h("p", {}, rowsButton(partition, { page: told.next }, "Next page")) : null,
    ];
  });
}

/** What a group is, and how its rows differ. */
function groupOf({ group, rows }, numbers) {
  const versions = group.versions.filter((version) => version != null);
  const lengths = rows.map((row) => row.tokens).filter((length) => length >= 0);
  const line = (name, values) => h("div", { class: "meter tall" }, h("span", { title: name }, name), bars(values, `${name} of each row`), h("span", { class: "num" }, `mean ${short(mean(values))}, std ${short(spread(values))}`));
  return h("div", {},
    h("p", { class: "chips" },
      group.reserved ? h("span", { class: "badge warn" }, `not finished${group.client && `: ${group.client} fills it`}`) : h("span", { class: "badge ok" }, "finished"),
      h("span", { class: "tag" }, h("i", {}, "rows"), ` ${count(group.rows)}`),
      versions.length > 0 && h("span", { class: "tag" }, h("i", {}, "weight version"), ` ${[...new Set(versions)].join(" to ")}`),
      group.failed > 0 && h("span", { class: "badge bad" }, `${count(group.failed)} failed`)),
    numbers.map((name) => [name, rows.map((row) => row.values[name]).filter((value) => typeof value === "number")]).filter(([, values]) => values.length).map((one) => line(...one)),
    lengths.length > 0 && line("tokens", lengths));
}

export function inspectDead(partition, task) {
  return open(`Dead letters of ${partition} › ${task}`, async () => {
    const told = await (await ask(path("dead", { partition, task }))).json();
    const rows = told.rows.map((row) => [sampleButton(partition, row.id), count(row.deliveries), row.reason || "–"]);
    return [told.more ? `${told.more} more` : "", table("Dead letters", [["Sample", ""], ["Deliveries", "num"], ["Last reason", ""]], rows, "No row is a dead letter any more.")];
  });
}

/** partition: empty for any; then `chosen` is where a sample that is gone may have been. */
export function inspect(partition, id, chosen = "") {
  return open(id, async () => {
    let told;
    try {
      told = await (await ask(path("sample", { partition, id }))).json();
    } catch (error) {
      if (error.status !== 404 || partition || !chosen) throw error;
      told = await (await ask(path("sample", { partition: chosen, id }))).json();
    }
    return [`in ${told.partition}`, ...story(told)];
  });
}

function story(told) {
  const { row, events } = told;
  if (!row && !events.length) return [h("p", { class: "empty" }, "The server knows nothing of such a sample, as far back as it remembers.")];
  const columns = [["Ago", "num"], ["What", "word"], ["Who", "word"], ["Task", "word"], ["Detail", "quiet"]];
  const rows = events.map((one) => [age(one.age_s), h("b", {}, one.what.replaceAll("_", " ")), one.who || "–", one.task || "–", [one.claim && `claim ${one.claim}`, one.fields.join(", "), one.reason].filter(Boolean).join(" · ")]);
  return [
    told.others.length > 0 && h("p", { class: "quiet" }, "Also in ", told.others.map((other) => [h("button", { type: "button", class: "link", "data-sample": JSON.stringify([other, told.id]) }, other), " "])),
    row ? present(told) : h("p", { class: "empty" }, "The row is gone. This is what happened to it."),
    h("h3", {}, "Story"), table("Story", columns, rows, "Nothing is remembered."),
    ...(told.values ? values(told.values) : row ? [h("p", { class: "empty" }, "Values need a role that reads this partition.")] : []),
  ];
}

function present({ partition, row, fields }) {
  const lacking = fields.filter(([, , has]) => !has).map(([name]) => name);
  return h("div", {},
    h("p", { class: "chips" }, row.tasks.map(([task, state, deliveries, claim, step, rank]) => h("span", { class: `badge ${STATE[state] ?? ""}`, title: claim && `claim ${claim}` }, `${task}: ${state}${step == null ? "" : `, step ${step}, rank ${rank}`}${deliveries > 1 ? `, ${deliveries} deliveries` : ""}`)), row.hidden && h("span", { class: "badge warn" }, "its group is not finished")),
    h("p", { class: "chips" }, row.tokens >= 0 && h("span", { class: "tag" }, h("i", {}, "tokens"), ` ${count(row.tokens)}`), row.group && h("span", { class: "tag" }, h("i", {}, "group "), rowsButton(partition, { group: row.group }, row.group)), tagText(row.tags)),
    lacking.length > 0 && h("p", {}, h("span", { class: "badge warn" }, "lacks"), ` ${lacking.join(", ")}`));
}

// -- values -----------------------------------------------------------------------------------------------------------

const finite = (value) => (typeof value === "number" ? value : 0);
const mean = (list) => list.reduce((total, value) => total + value, 0) / (list.length || 1);
const spread = (list) => {
  const middle = mean(list);
  return Math.sqrt(mean(list.map((value) => (value - middle) ** 2)));
};
const short = (value) => `${+value.toPrecision(3)}`;

function values(told) {
  const tokens = told.filter((one) => one.kind === "tokens");
  const whole = tokens.filter((one) => /^u?int/.test(one.dtype));
  const mask = tokens.find((one) => one.field.includes("mask"))?.value;
  const ids = (whole.find((one) => one.field.includes("ids")) ?? whole.find((one) => !one.field.includes("mask")))?.value;
  const logprobs = tokens.filter((one) => one.field.includes("logprob"));
  const others = tokens.filter((one) => one.value !== ids && one.value !== mask && !logprobs.includes(one));
  return [
    ...told.filter((one) => one.kind === "object").flatMap((one) => [h("h3", {}, one.field), h("pre", {}, one.value)]),
    ids && h("h3", {}, "Tokens", mask && h("span", { class: "quiet" }, ` ${count(mask.filter(Boolean).length)} of ${count(ids.length)} in the loss`)),
    ids && h("div", { class: "tokens", role: "img", "aria-label": `${ids.length} token ids` }, ids.map((token, place) => h("span", { class: !mask || mask[place] ? "in" : "", title: [`token ${place}`, ...[...logprobs, ...others].map((one) => `${one.field} ${one.value[place]}`)].join("\n") }, token))),
    ...numbers(logprobs, mask),
    ...[...others, ...told.filter((one) => one.kind === "numbers")].flatMap((one) => [h("h3", {}, one.field), h("p", { class: "mono" }, one.value.slice(0, 64).join("  "), one.value.length > 64 && " …")]),
  ];
}

/** Log-probabilities as probabilities by token, and the ratio of the trainer's to the generator's where there are two. */
function numbers(logprobs, mask) {
  const counted = (list) => list.map(finite).filter((_, place) => !mask || mask[place]);
  const line = (name, list, told) => h("div", { class: "meter tall" }, h("span", { title: name }, name), spark(list, name, 480, 36, list.length), h("span", { class: "num" }, told));
  const charts = logprobs.map((one) => line(one.field, counted(one.value).map(Math.exp), `mean ${mean(counted(one.value)).toFixed(3)}`));
  const by = (word) => logprobs.find((one) => word.test(one.field));
  const [older, newer] = [by(/gen|rollout|behav/), by(/prev|train|cur|old/)];
  if (older && newer) {
    const base = counted(older.value);
    const ratios = counted(newer.value).map((value, place) => Math.exp(value - base[place]));
    charts.push(line(`ratio ${newer.field} / ${older.field}`, ratios, `mean ${mean(ratios).toFixed(3)}, ${Math.min(...ratios).toFixed(2)} to ${Math.max(...ratios).toFixed(2)}`));
  }
  return charts.length ? [h("h3", {}, "Probabilities of tokens in the loss, and the means of their logarithms"), ...charts] : [];
}

// The sample inspector: rows of a partition, one row's story and values, dead letters.

import { age, count, h, show, spark } from "./dom.js";
import { ask } from "./model.js";
import { table } from "./views.js";

const dialog = () => document.getElementById("inspector");
const path = (name, query) => `page/${name}?${new URLSearchParams(query)}`;
const sampleButton = (partition, id) => h("button", { type: "button", class: "link mono", "data-sample": JSON.stringify([partition, id]) }, id);
const tagText = (tags) => Object.entries(tags).map(([name, value]) => h("span", { class: "tag" }, h("i", {}, name), ` ${value}`));

async function open(title, load) {
  const top = (more) => h("div", { class: "head" }, h("h2", {}, title, more && h("span", { class: "quiet" }, ` ${more}`)), h("button", { type: "button", "data-close": "", "aria-label": "Close" }, "×"));
  show(dialog(), top(), h("p", { class: "empty" }, "…"));
  if (!dialog().open) dialog().showModal();
  try {
    const [more, ...content] = await load();
    show(dialog(), top(more), ...content);
  } catch (error) {
    show(dialog(), top(), h("p", { class: "empty", role: "alert" }, error.message));
  }
}

export function inspectRows(partition, page = 0) {
  return open(`Rows of ${partition}`, async () => {
    const told = await (await ask(path("samples", { partition, page }))).json();
    const rows = told.rows.map((row) => [sampleButton(partition, row.id), row.tokens < 0 ? "–" : count(row.tokens), h("span", {}, tagText(row.tags))]);
    return [told.next ? "the oldest 50" : `${rows.length}`, table("Rows", [["Sample", ""], ["Tokens", "num"], ["Tags", ""]], rows, "The partition has no rows now.")];
  });
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
  const columns = [["Ago", "num"], ["What", ""], ["Who", ""], ["Task", ""], ["Detail", "quiet"]];
  const rows = events.map((one) => [age(one.age_s), h("b", {}, one.what.replaceAll("_", " ")), one.who || "–", one.task || "–", [one.claim && `claim ${one.claim}`, one.fields.join(", "), one.reason].filter(Boolean).join(" · ")]);
  return [
    told.others.length > 0 && h("p", { class: "quiet" }, "Also in ", told.others.map((other) => [h("button", { type: "button", class: "link", "data-sample": JSON.stringify([other, told.id]) }, other), " "])),
    row ? present(told) : h("p", { class: "empty" }, "The row is gone. This is what happened to it."),
    h("h3", {}, "Story"), table("Story", columns, rows, "Nothing is remembered."),
    ...(told.values ? values(told.values) : row ? [h("p", { class: "empty" }, "Values need a role that reads this partition.")] : []),
  ];
}

function present({ row, fields }) {
  const lacking = fields.filter(([, , has]) => !has).map(([name]) => name);
  return h("div", {},
    h("p", { class: "chips" }, row.tasks.map(([task, state, deliveries, claim, step, rank]) => h("span", { class: `badge ${{ dead: "bad", claimed: "ok", delayed: "warn" }[state] ?? ""}`, title: claim && `claim ${claim}` }, `${task}: ${state}${step == null ? "" : `, step ${step}, rank ${rank}`}${deliveries > 1 ? `, ${deliveries} deliveries` : ""}`)), row.hidden && h("span", { class: "badge warn" }, "its group is not finished")),
    h("p", { class: "chips" }, row.tokens >= 0 && h("span", { class: "tag" }, h("i", {}, "tokens"), ` ${count(row.tokens)}`), row.group && h("span", { class: "tag" }, h("i", {}, "group"), ` ${row.group}`), tagText(row.tags)),
    lacking.length > 0 && h("p", {}, h("span", { class: "badge warn" }, "lacks"), ` ${lacking.join(", ")}`));
}

// -- values -----------------------------------------------------------------------------------------------------------

const finite = (value) => (typeof value === "number" ? value : 0);
const mean = (list) => list.reduce((total, value) => total + value, 0) / (list.length || 1);

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
    const ratios = counted(newer.value).map((value, place) => Math.exp(value - counted(older.value)[place]));
    charts.push(line(`ratio ${newer.field} / ${older.field}`, ratios, `mean ${mean(ratios).toFixed(3)}, ${Math.min(...ratios).toFixed(2)} to ${Math.max(...ratios).toFixed(2)}`));
  }
  return charts.length ? [h("h3", {}, "Probabilities of tokens in the loss, and the means of their logarithms"), ...charts] : [];
}

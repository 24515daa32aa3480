// A whole round over HTTP from JavaScript: node round.mjs http://127.0.0.1:9465

const at = process.argv[2];

async function call(method, path, body) {
  const answer = await fetch(at + path, {
    method,
    headers: body ? { "Content-Type": "application/json" } : {},
    body: body && JSON.stringify(body),
  });
  const value = await answer.json();
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(value)}`);
  return value;
}

await call("PUT", "/v1/partitions/js", {
  fields: ["input_ids", "reward", "score"], per_token_fields: ["input_ids"], tasks: ["train"],
});

// Two groups: one in a request, one row by row.
const row = (id, reward) => ({ sample_id: id, fields: { input_ids: [5, 6, 7], reward } });
await call("POST", "/v1/partitions/js/samples", {
  samples: [row("p0-0", 0), row("p0-1", 1)], group_id: "p0", weight_version: 7,
  dtypes: { reward: "float32" }, request_id: "put-p0",
});
const { reservation_id } = await call("POST", "/v1/partitions/js/groups", { group_id: "p1" });
for (const id of ["p1-0", "p1-1"]) {
  await call("POST", `/v1/groups/${reservation_id}/samples`, { samples: [row(id, 0.5)] });
}
await call("POST", `/v1/groups/${reservation_id}/finish`, {});

const claim = await call("POST", "/v1/partitions/js/tasks/train/claims", {
  fields: ["input_ids"], batch_size: 2, whole_groups: true, wait_s: 30, lease_s: 120,
});
const { samples } = await call("GET", `/v1/claims/${claim.claim_id}?field=input_ids&field=reward`);
if (samples.length !== 4 || samples[0].fields.input_ids.length !== 3) throw new Error(JSON.stringify(samples));
await call("POST", `/v1/claims/${claim.claim_id}/keep`);
const scored = samples.map(({ sample_id, fields }) => ({ sample_id, fields: { score: fields.reward + 3.5 } }));
const { rows } = await call("POST", `/v1/claims/${claim.claim_id}/commit`, { samples: scored });
if (rows !== 4) throw new Error(`committed ${rows}`);
console.log("done");

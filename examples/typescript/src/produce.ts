// Puts rollouts: for each prompt, a group of samples of different lengths. node build/produce.js ADDRESS [PROMPTS]

import { randomUUID } from "node:crypto";

import { call, DataPlane, jagged, write } from "./dataplane.js";
import { PARTITION, register } from "./pipeline.js";

const SAMPLES = 4;

/** Your inference engine. This one returns 3 to 6 tokens. */
function generate(prompt: number, sample: number): number[] {
  return Array.from({ length: 3 + ((prompt + sample) % 4) }, (_, i) => 10 * prompt + sample + i);
}

const [address = "unix:///tmp/dataplane.sock", prompts = "20"] = process.argv.slice(2);
const plane = await DataPlane.connect(address, "producer in TypeScript");
const { stub } = plane;
await register(plane);
for (let prompt = 0; prompt < Number(prompts); prompt++) {
  const ids = Array.from({ length: SAMPLES }, (_, sample) => `${prompt}-${sample}`);
  const { reservation_id } = await call(stub, stub.ReserveGroup, {
    request_id: randomUUID(),
    partition_id: PARTITION,
    group_id: `prompt-${prompt}`,
    sample_ids: ids,
    session_id: plane.sessionId,
    weight_version: 0,
  });
  for (const [sample, id] of ids.entries()) { // each as soon as it is generated
    const header = { request_id: randomUUID(), partition_id: PARTITION, sample_ids: [id], reservation_id };
    await write(stub, stub.PutSamples, header, [jagged("input_ids", [generate(prompt, sample)])]);
  }
  await call(stub, stub.FinishGroup, { request_id: randomUUID(), reservation_id });
  console.log(`prompt ${prompt}: ${ids.length} samples`);
}
await call(stub, stub.ClosePartition, { request_id: randomUUID(), partition_id: PARTITION });
await plane.close();

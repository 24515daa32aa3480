// Rates rollouts: claims the samples of one prompt at a time, and commits them with their rewards and advantages.
// node build/rate.js ADDRESS

import { randomUUID } from "node:crypto";

import { type ServiceError, status } from "@grpc/grpc-js";

import { call, DataPlane, floats, write } from "./dataplane.js";
import { PARTITION, register } from "./pipeline.js";

/** Your reward. This one is the share of even tokens. */
function rate(tokens: number[]): number {
  return tokens.filter((token) => token % 2 === 0).length / tokens.length;
}

const [address = "unix:///tmp/dataplane.sock"] = process.argv.slice(2);
const plane = await DataPlane.connect(address, "rater in TypeScript");
const { stub } = plane;
await register(plane);
while (true) {
  const claim = await call(stub, stub.ClaimSamples, {
    request_id: randomUUID(),
    partition_id: PARTITION,
    task: "reward",
    required_fields: ["input_ids"],
    mode: "CLAIM_MODE_ACKNOWLEDGED",
    batch_size: 1,
    whole_groups: true,
    wait_timeout: { seconds: 30 },
    session_id: plane.sessionId,
  }).catch((error: ServiceError) => {
    if (error.code === status.DEADLINE_EXCEEDED) return undefined; // none came meanwhile
    if (error.code === status.OUT_OF_RANGE) return null; // END_OF_DATA
    throw error;
  });
  if (claim === null) break;
  if (claim === undefined) continue;
  const { claim_id, sample_ids, generations, groups } = claim;
  const fields = await plane.read({ partition_id: PARTITION, sample_ids, generations, fields: ["input_ids"] });
  const rewards = fields.get("input_ids")!.map((tokens) => rate(Array.from(tokens, Number)));
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const advantages = rewards.map((reward) => reward - mean);
  await write(stub, stub.CommitClaim, { request_id: randomUUID(), claim_id }, [
    floats("reward", rewards),
    floats("advantage", advantages),
  ]);
  console.log(`${groups[0]!.group_id}: mean reward ${mean.toFixed(2)}`);
}
await plane.close();

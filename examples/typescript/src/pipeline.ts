// What the programs agree on: the partition of examples/first_pipeline, so its programs in Python can take part.

import { randomUUID } from "node:crypto";

import { call, DataPlane } from "./dataplane.js";

export const PARTITION = "rollouts";

/** Register the partition. Every program does so at its start; all but the first change nothing. */
export async function register({ stub }: DataPlane): Promise<void> {
  await call(stub, stub.RegisterPartition, {
    request_id: randomUUID(),
    partition_id: PARTITION,
    fields: ["input_ids", "reward", "advantage"],
    per_token_fields: ["input_ids"],
    tasks: ["reward", "train"],
    clear_when_consumed: true,
  });
}

// The contract, proto/rl_dataplane/v1/data_plane.proto, over grpc-js: deadlines and retries, a session and its
// heartbeats, and columns of numbers as bytes. Names are the contract's; its comments say what each call promises.

import { once } from "node:events";
import { endianness } from "node:os";
import { Readable } from "node:stream";
import { fileURLToPath } from "node:url";

import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

import type { ProtoGrpcType } from "./generated/data_plane.js";
import type { Chunk } from "./generated/rl_dataplane/v1/Chunk.js";
import type { Column, Column__Output } from "./generated/rl_dataplane/v1/Column.js";
import type { DataPlaneServiceClient } from "./generated/rl_dataplane/v1/DataPlaneService.js";
import type { ReadColumnsRequest } from "./generated/rl_dataplane/v1/ReadColumnsRequest.js";
import type { SessionRequest } from "./generated/rl_dataplane/v1/SessionRequest.js";
import type { SessionResponse__Output } from "./generated/rl_dataplane/v1/SessionResponse.js";

const PROTO = fileURLToPath(new URL("../../../proto", import.meta.url));
const SERVICE = "rl_dataplane.v1.DataPlaneService";
const CHUNK_BYTES = 4 << 20;
const GRACE_S = 10;

// A call that is sent again has the same request_id, so it is applied once.
const SERVICE_CONFIG = {
  loadBalancingConfig: [],
  methodConfig: [
    {
      name: [{ service: SERVICE }],
      timeout: "60s",
      retryPolicy: {
        maxAttempts: 5,
        initialBackoff: "0.1s",
        maxBackoff: "2s",
        backoffMultiplier: 2,
        retryableStatusCodes: ["UNAVAILABLE"],
      },
    },
    { name: [{ service: SERVICE, method: "Session" }] },
  ],
};

const ELEMENTS = { DATA_TYPE_INT32: Int32Array, DATA_TYPE_INT64: BigInt64Array, DATA_TYPE_FLOAT32: Float32Array };
export type Elements = Int32Array | BigInt64Array | Float32Array;
export type Values = { column: Column; data: Buffer };

/** A connection, and the session that holds its claims and reserved groups. */
export class DataPlane {
  private constructor(
    readonly stub: DataPlaneServiceClient,
    readonly sessionId: string,
    private readonly session: grpc.ClientDuplexStream<SessionRequest, SessionResponse__Output>,
    private readonly heartbeats: NodeJS.Timeout,
  ) {}

  /** Connect to `unix:///path` or `host:port`. If the session is lost, its stream's error ends the program. */
  static async connect(address: string, clientName: string): Promise<DataPlane> {
    if (endianness() !== "LE") throw new Error("typed arrays of this machine have another byte order than the contract");
    const definition = loadSync("rl_dataplane/v1/data_plane.proto", {
      includeDirs: [PROTO], keepCase: true, longs: Number, enums: String, defaults: true,
    });
    const { DataPlaneService } = (grpc.loadPackageDefinition(definition) as unknown as ProtoGrpcType).rl_dataplane.v1;
    const stub = new DataPlaneService(address, grpc.credentials.createInsecure(), {
      "grpc.service_config": JSON.stringify(SERVICE_CONFIG),
      "grpc.max_receive_message_length": 16 << 20,
    });
    const session = stub.Session();
    session.write({ open: { client_name: clientName, grace: { seconds: GRACE_S } } });
    const [{ session_id }] = (await once(session, "data")) as [SessionResponse__Output];
    session.resume();
    return new DataPlane(stub, session_id, session, setInterval(() => session.write({}), (GRACE_S * 1000) / 3));
  }

  /** Close the session, which releases what it holds, and the connection. */
  async close(): Promise<void> {
    clearInterval(this.heartbeats);
    const ended = once(this.session, "end");
    this.session.end({ close: true });
    await ended;
    this.stub.close();
  }

  /** Read fields of rows: for each field, the elements of each row. */
  async read(request: ReadColumnsRequest): Promise<Map<string, Elements[]>> {
    let columns: Column__Output[] = [];
    const chunks: Buffer[] = [];
    for await (const { header, chunk } of this.stub.ReadColumns(request)) {
      if (header) columns = header.columns;
      if (chunk) chunks.push(chunk.data);
    }
    const data = Buffer.concat(chunks);
    let begin = 0;
    return new Map(
      columns.map((column) => {
        const rows = sizes(column, request.sample_ids?.length ?? 0).map((size) => {
          const type = ELEMENTS[column.data_type as keyof typeof ELEMENTS];
          if (!type) throw new Error(`field '${column.name}': this example reads no ${column.data_type}`);
          const bytes = Uint8Array.prototype.slice.call(data, begin, (begin += size * type.BYTES_PER_ELEMENT));
          return new type(bytes.buffer);
        });
        return [column.name, rows];
      }),
    );
  }
}

/** The number of elements of each row. */
function sizes(column: Column__Output, rows: number): number[] {
  const one = column.row_shape.reduce((product, size) => product * size, 1);
  if (column.kind === "FIELD_KIND_DENSE") return Array(rows).fill(one);
  return int64s(column.row_lengths).map((length) => length * one);
}

/** Make a call with one request. */
export function call<Request, Response>(
  stub: DataPlaneServiceClient,
  method: (request: Request, done: grpc.requestCallback<Response>) => unknown,
  request: Request,
): Promise<Response> {
  return new Promise((resolve, reject) =>
    method.call(stub, request, (error, response) => (error ? reject(error) : resolve(response!))),
  );
}

type Frame<Header> = { header?: Header; chunk?: Chunk };

/** Make a call that carries columns: PutSamples or CommitClaim. All values are written, or none. */
export function write<Header, Response>(
  stub: DataPlaneServiceClient,
  method: (done: grpc.requestCallback<Response>) => grpc.ClientWritableStream<Frame<Header>>,
  header: Header,
  values: Values[],
): Promise<Response> {
  const data = Buffer.concat(values.map((value) => value.data));
  const filled = { ...header, columns: values.map((value) => value.column) };
  return new Promise((resolve, reject) => {
    const stream = method.call(stub, (error, response) => (error ? reject(error) : resolve(response!)));
    Readable.from(frames(filled, data)).pipe(stream as unknown as NodeJS.WritableStream);
  });
}

function* frames<Header>(header: Header, data: Buffer): Generator<Frame<Header>> {
  yield { header };
  for (let begin = 0; begin < data.length; begin += CHUNK_BYTES) {
    yield { chunk: { offset_bytes: begin, data: data.subarray(begin, begin + CHUNK_BYTES) } };
  }
}

/** A column of int64 with rows of different lengths. */
export function jagged(name: string, rows: number[][]): Values {
  const lengths = bytes(BigInt64Array.from(rows, (row) => BigInt(row.length)));
  const column: Column = { name, kind: "FIELD_KIND_JAGGED", data_type: "DATA_TYPE_INT64", row_lengths: lengths };
  return { column, data: bytes(BigInt64Array.from(rows.flat(), BigInt)) };
}

/** A column with one float32 for each row. */
export function floats(name: string, values: number[]): Values {
  const column: Column = { name, kind: "FIELD_KIND_DENSE", data_type: "DATA_TYPE_FLOAT32" };
  return { column, data: bytes(Float32Array.from(values)) };
}

function bytes(array: Elements): Buffer {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength);
}

function int64s(data: Buffer): number[] {
  return Array.from({ length: data.length / 8 }, (_, i) => Number(data.readBigInt64LE(8 * i)));
}

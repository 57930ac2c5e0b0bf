// The records of docs/wire.md, as far as a producer writes them. Byte for byte as the Python side writes them:
// tests/examples compares both with docs/wire-vectors.json.

import { encode } from "@msgpack/msgpack";
import { createHash, randomBytes } from "node:crypto";
import { crc32 } from "node:zlib";

export const COMMIT = 1;
export const ROLLBACK = 2;
export const NUDGE = 6;
export const FINAL_KINDS = [COMMIT, ROLLBACK];

let lastMs = 0;
let counter = 0;

/** A UUID version 7 as 16 bytes: 48 bits of wall clock, a counter that ascends within a millisecond, random bits. */
export function newId(now = Date.now()) {
  if (now > lastMs) {
    lastMs = now;
    counter = randomBytes(2).readUInt16BE() & 0x7ff;
  } else if (++counter > 0xfff) {
    lastMs += 1;
    counter = 0;
  }
  const id = randomBytes(16);
  id.writeUIntBE(lastMs, 0, 6);
  id.writeUInt16BE(0x7000 | counter, 6);
  id[8] = 0x80 | (id[8] & 0x3f);
  return id;
}

/** The id as UUID text. */
export function idText(id) {
  const hex = Buffer.from(id).toString("hex");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

/** The partition of an id: its CRC-32 modulo the number of partitions. */
export function partitionOf(id, partitions) {
  return crc32(Uint8Array.from(id)) % partitions;
}

const bytes = (value) => (value === null ? null : Uint8Array.from(typeof value === "string" ? Buffer.from(value) : value));

const sha256 = (parts) => createHash("sha256").update(Buffer.concat(parts)).digest();
const counted = (...numbers) => Buffer.concat(numbers.map((each) => { const b = Buffer.alloc(4); b.writeInt32BE(each); return b; }));

/** The digest of one message. */
function messageDigest({ topic, key, body, headers }) {
  const [name, rawKey, rawBody] = [topic, key ?? "", body].map((each) => Buffer.from(bytes(each)));
  const sorted = Object.entries(headers ?? {}).map((pair) => pair.map((each) => Buffer.from(bytes(each))));
  sorted.sort(([one], [other]) => Buffer.compare(one, other));
  const head = counted(name.length, key == null ? -1 : rawKey.length, rawBody.length, sorted.length);
  return sha256([head, name, rawKey, rawBody, ...sorted.flatMap(([n, v]) => [counted(n.length, v.length), n, v])]);
}

/** The digest of a transaction's messages and their order, for its fence row. */
export function digestOf(messages) {
  return sha256(messages.map(messageDigest));
}

/** A half record. `messages` are {topic, key: string | Uint8Array | null, body, headers}. */
export function encodeHalf(half) {
  const messages = half.messages.map(({ topic, key, body, headers }) => [topic, bytes(key), bytes(body), headers]);
  return encode([
    "txh", 1, bytes(half.transactionId), half.group, half.partition, half.generation ?? 0, half.bornMs, half.immunityMs,
    half.intervalMs ?? 0, half.checkMax ?? 0, half.fenced ?? false, half.by, messages,
    // Fields of copies of a half.
    0, 0, 0, -1, 0, new Uint8Array(0), "", [],
    // The identity of the database whose fence decides it; empty without a fence.
    bytes(half.database ?? new Uint8Array(0)),
    // Reserved, then: the fence row of a fenced half may be missing although it was committed; ask the listener then.
    // Last two fields of copies.
    0, new Uint8Array(0), -1, -1, -1, half.mayLackRow ?? false, -1, 0,
  ]);
}

/** An op record with one op of a producer. */
export function encodeOp({ kind, transactionId, generation, by, atMs }) {
  return encode(["txo", 1, [[kind, bytes(transactionId), generation, by, atMs, new Uint8Array(0), 0, 0, 0, ""]]]);
}

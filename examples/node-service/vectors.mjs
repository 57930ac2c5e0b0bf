// Reads test vectors (docs/wire-vectors.json) from standard input and prints how many of a producer's records come out
// byte for byte; any difference is an error.

import { readFileSync } from "node:fs";

import { digestOf, encodeHalf, encodeOp, idText, newId, partitionOf } from "./wire.mjs";

const { records, digests } = JSON.parse(readFileSync(0, "utf8"));
const plain = (value) => {
  if (value === null || typeof value !== "object") return value;
  if (typeof value.hex === "string" && Object.keys(value).length === 1) return Buffer.from(value.hex, "hex");
  if (Array.isArray(value)) return value.map(plain);
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, plain(each)]));
};
const headersOf = (headers) =>
  Object.fromEntries(Object.entries(headers).map(([n, v]) => [n, Buffer.isBuffer(v) ? Uint8Array.from(v) : v]));

let count = 0;
for (const { kind, name, hex, fields: raw } of records) {
  const fields = plain(raw);
  let found;
  if (kind === "half" && fields.generation === 0 && fields.folded_to === -1 && !fields.count && !fields.age_ms) {
    const messages = fields.messages.map((each) => ({ ...each, headers: headersOf(each.headers) }));
    found = encodeHalf({
      ...fields, messages, transactionId: fields.transaction_id, bornMs: fields.born_ms,
      immunityMs: fields.immunity_ms, intervalMs: fields.interval_ms, checkMax: fields.check_max,
      mayLackRow: fields.may_lack_row,
    });
  } else if (kind === "op" && fields.length === 1 && !fields[0].token.length && !fields[0].forced) {
    const [op] = fields;
    found = encodeOp({ ...op, transactionId: op.transaction_id, atMs: op.at_ms });
  } else {
    continue; // a checker's record
  }
  if (Buffer.from(found).toString("hex") !== hex) throw new Error(`${name}: ${Buffer.from(found).toString("hex")}`);
  count += 1;
}

for (const { name, messages, digest } of plain(digests)) {
  const found = digestOf(messages.map((each) => ({ ...each, headers: headersOf(each.headers) })));
  if (!found.equals(digest)) throw new Error(`${name}: ${found.toString("hex")}`);
  count += 1;
}

const ids = Array.from({ length: 20_000 }, () => newId());
const texts = ids.map(idText);
if (new Set(texts).size !== ids.length || texts.some((each, n) => n && each <= texts[n - 1])) throw new Error("ids");
console.log(JSON.stringify({ count, id: texts[0], partitions: [1, 4, 7].map((each) => partitionOf(ids[0], each)) }));

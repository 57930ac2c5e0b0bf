// A shop: POST /orders takes an order and announces it; POST /check answers txcore's checker (docs/callback-openapi.json).
//
//   NATS_URL  GROUP  TOPIC  PORT  ORDERS (a file)  CHECK_SECRET (optional)
//   CRASH_AT=prepared|committed|published kills the process there, for tests and for trying it.

import { connect } from "@nats-io/transport-node";
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

import { Orders } from "./orders.mjs";
import { Producer } from "./producer.mjs";

const { NATS_URL = "nats://127.0.0.1:4222", GROUP = "orders", TOPIC = "orders.created", PORT = "8080" } = process.env;
const { ORDERS = "orders.jsonl", CHECK_SECRET = "", CRASH_AT = "" } = process.env;
const BODY_MAX = 1 << 20;
const SKEW_S = 300;

const connection = await connect({ servers: NATS_URL });
const producer = await Producer.open(connection, GROUP);
const orders = new Orders(ORDERS);

function crash(place) {
  if (CRASH_AT === place) process.kill(process.pid, "SIGKILL");
}

async function takeOrder(body) {
  const order = JSON.parse(body);
  const message = { topic: TOPIC, key: String(order.number ?? ""), body: JSON.stringify(order), headers: { kind: "order" } };
  const prepared = await producer.prepare([message]); // 1. the half, durable
  crash("prepared");
  try {
    orders.commit(prepared.id, order); // 2. the local transaction
  } catch (error) {
    return [409, { transaction: prepared.id, end: await producer.rollback(prepared), error: error.message }];
  }
  crash("committed");
  // 3. targets, then the op. After any failure from here on, the check finds the order committed, and delivers.
  const end = await producer.commit(prepared, { afterTargets: () => crash("published") }).catch(() => "UNKNOWN");
  return [201, { transaction: prepared.id, end }];
}

function answerCheck(body, signature) {
  if (CHECK_SECRET && !isSigned(body, signature)) return [401, { error: "the signature is missing or wrong" }];
  return [200, { state: orders.decide(JSON.parse(body).transaction_id) }];
}

function isSigned(body, signature = "") {
  const [, time, given] = /^t=(\d+),v1=([0-9a-f]{64})$/.exec(signature) ?? [];
  if (!time || Math.abs(Date.now() / 1000 - Number(time)) > SKEW_S) return false;
  const expected = createHmac("sha256", CHECK_SECRET).update(`${time}.`).update(body).digest();
  return timingSafeEqual(expected, Buffer.from(given, "hex"));
}

async function read(request) {
  const chunks = [];
  let size = 0;
  for await (const chunk of request) {
    if ((size += chunk.length) > BODY_MAX) throw new Error("the body is too large");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

const server = createServer(async (request, response) => {
  let status = 404;
  let answer = { error: "POST /orders or /check" };
  try {
    if (request.method === "POST" && request.url === "/orders") {
      [status, answer] = await takeOrder(await read(request));
    } else if (request.method === "POST" && request.url === "/check") {
      [status, answer] = answerCheck(await read(request), request.headers["txcore-signature"]);
    }
  } catch (error) {
    [status, answer] = [500, { error: error.message }]; // to the checker: no answer, so it asks again
  }
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(answer));
});
server.listen(Number(PORT), "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${server.address().port}`));

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, async () => {
    server.close();
    await connection.drain();
    orders.close();
    process.exit(0);
  });
}

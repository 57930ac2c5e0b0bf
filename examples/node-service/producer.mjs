// A transactional producer on NATS JetStream: half first, targets and op last, in this order and never otherwise.
// Streams and subjects are those of the backend's page (plugins/nats/README.md); `txcore topics create` or a checker
// has made them.

import { decode } from "@msgpack/msgpack";
import { jetstream, jetstreamManager } from "@nats-io/jetstream";
import { headers } from "@nats-io/transport-node";
import { randomBytes } from "node:crypto";

import { COMMIT, encodeHalf, encodeOp, FINAL_KINDS, idText, newId, NUDGE, partitionOf, ROLLBACK } from "./wire.mjs";

const DELIVERY_MS = 2000;
const WRONG_LAST_SEQUENCE = [10071, 10164];

/** How an end went, as in txcore: ACCEPTED, ALREADY_DONE, CONFLICT, TOO_LATE; an error means UNKNOWN. */
export class Producer {
  static async open(connection, group, { immunityMs = 6000 } = {}) {
    if (immunityMs <= 2 * DELIVERY_MS) throw new Error("immunity must leave time to deliver");
    const manager = await jetstreamManager(connection);
    const info = await manager.streams.info(`txc_${group}_half`);
    return new Producer(connection, manager, group, info.config.subjects.length, immunityMs);
  }

  constructor(connection, manager, group, partitions, immunityMs) {
    Object.assign(this, { connection, manager, group, partitions, immunityMs });
    this.stream = jetstream(connection, { timeout: DELIVERY_MS });
    this.by = `node:${randomBytes(6).toString("hex")}`;
  }

  /** Make the half durable. Only when this returns may the local transaction commit; an error means: do not. */
  async prepare(messages) {
    const transactionId = newId();
    const partition = partitionOf(transactionId, this.partitions);
    const { group, by, immunityMs } = this;
    const body = encodeHalf({ transactionId, group, partition, bornMs: Date.now(), immunityMs, by, messages });
    // The clock is read before the half leaves: from then on immunity runs.
    const giveWayMs = performance.now() + immunityMs - 2 * DELIVERY_MS;
    const about = headers();
    about.set("txcore-id", idText(transactionId));
    about.set("txcore-generation", "0");
    await this.stream.publish(`txc.${group}.h.${partition}`, body, { headers: about });
    return { id: idText(transactionId), transactionId, partition, messages, giveWayMs };
  }

  /** The local transaction has committed: publish every target, then the op. */
  async commit(prepared, { afterTargets = () => {} } = {}) {
    if (performance.now() > prepared.giveWayMs) return this.#giveWay(prepared);
    const holder = await this.#holder(prepared);
    if (holder) return holder === COMMIT ? "ALREADY_DONE" : "CONFLICT";
    for (const [index, message] of prepared.messages.entries()) {
      const id = `${prepared.id}:${index}`;
      const about = headers();
      for (const [name, value] of Object.entries(message.headers ?? {})) about.set(name, value);
      about.set("txcore-id", id);
      about.set("txcore-group", this.group);
      about.set("txcore-by", this.by);
      if (message.key) about.set("txcore-key", message.key);
      await this.stream.publish(message.topic, message.body, { headers: about, msgID: id });
    }
    await afterTargets();
    return this.#end(prepared, COMMIT);
  }

  /** The local transaction was rolled back, for certain: only the op. */
  async rollback(prepared) {
    if (performance.now() > prepared.giveWayMs) return this.#giveWay(prepared);
    return this.#end(prepared, ROLLBACK);
  }

  /** A checker may be deciding by now: write only the request for an early check. */
  async #giveWay(prepared) {
    const { subject, record, about } = this.#op(prepared, NUDGE, "j");
    await this.stream.publish(subject, record, { headers: about });
    return "TOO_LATE";
  }

  async #end(prepared, kind) {
    const { subject, record, about } = this.#op(prepared, kind, "o");
    try {
      // The first final op holds: the subject must be empty.
      await this.stream.publish(subject, record, { headers: about, expect: { lastSubjectSequence: 0 } });
      return "ACCEPTED";
    } catch (error) {
      if (!WRONG_LAST_SEQUENCE.includes(error.code ?? error.api_error?.err_code)) throw error;
      return (await this.#holder(prepared)) === kind ? "ALREADY_DONE" : "CONFLICT";
    }
  }

  #op({ transactionId, partition, id }, kind, place) {
    const about = headers();
    about.set("txcore-id", id);
    about.set("txcore-generation", "0");
    about.set("txcore-kind", { [COMMIT]: "COMMIT", [ROLLBACK]: "ROLLBACK", [NUDGE]: "NUDGE" }[kind]);
    const subject = `txc.${this.group}.op.${partition}.${place}.${transactionId.toString("hex")}`;
    return { subject, about, record: encodeOp({ kind, transactionId, generation: 0, by: this.by, atMs: Date.now() }) };
  }

  /** The final op that holds already, if there is one. */
  async #holder({ transactionId, partition }) {
    const subject = `txc.${this.group}.op.${partition}.o.${transactionId.toString("hex")}`;
    const found = await this.manager.streams.getMessage(`txc_${this.group}_op`, { last_by_subj: subject });
    const kind = found && decode(found.data)[2][0][0];
    return FINAL_KINDS.includes(kind) ? kind : 0;
  }
}

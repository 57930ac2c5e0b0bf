// The service's "database": an append-only file, flushed before a write counts. Yours is another one. The essential part:
// a check can close a transaction that it does not find, so that it never commits later.

import { appendFileSync, closeSync, existsSync, fsyncSync, ftruncateSync, openSync, readFileSync } from "node:fs";

export class Orders {
  #states = new Map();

  constructor(file) {
    const bytes = existsSync(file) ? readFileSync(file) : Buffer.alloc(0);
    const whole = bytes.subarray(0, bytes.lastIndexOf("\n") + 1);
    for (const line of whole.toString().split("\n").filter(Boolean)) {
      const { id, state } = JSON.parse(line);
      this.#states.set(id, state);
    }
    this.file = openSync(file, "a");
    ftruncateSync(this.file, whole.length); // what was being written when the process died was never promised
  }

  /** Commit an order under its transaction's id; refused once a check has closed it. */
  commit(id, order) {
    if (this.#states.get(id) === "ROLLBACK") throw new Error(`a check has closed ${id}`);
    this.#write({ id, state: "COMMIT", order });
  }

  /** Answer a check, for ever: a transaction that is not committed by now never commits. */
  decide(id) {
    if (!this.#states.has(id)) this.#write({ id, state: "ROLLBACK" });
    return this.#states.get(id);
  }

  close() {
    closeSync(this.file);
  }

  #write(record) {
    appendFileSync(this.file, `${JSON.stringify(record)}\n`);
    fsyncSync(this.file);
    this.#states.set(record.id, record.state);
  }
}

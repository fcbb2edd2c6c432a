// The Node client of the family as a program that reads requests from standard input.
//
//     node node_client.js URL QUEUE
//
// In: `["lease", 30, 0.2]`, a JSON line per request. Out: `{"answer": …}` or `{"error": …}`, a line for each.
// Data travels as base64.
"use strict";

const readline = require("node:readline");
const { Redis } = require("ioredis");
// Its "main" points at TypeScript, so the compiled file is named.
const { Item, KeyPrefix, WorkQueue } = require("@mevitae/redis-work-queue/dist/WorkQueue.js");

const [url, name] = process.argv.slice(2);
const db = new Redis(url);
const queue = new WorkQueue(new KeyPrefix(name));

const verbs = {
  add: (id, data) => queue.addItem(db, new Item(Buffer.from(data, "base64"), id)),
  // With a timeout of 0, do not wait.
  lease: async (seconds, timeout) => {
    const item = await queue.lease(db, seconds, timeout > 0, timeout);
    return item && [item.id, item.data.toString("base64")];
  },
  complete: (id) => queue.complete(db, new Item(Buffer.alloc(0), id)),
  // As in docs/pages/how-to/share.md.
  result: async (id) => (await db.getBuffer(`${name}:result:${id}`))?.toString("base64"),
  failure: async (id) => (await db.hgetBuffer(`${name}:dead:${id}`, "error"))?.toString("base64"),
  light_clean: () => queue.lightClean(db),
  queue_len: () => queue.queueLen(db),
  processing: () => queue.processing(db),
};

async function answer(line) {
  const [verb, ...args] = JSON.parse(line);
  try {
    return { answer: (await verbs[verb](...args)) ?? null };
  } catch (error) {
    return { error: String(error) };
  }
}

async function main() {
  const requests = readline.createInterface({ input: process.stdin });
  requests.on("close", () => process.exit(0)); // also while a request hangs
  for await (const line of requests) {
    process.stdout.write(JSON.stringify(await answer(line)) + "\n");
  }
}

main();

// BullMQ on Node, with ioredis, with a queue split by hand: `python -m benchmarks.shards` runs it.
//
// - There is a Queue and a Worker for each part, each with the prefix `{emails:<part>}`, as keys of a queue share a hash
//   tag. A job goes to the part of its number.
// - All of a process share one connection, as BullMQ's guide advises; a Worker makes one more, which blocks.
// - The concurrency of a process is divided over its Workers.
"use strict";

const { Cluster, Redis } = require("ioredis");
const { Queue, Worker } = require("bullmq");

const CONCURRENCY = 100;
const CHUNK = 1000;
const REPORT_MS = 50;

const say = (...words) => process.stdout.write(words.join(" ") + "\n");
const now = () => Number(process.hrtime.bigint()) / 1e9; // the clock of Python's time.monotonic(), on Linux
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function open(url, parts, cluster) {
  const { hostname: host, port } = new URL(url);
  const options = { maxRetriesPerRequest: null };
  const connection = cluster
    ? new Cluster([{ host, port: Number(port) }], { redisOptions: options, slotsRefreshTimeout: 30000 })
    : new Redis({ host, port: Number(port), ...options });
  connection.on("error", () => {}); // it connects again by itself
  return Array.from({ length: parts }, (_, part) => ({ connection, prefix: `{emails:${part}}` }));
}

async function produce(places) {
  const queues = places.map((place) => new Queue("emails", place));
  await Promise.all(queues.map((queue) => queue.waitUntilReady()));
  const opts = { removeOnComplete: true, removeOnFail: true };
  say("ready");
  for await (const line of require("node:readline").createInterface({ input: process.stdin })) {
    const [count, rate] = line.split(" ").map(Number);
    if (rate) {
      for (let number = 0; number < count; number++) {
        await sleep((1000 / rate) * 2 * Math.random());
        queues[number % queues.length].add("job", { at: now() }, opts);
      }
    }
    for (let first = 0; !rate && first < count; first += CHUNK) {
      const jobs = queues.map(() => []);
      for (let number = first; number < Math.min(first + CHUNK, count); number++)
        jobs[number % queues.length].push({ name: "job", data: { text: "x".repeat(100) }, opts });
      await Promise.all(queues.map((queue, part) => jobs[part].length && queue.addBulk(jobs[part])));
    }
  }
}

async function work(places) {
  let ran = 0;
  let reported = 0;
  const run = async (job) => {
    if (job.data.at) say("late", now() - job.data.at);
    ran++;
  };
  const concurrency = Math.ceil(CONCURRENCY / places.length);
  const workers = places.map((place) => new Worker("emails", run, { ...place, concurrency }));
  await Promise.all(workers.map((worker) => worker.waitUntilReady()));
  say("ready");
  setInterval(() => reported < ran && say("ran", (reported = ran)), REPORT_MS);
}

const [part, url, parts, cluster] = process.argv.slice(2);
({ produce, work })[part](open(url, Number(parts), cluster === "1"));

// BullMQ on Node, with ioredis, under Sentinel or on a cluster: what `python -m tests.failover.rivals` runs.
//
// - A worker has the options that BullMQ's guide demands of it: no limit of retries per request. Its lock and the search
//   for stalled jobs last as long as the leases of Leasequeue in these rows.
// - A producer gives a command up after a second, as the clients in Python do.
"use strict";

const { Cluster, Redis } = require("ioredis");
const { Queue, Worker } = require("bullmq");

const PAUSE = 50;
const LEASE = 2000;

const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");
const now = () => Number(process.hrtime.bigint()) / 1e9; // the clock of Python's time.monotonic(), on Linux
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function open({ cluster, places, login }, options) {
  const nodes = places.map(([host, port]) => ({ host, port }));
  const connection = cluster
    ? new Cluster(nodes, { redisOptions: options })
    : new Redis({ sentinels: nodes, name: "main", ...login, ...options });
  connection.on("error", () => {}); // it connects again by itself
  return connection;
}

async function produce(where) {
  const options = { connection: open(where, { commandTimeout: 1000, maxRetriesPerRequest: 1 }), prefix: where.tag };
  const queue = new Queue("jobs", options);
  queue.on("error", () => {});
  for (let number = 0; ; number++) {
    const called = now();
    for (;;) {
      try {
        await queue.add("job", { number }, { jobId: `job-${number}`, removeOnComplete: true });
        break;
      } catch {
        await sleep(PAUSE);
      }
    }
    say({ number, called, added: now() });
    await sleep(PAUSE);
  }
}

function work(where) {
  const worker = new Worker("jobs", async (job) => say({ number: job.data.number, ran: now() }), {
    connection: open(where, { maxRetriesPerRequest: null }),
    prefix: where.tag,
    lockDuration: LEASE,
    stalledInterval: LEASE,
    maxStalledCount: 100,
  });
  worker.on("error", () => {});
}

const [part, where] = process.argv.slice(2);
({ produce, work })[part](JSON.parse(where));

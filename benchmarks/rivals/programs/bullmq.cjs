// BullMQ on Node, with ioredis. It speaks the protocol that protocol.py describes.
//
// - It is at-least-once: a job stays in the active list, under a lock that is renewed, until it has ended.
// - Finished jobs are deleted at once (removeOnComplete), which is less work than keeping them.
// - The script that finishes a job also fetches the next one. Its default is 1 at once; the best number for jobs
//   that do nothing is below.
// - In a round trip the caller waits with QueueEvents, which a stream notifies.
// - addBulk adds many at once.
"use strict";

const { Queue, QueueEvents, Worker } = require("bullmq");

const CONCURRENCY = 100;
const CHUNK = 1000;

const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");
const now = () => Number(process.hrtime.bigint()); // the clock of Python's time.monotonic_ns(), on Linux
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const lines = () => require("node:readline").createInterface({ input: process.stdin });

function connection(url) {
  const { hostname, port, pathname } = new URL(url);
  return { host: hostname, port: Number(port), db: Number(pathname.slice(1) || 0) };
}

async function produce({ url, results }) {
  const queue = new Queue("jobs", { connection: connection(url) });
  await queue.waitUntilReady();
  const events = results ? new QueueEvents("jobs", { connection: connection(url) }) : null;
  await events?.waitUntilReady();
  const options = { removeOnComplete: true, removeOnFail: true };
  say({ ready: true });
  for await (const line of lines()) {
    const { first, count, ms, many, pause } = JSON.parse(line);
    if (many) {
      const began = now();
      for (let at = first; at < first + count; at += CHUNK) {
        const size = Math.min(CHUNK, first + count - at);
        await queue.addBulk(
          Array.from({ length: size }, (_, step) => ({ name: "job", data: { number: at + step, ms }, opts: options })),
        );
      }
      say({ seconds: (now() - began) / 1e9 });
      continue;
    }
    const each = [];
    for (let number = first; number < first + count; number++) {
      if (pause) await sleep(1000 * pause * (0.5 + Math.random()));
      const began = now();
      const added = await queue.add("job", { number, ms }, results ? {} : options);
      if (results && (await added.waitUntilFinished(events)) !== number) throw new Error("another result");
      each.push([began, now()]);
    }
    say({ each });
  }
  process.exit(0);
}

function work({ url, runs, warm, concurrency, announces }, before = async () => {}) {
  const ran = [];
  const moments = [];
  const job = async (its) => {
    const { number, ms } = its.data;
    const began = now();
    await before(its);
    if (announces) say({ began: number, at: began, pid: process.pid });
    if (ms) await sleep(ms);
    const ended = ran.push([number, began]);
    if (ended === warm || ended === runs) {
      const { user, system } = process.cpuUsage();
      moments.push({ at: now(), cpu: (user + system) / 1e6 });
      say({ ended });
    }
    return number;
  };
  new Worker("jobs", job, { connection: connection(url), concurrency: concurrency ?? CONCURRENCY });
  lines().once("line", () => {
    process.stdout.write(JSON.stringify({ runs: ran, moments }) + "\n", () => process.exit(0));
  });
}

if (require.main === module) {
  const [part, told] = process.argv.slice(2);
  ({ produce, work })[part](JSON.parse(told));
}
module.exports = { connection, lines, now, say, work };

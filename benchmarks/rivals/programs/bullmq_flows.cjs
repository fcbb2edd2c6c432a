// BullMQ's flows: trees of jobs, each of which waits for its children; bullmq.cjs says how it is set up.
//
// - A chain is a tree without branches: the last stage is its root. A job is moved to the waiting ones by the script that
//   finishes the last of its children.
// - A job asks for the results of its children with another command, getChildrenValues.
"use strict";

const { FlowProducer } = require("bullmq");
const { connection, lines, now, say, work } = require("./bullmq.cjs");

// Jobs of one addBulk.
const CHUNK = 1000;
const opts = { removeOnComplete: true, removeOnFail: true };
const node = (number, children) => ({ name: "job", queueName: "jobs", data: { number, ms: 0 }, opts, children });

function run(first, { size, joins }) {
  const last = first + size - 1;
  if (joins) return node(last, Array.from({ length: size - 1 }, (_, at) => node(first + at)));
  let tree;
  for (let number = first; number <= last; number++) tree = node(number, tree && [tree]);
  return tree;
}

async function produce({ url, flow }) {
  const producer = new FlowProducer({ connection: connection(url) });
  await producer.waitUntilReady();
  say({ ready: true });
  for await (const line of lines()) {
    const { first, count } = JSON.parse(line);
    const began = now();
    const together = Math.max(1, Math.floor(CHUNK / flow.size)) * flow.size;
    for (let at = first; at < first + count; at += together) {
      const runs = [];
      for (let one = at; one < Math.min(at + together, first + count); one += flow.size) runs.push(run(one, flow));
      await producer.addBulk(runs);
    }
    say({ seconds: (now() - began) / 1e9 });
  }
  process.exit(0);
}

// Returns what a job does first: to compare the results of those that it waits for.
function read({ size, joins }) {
  return async (job) => {
    const { number } = job.data;
    const place = number % size;
    if (joins ? place < size - 1 : place === 0) return;
    const found = Object.values(await job.getChildrenValues()).sort((one, other) => one - other);
    const expected = joins ? Array.from({ length: size - 1 }, (_, at) => number - size + 1 + at) : [number - 1];
    if (`${found}` !== `${expected}`) throw new Error(`stage ${number} was passed ${found}`);
  };
}

const [part, told] = process.argv.slice(2);
const task = JSON.parse(told);
if (part === "produce") produce(task);
else work(task, read(task.flow));

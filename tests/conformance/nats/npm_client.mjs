// What the npm clients see of a server: one JSON line for each step, without ids and times.
import { connect } from "@nats-io/transport-node";
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";

const tell = (step, value) => console.log(JSON.stringify([step, value]));
const failing = async (step, promise) => {
  try {
    tell(step, ["unexpected", await promise]);
  } catch (error) {
    tell(step, [error.constructor.name, error.message]);
  }
};

const client = await connect({ servers: process.argv[2], maxReconnectAttempts: 0 });
tell("server", [client.info.proto, client.info.headers, client.info.jetstream]);

// -- core
const echo = client.subscribe("echo", { callback: (_, message) => message.respond(message.data) });
tell("request", (await client.request("echo", "hi")).string());
await failing("no responders", client.request("nobody", ""));
echo.unsubscribe();

// -- streams
const manager = await jetstreamManager(client);
const streams = jetstream(client);
const info = await manager.streams.add({ name: "S", subjects: ["s.>"], allow_direct: true });
tell("add", [info.config.name, info.config.subjects, info.state.messages]);
for (const id of ["a", "b", "b"]) {
  const ack = await streams.publish("s.x", id, { msgID: id });
  tell("publish", [ack.stream, ack.seq, ack.duplicate]);
}
await streams.publish("s.y", "c");
await failing("expectation", streams.publish("s.x", "", { expect: { lastSequence: 99 } }));
await failing("no stream", streams.publish("nowhere", ""));

// -- consumers
const created = await manager.consumers.add("S", {
  durable_name: "d",
  ack_policy: AckPolicy.Explicit,
});
tell("consumer", [created.name, created.num_pending, created.config.max_waiting]);
const consumer = await streams.consumers.get("S", "d");
const next = await consumer.next({ expires: 5000 });
tell("next", [next.subject, next.string(), next.seq, next.info.deliveryCount]);
tell("ack", await next.ackAck());
for await (const message of await consumer.fetch({ max_messages: 5, expires: 1000 })) {
  tell("fetch", [message.subject, message.string(), message.seq]);
  message.ack();
}
const consuming = await consumer.consume({ max_messages: 10 });
setTimeout(() => streams.publish("s.z", "late"), 50);
for await (const message of consuming) {
  tell("consume", [message.subject, message.string()]);
  await message.ackAck();
  break;
}
const after = await consumer.info();
tell("info", [after.delivered.stream_seq, after.ack_floor.stream_seq, after.num_ack_pending]);
const ordered = await streams.consumers.get("S");
let seen = 0;
for await (const message of await ordered.fetch({ max_messages: 4, expires: 5000 })) {
  tell("ordered", [message.subject, message.string(), message.seq]);
  if (++seen === 4) break;
}

// -- direct gets
const direct = await manager.direct.getMessage("S", { seq: 2 });
tell("direct", [direct.subject, direct.string(), direct.seq]);
tell("missing", await manager.direct.getMessage("S", { seq: 99 }));
for await (const message of await manager.direct.getBatch("S", { seq: 1, batch: 2 })) {
  tell("batch", [message.subject, message.seq]);
}
const last = await manager.direct.getLastMessagesFor("S", { multi_last: ["s.x", "s.y"] });
for await (const message of last) tell("last", [message.subject, message.seq]);
tell("purge", await manager.streams.purge("S", { filter: "s.x" }));
for await (const stream of manager.streams.list()) {
  tell("list", [stream.config.name, stream.state.messages, stream.state.last_seq]);
}

// -- key-value
const bucket = await new Kvm(client).create("B", { history: 3 });
const watch = await bucket.watch();
const watched = (async () => {
  const changes = [];
  for await (const entry of watch) {
    changes.push([entry.key, entry.operation, entry.string(), entry.revision]);
    if (changes.length === 6) break;
  }
  return changes;
})();
tell("put", [await bucket.put("k", "1"), await bucket.put("k", "2")]);
tell("create", await bucket.create("l", "1"));
await failing("create again", bucket.create("l", "2"));
tell("update", await bucket.update("l", "3", 3));
await failing("update wrong", bucket.update("l", "4", 1));
const entry = await bucket.get("k");
tell("get", [entry.string(), entry.revision, entry.operation]);
tell("get missing", await bucket.get("m"));
await bucket.delete("k");
tell("history", await history("k"));
await bucket.purge("l");
tell("keys", await keys());
tell("watched", await watched);
const status = await bucket.status();
tell("status", [status.bucket, status.values, status.history]);
tell("destroy", await bucket.destroy());
await client.close();

async function history(key) {
  const found = [];
  for await (const one of await bucket.history({ key })) {
    found.push([one.operation, one.string(), one.revision]);
  }
  return found;
}

async function keys() {
  const found = [];
  for await (const key of await bucket.keys()) found.push(key);
  return found;
}

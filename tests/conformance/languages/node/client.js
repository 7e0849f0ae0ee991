// A client for Node.js, with @grpc/grpc-js and @grpc/proto-loader. See ../test_languages.py.
"use strict";

const readline = require("node:readline");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, protos] = process.argv.slice(2);
const loaded = grpc.loadPackageDefinition(
  loader.loadSync("recsys/v1/predict.proto", { includeDirs: [protos], keepCase: true, defaults: true }),
);
const client = new loaded.recsys.v1.PredictionService(address, grpc.credentials.createInsecure());

/** Numbers as little-endian bytes. */
function packed(text, size, write) {
  const numbers = text === "-" ? [] : text.split(",");
  const out = Buffer.alloc(size * numbers.length);
  numbers.forEach((number, i) => write(out, number, size * i));
  return out;
}

const floats = (text) => packed(text, 4, (out, number, at) => out.writeFloatLE(Number(number), at));

function answer(request) {
  return new Promise((resolve) => {
    client.Predict(request, { deadline: Date.now() + 60_000 }, (error, response) => {
      if (error) return resolve({ code: error.code, message: error.details });
      const outputs = {};
      for (const { name, values } of response.outputs) {
        outputs[name] = Array.from({ length: values.length / 4 }, (_, i) => values.readFloatLE(4 * i));
      }
      return resolve({ outputs });
    });
  });
}

async function main() {
  let request = { dense: [], sparse: [] };
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const words = line.split(" ");
    if (words[0] === "rows") {
      request.num_rows = Number(words[1]);
    } else if (words[0] === "dense") {
      request.dense.push({ name: words[1], values: floats(words[2]) });
    } else if (words[0] === "ids") {
      request.sparse.push({
        name: words[1],
        lengths: packed(words[2], 4, (out, number, at) => out.writeInt32LE(Number(number), at)),
        values: packed(words[3], 8, (out, number, at) => out.writeBigInt64LE(BigInt(number), at)),
        weights: floats(words[4]),
      });
    } else {
      console.log(JSON.stringify(await answer(request)));
      request = { dense: [], sparse: [] };
    }
  }
  client.close();
}

main();

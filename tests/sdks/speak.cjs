// Calls the JavaScript SDK 3.x or 4.x, out of the current folder: arguments are the base URL, the key, and how the SDK is
// loaded. `require` brings the package `ws` (credential in a header); `import` does not, so that Node's own WebSocket is
// used, as in a browser (credential in the query). With a model and a voice besides, it speaks with those and does not
// listen. Prints one line a call.
const { createRequire } = require("node:module");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

const [baseURL, apiKey, kind, model = "sonic-3", id = "v1"] = process.argv.slice(2);
const listens = process.argv.length === 5;
const resolver = createRequire(path.join(process.cwd(), "here.cjs"));

function load(name) {
  const found = resolver.resolve(name);
  return kind === "require" ? resolver(found) : import(pathToFileURL(found.replace(/\.js$/, ".mjs")).href);
}

async function main() {
  const { default: Cartesia } = await load("@cartesia/cartesia-js");
  const { ManualFinalizeWS } = await load("@cartesia/cartesia-js/resources/stt/manual-finalize/ws");
  const { AutoFinalizeWS } = await load("@cartesia/cartesia-js/resources/stt/auto-finalize/ws");
  const sdk = new Cartesia({ apiKey, baseURL });
  const wav = { container: "wav", encoding: "pcm_s16le", sample_rate: 16000 };
  const raw = { ...wav, container: "raw" };
  const audio = { encoding: "pcm_s16le", sample_rate: 16000 };
  const voice = { mode: "id", id };
  const speech = { model_id: model, transcript: "Hi", voice };

  const answer = await sdk.tts.generate({ ...speech, output_format: wav });
  console.log("bytes", (await answer.arrayBuffer()).byteLength);
  const told = [];
  for await (const event of await sdk.tts.generateSSE({ ...speech, output_format: raw })) told.push(event.type);
  console.log("sse", ...told);
  if (listens) {
    const file = new File([new Uint8Array(40)], "a.wav");
    console.log("stt", (await sdk.stt.transcribe({ file, model: "ink-whisper", language: "en" })).text);
  }
  console.log("voices", (await sdk.voices.list({ limit: 1 })).data[0].id);
  const refused = sdk.tts.generate({ ...speech, model_id: "sonic-9", output_format: wav });
  await refused.then(() => console.log("not refused"), (error) => console.log("refused", error.status));

  const socket = await sdk.tts.websocket();
  const context = socket.context({ model_id: model, voice, output_format: raw });
  await context.push({ transcript: "Hello there" });
  await context.no_more_inputs();
  const spoken = [];
  for await (const event of context.receive()) spoken.push(event.type);
  console.log("socket", ...spoken);
  socket.close();
  if (listens) await listen(sdk, audio, ManualFinalizeWS, AutoFinalizeWS);
}

async function listen(sdk, audio, ManualFinalizeWS, AutoFinalizeWS) {
  const manual = new ManualFinalizeWS(sdk, { ...audio, model: "ink-whisper", language: "en" });
  const heard = [];
  for await (const event of manual.stream()) {
    if (event.type === "open") for (const data of [new Uint8Array(3200), "finalize", "close"]) manual.sendRaw(data);
    if (event.type === "message") heard.push(event.message.type);
    if (event.type === "error") throw event.error;
  }
  console.log("finalized", ...heard);

  const auto = new AutoFinalizeWS(sdk, { ...audio, model: "ink-2" });
  const turns = [];
  for await (const event of auto.stream()) {
    if (event.type === "open") auto.sendRaw(new Uint8Array(3200));
    if (event.type === "message") turns.push(event.message.type);
    if (event.type === "error") throw event.error;
  }
  console.log("turns", ...turns);
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});

// Calls the JavaScript SDK 3.x or 4.x: arguments are the base URL and the key. Prints one line a call.
const { createRequire } = require("node:module");
const path = require("node:path");
const load = createRequire(path.join(process.cwd(), "here.cjs"));
const module_ = load("@cartesia/cartesia-js");
const Cartesia = module_.default || module_.Cartesia;

async function main() {
  const sdk = new Cartesia({ apiKey: process.argv[3], baseURL: process.argv[2] });
  const wav = { container: "wav", encoding: "pcm_s16le", sample_rate: 16000 };
  const voice = { mode: "id", id: "v1" };
  const answer = await sdk.tts.generate({ model_id: "sonic-3", transcript: "Hi", voice, output_format: wav });
  console.log("bytes", (await answer.arrayBuffer()).byteLength);
  const file = new File([new Uint8Array(40)], "a.wav");
  console.log("stt", (await sdk.stt.transcribe({ file, model: "ink-whisper", language: "en" })).text);
  console.log("voices", (await sdk.voices.list({ limit: 1 })).data[0].id);
  const refused = sdk.tts.generate({ model_id: "sonic-9", transcript: "Hi", voice, output_format: wav });
  await refused.then(() => console.log("not refused"), (error) => console.log("refused", error.status));
}

main();

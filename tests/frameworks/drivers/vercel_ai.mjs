// Vercel AI SDK, a streamed text on the wire that is named.

import { createOpenAI } from "@ai-sdk/openai";
import { streamText } from "ai";

const openai = createOpenAI({ baseURL: "http://127.0.0.1:8080/v1", apiKey: "sk-or-v1-..." });

const [wire] = process.argv.slice(2); // chat or responses
const { textStream } = streamText({
  model: openai[wire]("deepseek/deepseek-v3.2"),
  prompt: "Write the file.",
  onError({ error }) {
    console.error(error);
    process.exitCode = 1;
  },
});
for await (const text of textStream) {
  process.stdout.write(text);
}

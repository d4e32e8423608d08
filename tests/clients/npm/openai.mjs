// openai: vectors in the encoding of its own choice and as floats, the models, an unknown model.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const given = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI({ baseURL: `${given.url}/v1`, apiKey: "none", maxRetries: 0 });
const body = { model: given.embedder, input: given.documents };
const own = await client.embeddings.create(body);
const floats = await client.embeddings.create({ ...body, encoding_format: "float", dimensions: 64 });
const models = await client.models.list();
const unknown = await client.embeddings
  .create({ model: "text-embedding-3-small", input: "a" })
  .then(() => null, (error) => [error.constructor.name, error.status, error.code]);
console.log(JSON.stringify({
  own: own.data.map((item) => Array.from(item.embedding)),
  floats: floats.data.map((item) => item.embedding),
  models: models.data.map((model) => model.id),
  unknown,
}));

// @huggingface/inference: feature extraction from TEI's route.
import { readFileSync } from "node:fs";
import { InferenceClient } from "@huggingface/inference";

const given = JSON.parse(readFileSync(0, "utf8"));
const client = new InferenceClient("none", { endpointUrl: `${given.url}/m/${given.embedder}/embed` });
const many = await client.featureExtraction({ inputs: given.documents });
const one = await client.featureExtraction({ inputs: given.documents[0] });
const refused = await new InferenceClient("none", { endpointUrl: `${given.url}/m/${given.reranker}/embed` })
  .featureExtraction({ inputs: "a" })
  .then(() => null, (error) => error.message);
console.log(JSON.stringify({ many, one, refused }));

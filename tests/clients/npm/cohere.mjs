// cohere-ai: rerank and embed in both versions of the API.
import { readFileSync } from "node:fs";
import { CohereClient, CohereClientV2 } from "cohere-ai";

const given = JSON.parse(readFileSync(0, "utf8"));
const { url, query, documents, embedder, reranker } = given;
const v1 = new CohereClient({ token: "none", environment: url });
const v2 = new CohereClientV2({ token: "none", environment: url });
const rankedV1 = await v1.rerank({ model: reranker, query, documents, returnDocuments: true });
const rankedV2 = await v2.rerank({ model: reranker, query, documents, topN: 3 });
const embedding = { model: embedder, texts: documents, inputType: "search_document" };
const embeddedV1 = await v1.embed(embedding);
const embeddedV2 = await v2.embed({ ...embedding, embeddingTypes: ["float"] });
const seen = await v2.embed({
  model: given.image_text, images: [given.picture], inputType: "image", embeddingTypes: ["float"],
});
console.log(JSON.stringify({
  ranked_v1: rankedV1.results.map((result) => [result.index, result.relevanceScore]),
  documents_v1: rankedV1.results.map((result) => result.document.text),
  ranked_v2: rankedV2.results.map((result) => [result.index, result.relevanceScore]),
  embedded_v1: embeddedV1.embeddings,
  embedded_v2: embeddedV2.embeddings.float,
  seen: seen.embeddings.float,
}));

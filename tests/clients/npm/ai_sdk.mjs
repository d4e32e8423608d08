// @ai-sdk/openai-compatible and @ai-sdk/cohere: embedMany and rerank of the AI SDK.
import { readFileSync } from "node:fs";
import { createCohere } from "@ai-sdk/cohere";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, rerank } from "ai";

const given = JSON.parse(readFileSync(0, "utf8"));
const { url, query, documents, embedder, reranker } = given;
const compatible = createOpenAICompatible({ name: "cotenant", baseURL: `${url}/v1` });
const cohere = createCohere({ baseURL: `${url}/v2`, apiKey: "none" });
const ofOpenAI = await embedMany({ model: compatible.textEmbeddingModel(embedder), values: documents });
const ofCohere = await embedMany({ model: cohere.textEmbeddingModel(embedder), values: documents });
const ranked = await rerank({ model: cohere.reranking(reranker), query, documents, topN: 3 });
console.log(JSON.stringify({
  openai: ofOpenAI.embeddings,
  openai_tokens: ofOpenAI.usage.tokens,
  cohere: ofCohere.embeddings,
  cohere_tokens: ofCohere.usage.tokens,
  ranked: ranked.ranking.map((result) => [result.originalIndex, result.score]),
}));

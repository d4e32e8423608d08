"""The HTTP edge: bytes become Jobs, Results become the caller's dialect, the error tree becomes statuses.

    server      listens: hypercorn or uvicorn, in this process, on listening's sockets; connection: hypercorn's, mended
    app         paths -> handlers
    exchange    one HTTP exchange over ASGI: bounded body, hang-ups, one answer
    addressing  which model is meant: body, path, port, header, default
    identity    who asks and what they may; keys, quota
    inference   what every POST route shares: errors, headers, metrics, log line
    embeddings  request bytes -> Job -> answer bytes
    rerank, classify    the same for what is scored; scoring: how a model scores pairs; scores: logits to scores
    openai, infinity, cohere, tei, vllm, voyage, weaviate    answer shapes and routes, a module a dialect
    rerank_routes       whose dialect a rerank body is written in; tei_tasks: which route a body without one is for
    tokens      texts as tokens and back, in every dialect; info: what clients ask before they begin
    openapi     the OpenAPI document, made of operations (a line a route), answers and field_shapes
    schemas, scoring_schemas    request bodies; tensors: vectors on the wire; catalogue: models as JSON
    problems    the error tree as HTTP, the only place
    health      alive, ready, metrics; probes: the same as other platforms ask
    tracing     OpenTelemetry's spans of it all
    record      what one request cost; access: its log line
    contract    what the edge asks of the engine; edge: what every handler shares
    lifecycle   the process around it, from start to drain; loading, logs: what it shows meanwhile

Nothing here knows models, devices or scheduling. A new endpoint is: parse, render, one route, one operation.
"""

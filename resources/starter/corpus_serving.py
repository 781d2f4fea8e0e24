"""Terms of serving: latencies, memory of the KV cache, and the scheduler."""

from __future__ import annotations

from resources.starter.corpus_topic import Topic

METRICS = (
    Topic(
        ("TTFT", "time to first token", "TTFT (time to first token)"),
        (
            "TTFT is the time to first token: how long a request waits from its arrival until"
            " the first token of the answer appears. It contains the time in the queue and the"
            " prefill of the prompt.",
            "TTFT stands for time to first token. The clock starts when the request arrives and"
            " stops when its first output token is ready, so waiting and prefill both count.",
        ),
        ("TTFT matters because it is the pause that a user feels before anything appears.",),
        (
            "To lower TTFT, use shorter prompts, turn prefix caching on, allow more batched"
            " tokens per step, and keep the waiting queue short.",
        ),
    ),
    Topic(
        ("ITL", "inter-token latency", "ITL (inter-token latency)"),
        (
            "ITL is the inter-token latency: the gap between one output token and the next. It"
            " tells how smoothly the text streams.",
            "ITL stands for inter-token latency, the time between two successive tokens of an"
            " answer. A high p99 means that the stream stutters.",
        ),
        ("ITL matters because it sets how fast and how evenly the text appears.",),
        (
            "To lower ITL, run fewer sequences at once, quantize the weights, turn chunked"
            " prefill on, or try speculative decoding.",
        ),
    ),
    Topic(
        ("TPOT", "time per output token", "TPOT (time per output token)"),
        (
            "TPOT is the time per output token of one request: the end-to-end time less the"
            " TTFT, divided by the number of output tokens minus one.",
            "TPOT stands for time per output token. It is an average for one request:"
            " (e2e - ttft) / (n - 1).",
        ),
        ("TPOT matters because it says how fast one request is answered once it has started.",),
        ("To lower TPOT, use smaller batches, lighter weights, or speculative decoding.",),
    ),
    Topic(
        ("throughput", "token throughput", "tokens per second"),
        (
            "Throughput is the number of tokens that the engine makes per second, over all"
            " requests together. Larger batches raise it, and each request gets a little slower.",
        ),
        ("Throughput matters because it decides how many users one machine can serve.",),
        ("To raise throughput, batch more sequences, enlarge the KV cache, and quantize.",),
    ),
    Topic(
        ("goodput",),
        (
            "Goodput is the rate of requests that meet their latency targets, for example a TTFT"
            " below 200 ms and an ITL below 50 ms. Requests that are too slow do not count.",
        ),
        ("Goodput matters because throughput alone can hide answers that come too late.",),
        ("To raise goodput, lower the batch limits until the p99 latencies meet the target.",),
    ),
    Topic(
        ("latency", "end-to-end latency", "e2e latency"),
        (
            "End-to-end latency is the time from the arrival of a request to its last token. It"
            " is the TTFT plus the time to decode the rest.",
        ),
        ("Latency matters because it is the whole time that a user waits for an answer.",),
        ("To lower latency, shorten prompts and answers, quantize, and keep batches small.",),
    ),
    Topic(
        ("p99", "the 99th percentile", "p99 latency"),
        (
            "The p99 is the value that 99 of 100 samples stay below. It shows the slow tail that"
            " an average hides.",
        ),
        ("The p99 matters because users remember the slowest answers.",),
        ("To lower the p99, avoid preemption, and split long prompts with chunked prefill.",),
    ),
)

MEMORY = (
    Topic(
        ("KV cache", "the KV cache", "key-value cache"),
        (
            "The KV cache stores the attention keys and values of every token seen so far. With"
            " it each new token needs only one forward step instead of reading the whole text"
            " again.",
            "The KV cache is the memory that holds the keys and values of past tokens, so that"
            " attention does not compute them again. It grows with every token.",
        ),
        ("The KV cache matters because its size limits how many requests can run at once.",),
        (
            "To fit more into the KV cache, store it as fp8 or int8, limit the context length,"
            " or give the cache more memory.",
        ),
    ),
    Topic(
        ("paging", "paged attention", "PagedAttention", "the paged KV cache"),
        (
            "Paging splits the KV cache into blocks of equal size. Each sequence has a block"
            " table that lists its blocks in order, so the blocks may lie anywhere in memory and"
            " almost nothing is wasted.",
            "With paging, the KV cache is cut into small blocks, like the pages of an operating"
            " system. A block table maps the positions of a sequence to its blocks.",
        ),
        ("Paging matters because memory is taken only as a sequence grows, block by block.",),
        ("To tune paging, choose the block size: small blocks waste less, large ones are faster.",),
    ),
    Topic(
        ("block table", "a block table"),
        (
            "A block table is the list of the KV cache blocks that belong to one sequence, in"
            " order. Token i lies in entry i // block_size, at offset i % block_size.",
        ),
        ("The block table matters because it lets a sequence use blocks from anywhere.",),
        ("A larger block size makes block tables shorter.",),
    ),
    Topic(
        ("block size", "block_size", "the block_size knob", "KV block size"),
        (
            "The block size is the number of tokens in one block of the KV cache, often 16. A"
            " small block wastes less memory; a large block needs shorter tables.",
        ),
        ("The block size matters because the last block of each sequence is partly empty.",),
        ("A block size of 16 is a good start. Changing it rebuilds the cache.",),
    ),
    Topic(
        ("prefix caching", "prefix cache", "enable_prefix_caching", "automatic prefix caching"),
        (
            "Prefix caching keeps the KV blocks of earlier prompts. When a new prompt starts with"
            " the same tokens, those blocks are reused and need no prefill.",
            "With prefix caching, full blocks are found again by a hash of their tokens and of"
            " all tokens before them. A shared prefix is then computed only once.",
        ),
        ("Prefix caching matters because it lowers TTFT for long chats and system prompts.",),
        ("To gain from prefix caching, put the text that stays the same at the prompt's start.",),
    ),
    Topic(
        ("preemption", "a preempted request"),
        (
            "Preemption takes the KV blocks away from a running request when the cache is full."
            " The request goes back to the queue, and its tokens are computed again later.",
        ),
        ("Preemption matters because the work is done twice, and the user sees a pause.",),
        ("To avoid preemption, lower max_num_seqs, enlarge the KV cache, or use a watermark.",),
    ),
    Topic(
        ("watermark", "the watermark"),
        (
            "The watermark is a small share of KV blocks that the scheduler keeps free when it"
            " admits a new request, so that running requests can grow.",
        ),
        ("The watermark matters because without it new requests soon cause preemption.",),
        ("Raise the watermark if you see many preemptions; lower it to admit more requests.",),
    ),
    Topic(
        ("cache size", "the KV cache size", "kv_cache_memory_bytes"),
        (
            "The cache size is the memory set aside for KV blocks. Per token it takes 2 x layers"
            " x KV heads x head size x bytes per value.",
        ),
        ("The cache size matters because it limits the number of tokens held at once.",),
        ("Enlarge the cache if requests wait or are preempted. This rebuilds the cache.",),
    ),
    Topic(
        ("eviction", "LRU eviction"),
        (
            "Eviction drops cached blocks that no request uses when free blocks are needed. The"
            " least recently used block goes first.",
        ),
        ("Eviction matters because a block that is gone must be computed again.",),
        ("A larger KV cache means less eviction and more prefix cache hits.",),
    ),
    Topic(
        ("GQA", "grouped-query attention"),
        (
            "Grouped-query attention lets several query heads share one head of keys and values."
            " The KV cache becomes smaller by that factor.",
        ),
        ("GQA matters because a smaller KV cache holds more requests.",),
        ("GQA is part of the model and cannot be tuned; choose a model that has it.",),
    ),
)

SCHEDULING = (
    Topic(
        ("prefill", "the prefill phase"),
        (
            "Prefill is the first phase of a request: the model reads all tokens of the prompt"
            " in parallel and fills the KV cache. It is limited by compute.",
        ),
        ("Prefill matters because it makes up most of the time to first token.",),
        ("To make prefill cheaper, use prefix caching and shorter prompts.",),
    ),
    Topic(
        ("decode", "decoding", "the decode phase"),
        (
            "Decode is the second phase of a request: the model makes one token per step and"
            " reads all its weights each time. It is limited by memory bandwidth.",
        ),
        ("Decode matters because it sets the inter-token latency.",),
        ("To speed decode up, quantize the weights, batch requests, or use speculation.",),
    ),
    Topic(
        ("continuous batching", "in-flight batching"),
        (
            "Continuous batching builds a new batch at every step. A request joins as soon as"
            " there is room and leaves as soon as it is done, so no slot stays empty.",
        ),
        ("Continuous batching matters because it keeps the hardware busy at every step.",),
        ("Tune it with max_num_seqs and max_num_batched_tokens.",),
    ),
    Topic(
        ("static batching",),
        (
            "Static batching starts a group of requests together and waits until all of them are"
            " done. Short requests wait for the longest one.",
        ),
        ("Static batching is simple, but it wastes slots and makes new requests wait.",),
        ("Switch the batching policy to continuous and compare the two.",),
    ),
    Topic(
        ("batching", "batching policy", "the batching policy"),
        (
            "Batching runs several requests in one forward step, so that the weights are read"
            " once for all. The batching policy is continuous or static.",
        ),
        ("Batching matters because it raises throughput at a small cost in latency.",),
        ("Use continuous batching unless you want to see how static batching compares.",),
    ),
    Topic(
        ("chunked prefill", "enable_chunked_prefill", "prefill chunking"),
        (
            "Chunked prefill splits a long prompt into pieces that share each step with decoding"
            " requests. The others keep streaming while the prompt is read.",
            "With chunked prefill, a long prompt is read in chunks over several steps. A step"
            " mixes prefill tokens and decode tokens within one token budget.",
        ),
        ("Chunked prefill matters because one long prompt no longer stalls every stream.",),
        ("A smaller token budget gives a smoother ITL; a larger one gives a lower TTFT.",),
    ),
    Topic(
        ("max_num_seqs", "the max_num_seqs knob", "max num seqs"),
        (
            "max_num_seqs limits how many sequences run in one step. A higher value raises"
            " throughput; a lower one gives each request a better ITL.",
        ),
        ("max_num_seqs matters because it trades throughput for latency.",),
        ("Raise max_num_seqs until the p99 ITL reaches your limit. It is a live setting.",),
    ),
    Topic(
        ("max_num_batched_tokens", "the max_num_batched_tokens knob", "the token budget"),
        (
            "max_num_batched_tokens limits the tokens that one step may process, prefill and"
            " decode together. It is the token budget of a step.",
        ),
        ("max_num_batched_tokens matters because long steps delay every stream.",),
        ("Raise it for a lower TTFT, lower it for a smoother ITL. It is a live setting.",),
    ),
    Topic(
        ("scheduler", "the scheduler"),
        (
            "The scheduler decides at every step which requests run and how many tokens each may"
            " process. It admits, preempts and finishes requests.",
        ),
        ("The scheduler matters because it shares memory and compute between requests.",),
        ("Tune it with the batch limits, the watermark and chunked prefill.",),
    ),
    Topic(
        ("goodput tuning", "the tune page", "tuning"),
        (
            "Tuning means to change one knob at a time under a steady load, and to watch TTFT,"
            " ITL, throughput and memory until the targets are met.",
        ),
        ("Tuning matters because the best setting depends on the model and on the load.",),
        ("Start with max_num_seqs, then the token budget, then the cache and quantization.",),
    ),
)

"""Terms of models: precision of the weights, speculation, and sampling."""

from __future__ import annotations

from resources.starter.corpus_topic import Topic

WEIGHTS = (
    Topic(
        ("quantization", "weight quantization"),
        (
            "Quantization stores the weights in fewer bits, for example int8 or 4 bits instead"
            " of 16. The model needs less memory and decodes faster, with a small loss of"
            " quality.",
            "Quantization means to round the weights to a small set of values with a scale per"
            " group. Fewer bytes are read per token, so decode is faster.",
        ),
        ("Quantization matters because decoding is limited by the bytes read per token.",),
        ("Try int8 first, then 4 bits with AWQ or GPTQ, and compare the perplexity.",),
    ),
    Topic(
        ("AWQ", "activation-aware weight quantization"),
        (
            "AWQ is activation-aware weight quantization. It scales the weight channels that"
            " meet large activations before rounding to 4 bits, so that they lose less.",
        ),
        ("AWQ matters because 4-bit weights keep most of the quality with little calibration.",),
        ("Quantize with a group size of 128 and a few hundred lines of calibration text.",),
    ),
    Topic(
        ("GPTQ",),
        (
            "GPTQ rounds the weights one column at a time and corrects the columns that are left"
            " for the error, using second-order information from calibration text.",
        ),
        ("GPTQ matters because it keeps 4-bit weights accurate.",),
        ("Use calibration text that looks like your real prompts.",),
    ),
    Topic(
        ("int8", "int8 quantization"),
        (
            "int8 stores each weight in 8 bits with a scale per channel. It halves the memory of"
            " a 16-bit model and hardly changes the quality.",
        ),
        ("int8 matters because it is the safest way to make a model smaller.",),
        ("Choose int8 when 16 bits do not fit and 4 bits lose too much.",),
    ),
    Topic(
        ("fp8", "fp8 quantization"),
        (
            "fp8 is a floating-point number of 8 bits. The common form e4m3 has 4 exponent bits"
            " and 3 mantissa bits. It serves for weights and for the KV cache.",
        ),
        ("fp8 matters because it halves memory, and new GPUs compute with it directly.",),
        ("Use fp8 for the KV cache to hold about twice as many tokens as with 16 bits.",),
    ),
    Topic(
        ("dtype", "the dtype", "bfloat16"),
        (
            "The dtype is the number format of the weights and activations. float32 has 4 bytes,"
            " float16 and bfloat16 have 2 bytes. bfloat16 has the range of float32.",
        ),
        ("The dtype matters because it sets memory, speed and accuracy.",),
        ("Use bfloat16 on a GPU and float32 on an old CPU. A change reloads the model.",),
    ),
    Topic(
        ("perplexity",),
        (
            "Perplexity is the exponential of the mean loss per token on a text. Lower is"
            " better: a perplexity of 5 means about 5 equally likely choices per token.",
        ),
        ("Perplexity matters because it shows how much quality a quantization costs.",),
        ("Compare the perplexity of two precisions on the same text.",),
    ),
    Topic(
        ("speculative decoding", "speculation"),
        (
            "Speculative decoding lets a small draft model propose several tokens, and the large"
            " model checks them all in one step. Accepted tokens come almost for free, and the"
            " output does not change.",
            "In speculative decoding a fast draft model guesses the next tokens, and the target"
            " model verifies them together. The more guesses are accepted, the faster it is.",
        ),
        ("Speculative decoding matters because it makes several tokens per step of the model.",),
        ("Watch the acceptance length. Draft fewer tokens if few of them are accepted.",),
    ),
    Topic(
        ("draft model", "a draft model", "the draft model"),
        (
            "A draft model is a small model with the same tokenizer as the large one. It proposes"
            " tokens for speculative decoding.",
        ),
        ("The draft model matters because its guesses decide how much time is saved.",),
        ("Choose a draft about a tenth the size of the model, from the same family.",),
    ),
    Topic(
        ("acceptance length", "acceptance rate"),
        (
            "The acceptance rate is accepted tokens divided by drafted tokens. The acceptance"
            " length is one plus the accepted tokens per round.",
        ),
        ("The acceptance length matters because it is the number of tokens per step.",),
        ("It is high for predictable text such as lists, tables and code.",),
    ),
)

SAMPLING = (
    Topic(
        ("temperature", "the temperature"),
        (
            "Temperature divides the logits before sampling. Low values make the answer more"
            " certain, high values make it more varied, and 0 means greedy.",
        ),
        ("Temperature matters because it sets the balance of certainty and variety.",),
        ("Use 0 for facts and code, about 0.7 for chat, and 1.0 for stories.",),
    ),
    Topic(
        ("top-p", "top_p", "nucleus sampling"),
        (
            "Top-p keeps the smallest set of tokens whose probabilities add up to p, and samples"
            " from that set. It is also called nucleus sampling.",
        ),
        ("Top-p matters because it cuts off the long tail of unlikely tokens.",),
        ("A value of 0.9 is a common choice; 1.0 turns it off.",),
    ),
    Topic(
        ("top-k", "top_k"),
        ("Top-k keeps only the k most likely tokens and samples from them.",),
        ("Top-k matters because it stops very unlikely tokens from being chosen.",),
        ("Values between 20 and 50 are common; k = 1 is greedy.",),
    ),
    Topic(
        ("min-p", "min_p"),
        (
            "Min-p drops every token whose probability is below min-p times the probability of"
            " the most likely token.",
        ),
        ("Min-p matters because it adapts: it cuts more when the model is certain.",),
        ("Values between 0.05 and 0.1 are common; 0 turns it off.",),
    ),
    Topic(
        ("greedy decoding", "greedy sampling"),
        ("Greedy decoding always takes the most likely token, so the answer is repeatable.",),
        ("Greedy decoding matters for tests and for facts.",),
        ("Set the temperature to 0 for greedy decoding.",),
    ),
    Topic(
        ("seed", "the seed"),
        ("The seed starts the random numbers of sampling. The same seed gives the same answer.",),
        ("The seed matters because it makes a sampled answer repeatable.",),
        ("Set a seed when you compare two settings.",),
    ),
    Topic(
        ("token", "a token", "tokens"),
        (
            "A token is a piece of text, often a word or a part of a word. A model reads and"
            " writes tokens, each with a number from its vocabulary.",
        ),
        ("Tokens matter because time and memory are counted in tokens.",),
        ("Shorter prompts have fewer tokens and are read faster.",),
    ),
    Topic(
        ("tokenizer", "a tokenizer"),
        ("A tokenizer turns text into token numbers and back. Each model has its own.",),
        ("The tokenizer matters because a draft model must share it with its target.",),
        ("A larger vocabulary makes fewer tokens of the same text.",),
    ),
    Topic(
        ("context length", "context window", "max_model_len"),
        ("The context length is the number of tokens that prompt and answer may have together.",),
        ("The context length matters because a long context needs more KV cache.",),
        ("Limit max_model_len to what you need, and more requests fit.",),
    ),
    Topic(
        ("attention",),
        (
            "Attention lets each token look at the tokens before it, using queries, keys and"
            " values.",
        ),
        ("Attention matters because it is how a model uses the context.",),
        ("Its cost grows with the context, so keep prompts short.",),
    ),
    Topic(
        ("inference", "LLM inference"),
        ("Inference means to run a trained model: it reads a prompt and writes tokens.",),
        ("Inference matters because it is where a model meets its users.",),
        ("To make it fast, batch requests, cache the keys and values, and quantize.",),
    ),
)

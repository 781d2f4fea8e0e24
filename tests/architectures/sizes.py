"""How large each setting of a small config is, by name: names are alike across classes."""

from __future__ import annotations

VOCAB_SIZE = 160
WINDOW = 13
CHUNK = 16
LONGEST = 256

_NAMES: tuple[tuple[int, str], ...] = (
    # widths
    (
        64,
        "hidden_size n_embd d_model dim embed_dim word_embed_proj_dim decoder_hidden_size "
        "emb_dim embedding_size dim_model",
    ),
    (
        96,
        "intermediate_size ffn_hidden_size ffn_dim decoder_ffn_dim n_inner encoder_ffn_dim "
        "intermediate_size_mlp dense_intermediate_size d_ff d_inner feed_forward_size "
        "block_ff_dim dim_ff",
    ),
    (
        32,
        "moe_intermediate_size moe_shared_expert_intermediate_size "
        "shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size "
        "expert_dim",
    ),
    # heads
    (
        4,
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
        "encoder_attention_heads attention_heads swa_num_attention_heads",
    ),
    (2, "num_key_value_heads num_kv_heads n_head_kv attention_kv_heads swa_num_key_value_heads"),
    (
        16,
        "head_dim v_head_dim qk_nope_head_dim dim_head kv_channels attention_head_size "
        "swa_head_dim swa_v_head_dim attention_head_dim",
    ),
    (8, "qk_rope_head_dim rotary_dim"),
    (32, "kv_lora_rank q_lora_rank global_head_dim"),
    # experts
    (8, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    (
        2,
        "num_experts_per_tok moe_topk moe_top_k top_k_experts moe_k num_experts_per_token "
        "topk_group moe_num_active_primary_experts",
    ),
    (4, "n_group"),
    (1, "first_k_dense_replace moe_num_shared_experts n_shared_experts"),
    # what a layer sees
    (
        WINDOW,
        "sliding_window sliding_window_size window_size attention_window local_attention "
        "attention_window_size sliding_window_pattern_size",
    ),
    (CHUNK, "attention_chunk_size"),
    (
        LONGEST,
        "max_position_embeddings n_positions n_ctx max_seq_len seq_length max_sequence_length "
        "max_target_positions",
    ),
    # words
    (
        VOCAB_SIZE,
        "vocab_size text_vocab_size vocab_size_per_layer_input decoder_vocab_size "
        "unpadded_vocab_size",
    ),
    (
        16,
        "hidden_size_per_layer_input keep_window_size rel_extent local_attention_window_len "
        "heavily_compressed_attention block_size",
    ),
    (
        8,
        "laurel_rank index_topk index_block_size floor_scale log_scaling_n_floor "
        "index_head_dim hc_lowrank",
    ),
    (2, "index_topk_blocks max_window_layers"),
    (4, "index_n_heads num_kv_shared_layers"),
    # state space
    (
        8,
        "mamba_d_state state_size ssm_state_size mamba_d_head mamba_headdim "
        "linear_key_head_dim linear_value_head_dim linear_head_dim split_ngram_parts",
    ),
    (16, "mamba_n_heads"),
    (4, "linear_num_heads linear_num_key_heads linear_num_value_heads"),
    (1, "n_groups mamba_n_groups"),
    (64, "lru_width ngram_vocab_size_base"),
    (32, "ple_embed_dim"),
    # images and sound beside the text
    (28, "image_size"),
    (14, "patch_size"),
    (64, "vision_output_dim projector_input_dim projector_output_dim"),
    (3, "num_channels"),
)

SIZES = {name: size for size, names in _NAMES for name in names.split()}

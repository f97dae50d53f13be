"""A tiny model's hyperparameters under the keys its architecture has; unset ones are left away, as in real files."""

from __future__ import annotations

import gguf
from family_sizes import EPSILON, VOCABULARY, Delta, Experts, Family, Latent, StateSpace


def add_metadata(writer: gguf.GGUFWriter, family: Family) -> None:
    """All keys of the architecture."""
    writer.add_name(f"jackfield golden {family.name}")
    writer.add_context_length(family.context)
    writer.add_embedding_length(family.hidden)
    writer.add_block_count(family.layers + family.predicting)
    if family.predicting:
        writer.add_nextn_predict_layers(family.predicting)
    writer.add_feed_forward_length(family.ffn)
    writer.add_head_count(family.heads)
    writer.add_head_count_kv(family.kv_heads)
    writer.add_layer_norm_rms_eps(EPSILON)
    if family.state_space:
        writer.add_vocab_size(VOCABULARY)
        add_state_space(writer, family.state_space)
        return
    writer.add_rope_freq_base(family.rope_base)
    writer.add_vocab_size(VOCABULARY)
    if family.rope_dims:
        writer.add_rope_dimension_count(family.rope_dims)
    if not family.latent and (not family.rope_dims or family.heads * family.head != family.hidden):
        writer.add_key_length(family.head)
        writer.add_value_length(family.head)
    add_rotation(writer, family)
    add_attention(writer, family)
    if family.latent:
        add_latent(writer, family.latent)
    if family.delta:
        add_delta(writer, family.delta)
    if family.experts:
        add_experts(writer, family.experts)


def add_rotation(writer: gguf.GGUFWriter, family: Family) -> None:
    if family.rope_sections:
        writer.add_rope_dimension_sections(family.rope_sections)
    if family.rope_scale != 1.0:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(family.rope_scale)
    if family.yarn:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(family.yarn)
    if family.log_multiplier:
        writer.add_rope_scaling_yarn_log_mul(family.log_multiplier)
    if family.original_context:
        writer.add_rope_scaling_orig_ctx_len(family.original_context)
    if family.attn_factor:
        writer.add_rope_scaling_attn_factors(family.attn_factor)


def add_attention(writer: gguf.GGUFWriter, family: Family) -> None:
    if family.window:
        writer.add_sliding_window(family.window)
    if family.period:
        writer.add_uint32(f"{family.architecture}.attention.sliding_window_pattern", family.period)
    if family.local_base:
        writer.add_float32(f"{family.architecture}.rope.freq_base_swa", family.local_base)
    if family.attention_cap:
        writer.add_attn_logit_softcapping(family.attention_cap)
    if family.logit_cap:
        writer.add_final_logit_softcapping(family.logit_cap)
    if family.temperature:
        writer.add_attn_temperature_scale(family.temperature)


def add_latent(writer: gguf.GGUFWriter, latent: Latent) -> None:
    """A query rank of 0 is written, because llama.cpp wants the key in a file of two layers."""
    writer.add_rope_dimension_count(latent.turned)
    writer.add_q_lora_rank(latent.queries)
    writer.add_kv_lora_rank(latent.rank)
    writer.add_key_length(latent.rank + latent.turned)
    writer.add_value_length(latent.rank)
    writer.add_key_length_mla(latent.plain + latent.turned)
    writer.add_value_length_mla(latent.value)


def add_delta(writer: gguf.GGUFWriter, delta: Delta) -> None:
    writer.add_ssm_conv_kernel(delta.taps)
    writer.add_ssm_state_size(delta.size)
    writer.add_ssm_group_count(delta.key_heads)
    writer.add_ssm_time_step_rank(delta.heads)
    writer.add_ssm_inner_size(delta.heads * delta.size)
    if delta.period:
        writer.add_full_attention_interval(delta.period)
    if delta.recurrent:
        writer.add_array(f"{writer.arch}.attention.recurrent_layers", delta.recurrent)


def add_experts(writer: gguf.GGUFWriter, experts: Experts) -> None:
    writer.add_expert_count(experts.count)
    writer.add_expert_used_count(experts.used)
    if experts.width_key:
        writer.add_expert_feed_forward_length(experts.width)
    if experts.dense:
        writer.add_leading_dense_block_count(experts.dense)
    if experts.shared:
        writer.add_expert_shared_count(experts.shared)
    if experts.shared_width:
        writer.add_expert_shared_feed_forward_length(experts.shared_width)
    if experts.gating is not None:
        writer.add_expert_gating_func(experts.gating)
    if experts.norm:
        writer.add_expert_weights_norm(value=True)
    if experts.scale:
        writer.add_expert_weights_scale(experts.scale)
    if experts.groups:
        writer.add_expert_group_count(experts.groups)
        writer.add_expert_group_used_count(experts.groups_used)


def add_state_space(writer: gguf.GGUFWriter, size: StateSpace) -> None:
    writer.add_ssm_conv_kernel(size.taps)
    writer.add_ssm_inner_size(size.inner)
    writer.add_ssm_state_size(size.state)
    writer.add_ssm_time_step_rank(size.rank)
    if size.groups:
        writer.add_ssm_group_count(size.groups)
    else:
        writer.add_ssm_dt_b_c_rms(size.normed)
